// Package nfnetlink speaks to the kernel's netfilter subsystems over netlink: it
// sends a request and hands over the answer message by message, from one buffer,
// so that a table of any size can be read in constant memory.
//
// The format is that of RFC 3549 with the kernel's include/uapi/linux/netlink.h and
// linux/netfilter/nfnetlink.h. Opening a connection needs nothing, most requests
// need CAP_NET_ADMIN in the network namespace of the calling thread.
package nfnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// headerSize is that of struct nlmsghdr, nfgenSize that of struct nfgenmsg.
	headerSize = unix.NLMSG_HDRLEN
	nfgenSize  = 4
	// receiveSize is the largest chunk that the kernel fills in one receive of a dump.
	receiveSize = 32 << 10
	// patience is how long one receive waits. The kernel answers at once or never.
	patience = 10 * time.Second
	// maxBatch is how many requests are sent before their answers are read: these
	// must fit into the socket's receive buffer.
	maxBatch = 128
)

// ErrInterrupted says that a table changed under a dump in a way that may have left
// entries out.
var ErrInterrupted = errors.New("table changed during dump")

// Message is one request, or one part of an answer.
type Message struct {
	// Type is the subsystem in the high byte and its command in the low one.
	Type uint16
	// Flags are added to NLM_F_REQUEST in a request.
	Flags uint16
	// Family is an address family such as unix.AF_INET.
	Family uint8
	// Attributes are the message's attributes, as AppendAttribute builds and
	// Attributes reads them.
	Attributes []byte
}

// Conn is a connection. It is not for concurrent use.
type Conn struct {
	fd   int
	seq  uint32
	send []byte
	recv []byte
}

// Dial opens a connection to the network namespace of the calling thread.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("limit waiting for netlink: %w", err), unix.Close(fd))
	}
	// Errors come without the request they answer, so that a batch of them fits.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("ask for short netlink errors: %w", err), unix.Close(fd))
	}
	return &Conn{fd: fd, recv: make([]byte, receiveSize)}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Dump sends a request for a table and calls each with every entry. The message is
// valid until each returns. An error of each ends the dump and is returned as it
// is. After any error but ErrInterrupted the connection can only be closed: what the
// kernel still had to say is in it.
func (c *Conn) Dump(ctx context.Context, request Message, each func(Message) error) error {
	request.Flags |= unix.NLM_F_DUMP
	if err := c.write(request); err != nil {
		return err
	}
	d := dump{seq: c.seq, each: each}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err := c.receive(d.add); done || err != nil {
			return err
		}
	}
}

// dump takes in the answer to a request for a table.
type dump struct {
	seq         uint32
	each        func(Message) error
	interrupted bool
}

// add takes in a part of the answer, and reports whether it was the last.
func (d *dump) add(h header, body []byte) (done bool, err error) {
	if h.seq != d.seq {
		return false, nil
	}
	d.interrupted = d.interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
	switch h.kind {
	case unix.NLMSG_DONE, unix.NLMSG_ERROR:
		if err := status(body); err != nil || !d.interrupted {
			return true, err
		}
		return true, ErrInterrupted
	}
	return false, withMessage(h, body, d.each)
}

// Get sends a request and calls each with the answer's messages.
func (c *Conn) Get(request Message, each func(Message) error) error {
	request.Flags |= unix.NLM_F_ACK
	if err := c.write(request); err != nil {
		return err
	}
	for {
		done, err := c.receive(func(h header, body []byte) (bool, error) {
			switch {
			case h.seq != c.seq:
				return false, nil
			case h.kind == unix.NLMSG_ERROR:
				return true, status(body)
			}
			return false, withMessage(h, body, each)
		})
		if err != nil || done {
			return err
		}
	}
}

// Do sends requests that change something and returns what became of each: nil or
// the kernel's error number. The error is that of the connection, which leaves the
// fate of the requests without a result unknown.
func (c *Conn) Do(ctx context.Context, requests ...Message) (results []error, err error) {
	for len(requests) > 0 {
		if err := ctx.Err(); err != nil {
			return results, err
		}
		batch := requests[:min(len(requests), maxBatch)]
		requests = requests[len(batch):]
		answers, err := c.doBatch(batch)
		results = append(results, answers...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

func (c *Conn) doBatch(batch []Message) ([]error, error) {
	for i := range batch {
		batch[i].Flags |= unix.NLM_F_ACK
	}
	first := c.seq + 1
	if err := c.write(batch...); err != nil {
		return nil, err
	}
	results := make([]error, 0, len(batch))
	for len(results) < len(batch) {
		if _, err := c.receive(func(h header, body []byte) (bool, error) {
			// Answers come in the order of the requests.
			if h.kind == unix.NLMSG_ERROR && h.seq == first+uint32(len(results)) {
				results = append(results, status(body))
			}
			return false, nil
		}); err != nil {
			return results, err
		}
	}
	return results, nil
}

// write sends messages in one packet; the last one's sequence number is c.seq.
func (c *Conn) write(messages ...Message) error {
	c.send = c.send[:0]
	for _, m := range messages {
		c.seq++
		length := headerSize + nfgenSize + len(m.Attributes)
		c.send = binary.NativeEndian.AppendUint32(c.send, uint32(length))
		c.send = binary.NativeEndian.AppendUint16(c.send, m.Type)
		c.send = binary.NativeEndian.AppendUint16(c.send, m.Flags|unix.NLM_F_REQUEST)
		c.send = binary.NativeEndian.AppendUint32(c.send, c.seq)
		c.send = append(c.send, 0, 0, 0, 0) // port: the kernel fills it in
		c.send = append(c.send, m.Family, unix.NFNETLINK_V0, 0, 0)
		c.send = append(c.send, m.Attributes...)
		c.send = append(c.send, make([]byte, align(length)-length)...)
	}
	if err := unix.Sendto(c.fd, c.send, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to netfilter: %w", os.NewSyscallError("sendto", err))
	}
	return nil
}

// header is what is used of struct nlmsghdr.
type header struct {
	kind, flags uint16
	seq         uint32
}

// receive reads one packet and calls each with its messages until one says done.
func (c *Conn) receive(each func(header, []byte) (done bool, err error)) (bool, error) {
	n, from, err := c.read()
	if err != nil {
		return false, err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return false, nil // another process wrote to our socket
	}
	return eachMessage(c.recv[:n], each)
}

// eachMessage calls each with the messages of a packet until one says done.
func eachMessage(b []byte, each func(header, []byte) (done bool, err error)) (bool, error) {
	for len(b) >= headerSize {
		length := int(binary.NativeEndian.Uint32(b))
		if length < headerSize || length > len(b) {
			return false, errors.New("receive from netfilter: message is cut off")
		}
		h := header{
			kind:  binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
		}
		if done, err := each(h, b[headerSize:length]); done || err != nil {
			return done, err
		}
		b = b[min(align(length), len(b)):]
	}
	return false, nil
}

func (c *Conn) read() (int, unix.Sockaddr, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.recv, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, nil, fmt.Errorf("receive from netfilter: %w", os.NewSyscallError("recvfrom", err))
		default:
			return n, from, nil
		}
	}
}

// status is the error number at the start of an error or done message; nil for 0.
func status(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if errno := int32(binary.NativeEndian.Uint32(body)); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

func withMessage(h header, body []byte, each func(Message) error) error {
	if len(body) < nfgenSize {
		return nil
	}
	return each(Message{Type: h.kind, Flags: h.flags, Family: body[0], Attributes: body[nfgenSize:]})
}
