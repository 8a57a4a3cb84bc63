package httpserver

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener accepts connections that are made in memory: the time limits on them
// run on a test's own clock.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	conn, open := <-l.conns
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close is called once: the server sees to that.
func (l pipeListener) Close() error {
	close(l.conns)
	return nil
}

func (pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// dialPipe starts a server for handler and returns the caller's end of a connection.
func dialPipe(t *testing.T, handler http.Handler) net.Conn {
	t.Helper()
	l := pipeListener{make(chan net.Conn, 1)}
	server := New(handler, DefaultWriteTimeout)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	here, there := net.Pipe()
	l.conns <- there
	t.Cleanup(func() {
		here.Close()
		server.Close()
		<-done
	})
	return here
}

// A caller that is slow, in whichever part of the exchange, is cut off.
func TestSlowCallers(t *testing.T) {
	const (
		get  = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
		head = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
		post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n"
	)
	large := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}
	})
	wait := func(conn net.Conn) { time.Sleep(DefaultWriteTimeout) }
	drip := func(conn net.Conn) {
		for {
			if _, err := io.WriteString(conn, "x"); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	readHeader := func(conn net.Conn) {
		if _, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodHead}); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		name   string
		sent   string
		then   func(net.Conn)
		within time.Duration
	}{
		{name: "says nothing", within: headerTimeout},
		{name: "stops in the header", sent: "GET / HTTP/1.1\r\nX: ", within: headerTimeout},
		{name: "drips the header", sent: "GET / HTTP/1.1\r\nX: ", then: drip, within: headerTimeout},
		{name: "stops in the body", sent: post, within: readTimeout},
		{name: "drips the body", sent: post, then: drip, within: DefaultWriteTimeout},
		{name: "does not read the answer", sent: get, then: wait, within: DefaultWriteTimeout},
		{name: "stays without another request", sent: head, then: readHeader, within: idleTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialPipe(t, large)
				began := time.Now()
				if _, err := io.WriteString(conn, tc.sent); err != nil {
					t.Fatal(err)
				}
				if tc.then != nil {
					tc.then(conn)
				}
				io.Copy(io.Discard, conn) // until the server hangs up
				if got := time.Since(began); got > tc.within+time.Second {
					t.Errorf("cut off after %v, want %v", got, tc.within)
				}
			})
		})
	}
}

// envPanic makes this test program the server of TestPanicEndsTheProcess.
const envPanic = "HTTPSERVER_TEST_PANIC"

func boom(http.ResponseWriter, *http.Request) { panic("boom") }

// A panic in a handler ends the process and shows where it was. net/http would catch
// it, and the agent would go on with a lock that nobody releases.
func TestPanicEndsTheProcess(t *testing.T) {
	if os.Getenv(envPanic) != "" {
		l := listen(t, "127.0.0.1:0")
		go New(http.HandlerFunc(boom), DefaultWriteTimeout).Serve(l)
		_, err := http.Get("http://" + l.Addr().String() + "/page")
		t.Fatalf("the process goes on, and answers %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestPanicEndsTheProcess$")
	cmd.Env = append(os.Environ(), envPanic+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Fatalf("got %v, want exit status 2, that of a panic:\n%s", err, out)
	}
	for _, want := range []string{"panic: HTTP handler of /page: boom\n", "httpserver.boom("} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing is said of %q:\n%s", want, out)
		}
	}
}

// A handler may give up its response: that is no failure of the process.
func TestAbortedResponse(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	server := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), DefaultWriteTimeout)
	go server.Serve(l)
	defer server.Close()
	if resp, err := http.Get("http://" + l.Addr().String()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v, want a connection that is closed", resp, err)
	}
}
