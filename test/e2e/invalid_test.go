package e2e

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// A segment that is out of the window is INVALID to conntrack and is not translated
// back. If it reached the client, under an address that the client has no connection
// with, the client would reset the pod's connection (B-49).
func TestInvalidSegmentsAreDropped(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		client, server := c.pods[podC], c.pods[podA]
		conn, err := client.Dial(t.Context(), "tcp", clusterIP(t, svc, 4).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		port := uint16(conn.LocalAddr().(*net.TCPAddr).Port)

		// A segment that gets through is answered by a reset every time. The reset of some
		// other connection, which an earlier test has left, comes once.
		for attempt := 1; ; attempt++ {
			droppedBefore, resetsBefore := n.counter(t, invalidCounter), resetsSent(t, client.Host)
			err = sendSegments(server.Host, server.addrPort(4), netip.AddrPortFrom(client.addr(4), port))
			if err != nil {
				t.Fatal(err)
			}
			// The connection is as good as ever. What comes back over it comes after the
			// segment, on the same way.
			if err := get(conn); err != nil {
				t.Fatal(err)
			}
			if got := n.counter(t, invalidCounter); got <= droppedBefore {
				t.Errorf("the rule for INVALID packets has dropped %d packets, want more than %d", got, droppedBefore)
			}
			resets := resetsSent(t, client.Host) - resetsBefore
			if resets == 0 {
				break
			}
			if attempt == 3 {
				t.Fatalf("the client has sent %d resets", resets)
			}
		}
	})
}

var invalidCounter = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A KUBE-FORWARD -m conntrack --ctstate INVALID .*-j DROP$`)

// get makes one request on an open connection.
func get(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: s\r\n\r\n"); err != nil {
		return err
	}
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.Contains(status, "200") {
		err = fmt.Errorf("answer %q", status)
	}
	return err
}

// resetsSent is how many TCP resets a host has sent.
func resetsSent(t *testing.T, h *lab.Host) int {
	t.Helper()
	text, err := h.Run(context.Background(), "cat", "/proc/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name != "OutRsts" {
				continue
			}
			count, err := strconv.Atoi(fields[i])
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatalf("no count of resets in\n%s", text)
	return 0
}

// sendSegments sends TCP segments with an acknowledgement and nothing else from a
// host, their numbers having nothing to do with any connection. Conntrack takes what
// is before the window for a repetition, and only what is beyond it as INVALID; of
// two numbers that are half of all numbers apart, one is beyond.
func sendSegments(from *lab.Host, src, dst netip.AddrPort) error {
	return from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: dst.Addr().As4()}
		const number, half = 0x12345678, 1 << 31
		return errors.Join(
			unix.Sendto(fd, segment(src, dst, number), 0, to),
			unix.Sendto(fd, segment(src, dst, number+half), 0, to))
	})
}

// segment is a TCP header with a sequence number, see RFC 9293, section 3.1.
func segment(src, dst netip.AddrPort, number uint32) []byte {
	const ack, window, dataOffset = 0x10, 1024, 5 << 4
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], number)
	binary.BigEndian.PutUint32(b[8:], 0x87654321) // acknowledged
	b[12], b[13] = dataOffset, ack
	binary.BigEndian.PutUint16(b[14:], window)
	binary.BigEndian.PutUint16(b[16:], checksum(src.Addr(), dst.Addr(), b))
	return b
}

// checksum is that of a TCP segment over IPv4.
func checksum(src, dst netip.Addr, segment []byte) uint16 {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(segment)))
	pseudo = append(pseudo, segment...)
	var sum uint32
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
