package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// connectPatience is how long a connection or an answer may take.
const connectPatience = time.Second

// The client uses blocking sockets on its own thread. What is measured is the handshake
// through the kernel, not how fast Go's scheduler hears of its end.

// connect returns how long it took to set up a connection. It is reset at once, so that
// thousands of them leave no waiting sockets behind.
func connect(to netip.AddrPort) (time.Duration, error) {
	fd, took, err := open(to)
	if err != nil {
		return 0, err
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return took, errors.Join(err, unix.Close(fd))
}

// ask returns which address answered a connection.
func ask(to netip.AddrPort) (netip.Addr, error) {
	fd, _, err := open(to)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := retried(func() (int, error) { return unix.Read(fd, b[:]) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read the answer of %s: %w", to, err)
	}
	return netip.ParseAddr(string(b[:n]))
}

// open returns a connected socket and how long it took. The calling goroutine is on
// the thread whose namespace it is meant for.
func open(to netip.AddrPort) (fd int, took time.Duration, err error) {
	for {
		fd, took, err = openOnce(to)
		// Interrupted by the scheduler's signal: the time would be wrong.
		if !errors.Is(err, unix.EINTR) {
			return fd, took, err
		}
	}
}

func openOnce(to netip.AddrPort) (fd int, took time.Duration, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("make a socket: %w", err)
	}
	patience := unix.NsecToTimeval(connectPatience.Nanoseconds())
	addr := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	start := time.Now()
	if err == nil {
		err = unix.Connect(fd, addr)
	}
	took = time.Since(start)
	if err != nil {
		return -1, 0, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	return fd, took, nil
}

// retried calls f until no signal interrupts it.
func retried(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
