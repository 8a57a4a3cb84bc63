package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var answer = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })

// freePort is an address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	return l.Addr().String()
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// get asks until somebody answers and returns the body.
func get(t *testing.T, address string) string {
	t.Helper()
	for {
		resp, err := http.Get("http://" + address + "/")
		if errors.Is(err, syscall.ECONNREFUSED) {
			if t.Context().Err() != nil {
				t.Fatal("nobody listens")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
}

func TestServesUntilTheContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	address := freePort(t)
	done := make(chan error, 1)
	go func() { done <- Server{Name: "test", Address: address, Handler: answer}.Run(ctx) }()

	if got := get(t, address); got != "hello" {
		t.Errorf("got %q, want %q", got, "hello")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v after the context ended, want nil", err)
	}
	listen(t, address).Close()
}

func TestHardFailEndsWithTheBindError(t *testing.T) {
	taken := listen(t, "127.0.0.1:0")
	defer taken.Close()
	var told error
	err := Server{Name: "health", Address: taken.Addr().String(), Handler: answer, HardFail: true,
		Failed: func(err error) { told = err }}.Run(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.Is(told, err) {
		t.Fatalf("got error %v, told %v, want address in use from both", err, told)
	}
	// This test itself holds the port.
	if !strings.Contains(err.Error(), "held by httpserver.test (pid ") {
		t.Errorf("got %q, want it to name the process that holds the port", err)
	}
}

// A busy health port must not keep the node without rules (B-69).
func TestBusyPortIsTriedAgain(t *testing.T) {
	taken := listen(t, "127.0.0.1:0")
	address := taken.Addr().String()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told atomic.Int32
		served := make(chan error, 1)
		server := Server{Name: "test", Address: address, Handler: answer, Failed: func(error) { told.Add(1) }}
		go func() { served <- server.Run(ctx) }()

		time.Sleep(7 * retryInterval / 2)
		if got := told.Load(); got != 1 {
			t.Errorf("four failed binds were reported %d times, want once", got)
		}
		taken.Close()
		// Up to the moment of the next try and no further: a goroutine in accept holds
		// the bubble's clock still.
		time.Sleep(retryInterval / 2)
		conn, err := net.Dial("tcp", address)
		for errors.Is(err, syscall.ECONNREFUSED) {
			conn, err = net.Dial("tcp", address)
		}
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

func TestEmptyAddressIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- Server{Name: "test", Handler: answer, HardFail: true}.Run(ctx) }()
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("returned %v before the context ended", err)
		default:
		}
		cancel()
		if err := <-returned; err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

func TestLimits(t *testing.T) {
	read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		}
	})
	l := listen(t, "127.0.0.1:0")
	server := New(read, DefaultWriteTimeout)
	go server.Serve(l)
	defer server.Close()

	for _, tc := range []struct {
		name string
		body string
		head string
		want int
	}{
		{name: "small", body: "x", want: http.StatusOK},
		{name: "large body", body: strings.Repeat("x", maxBodyBytes+1), want: http.StatusRequestEntityTooLarge},
		{name: "large header", head: strings.Repeat("x", 2*maxHeaderBytes), want: http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+l.Addr().String(), strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if tc.head != "" {
				req.Header.Set("X-Filler", tc.head)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tc.want {
				t.Errorf("got %d, want %d", resp.StatusCode, tc.want)
			}
		})
	}
}
