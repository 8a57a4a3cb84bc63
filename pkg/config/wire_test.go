package config

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
)

// wire is a network of connections in memory, for tests in virtual time, where a real
// socket would hold the clock.
type wire struct {
	mu       sync.Mutex
	accepted chan net.Conn
	closed   chan struct{}
	open     []*wireConn
	// refuses and swallows are what happens to those who dial from now on.
	refuses, swallows bool
}

func newWire() *wire {
	return &wire{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

// dial connects to whoever accepts.
func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.mu.Lock()
	refuses, swallows := w.refuses, w.swallows
	w.mu.Unlock()
	switch {
	case refuses:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case swallows:
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		select { // the SYN gets no answer
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		case <-w.closed:
			return nil, net.ErrClosed
		}
	}
	client, server := net.Pipe()
	conn := &wireConn{Conn: client, swallowed: make(chan struct{})}
	select {
	case w.accepted <- server:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.closed:
		return nil, net.ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, conn)
	return conn, nil
}

// refuse has everybody who dials be refused, or not any more.
func (w *wire) refuse(refuses bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = refuses
}

// swallow has everybody who dials wait for an answer in vain, or not any more.
func (w *wire) swallow(swallows bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.swallows = swallows
}

// loseAll lets nothing pass any more over the connections that are there. Nobody is told.
func (w *wire) loseAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		conn.swallow()
	}
}

// resetAll ends the connections that are there, as an RST does.
func (w *wire) resetAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

// Accept implements net.Listener.
func (w *wire) Accept() (net.Conn, error) {
	select {
	case conn := <-w.accepted:
		return conn, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
	default:
		close(w.closed)
	}
	return nil
}

// Addr implements net.Listener.
func (w *wire) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:6443"))
}

// wireConn is a client's end. Once swallowed is closed, writes go nowhere and reads
// wait until the client gives up.
type wireConn struct {
	net.Conn
	once      sync.Once
	swallowed chan struct{}
}

func (c *wireConn) swallow() { c.once.Do(func() { close(c.swallowed) }) }

func (c *wireConn) isSwallowed() bool {
	select {
	case <-c.swallowed:
		return true
	default:
		return false
	}
}

// Write implements net.Conn. A write that has begun ends when the connection is lost:
// it went into a buffer of the kernel's.
func (c *wireConn) Write(p []byte) (int, error) {
	if c.isSwallowed() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *wireConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.isSwallowed() {
			return n, err
		}
	}
}

// TestWire holds that the network of these tests does what it says.
func TestWire(t *testing.T) {
	w := newWire()
	defer w.Close()
	echo := make(chan error, 2)
	go func() {
		for range 2 {
			conn, err := w.Accept()
			if err != nil {
				echo <- err
				return
			}
			_, err = io.Copy(conn, conn)
			echo <- err
		}
	}()
	conn, err := w.dial(t.Context(), "tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 2)
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != "hi" {
		t.Errorf("got %q, %v, want an echo", said, err)
	}
	w.loseAll()
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Errorf("got %v, want a write that seems to succeed", err)
	}
	w.resetAll()
	if _, err := conn.Read(said); err == nil {
		t.Error("got an answer over a connection that was reset")
	}
	w.refuse(true)
	if _, err := w.dial(t.Context(), "tcp", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want a refusal", err)
	}
}
