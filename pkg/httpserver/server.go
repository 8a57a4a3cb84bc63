// Package httpserver is how the agent listens: an HTTP server with limits on what
// a caller may cost, whose failed bind is tried again instead of ending the agent.
package httpserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// The limits of every server. Probes and scrapes are small GET requests; the
// limits keep a slow or chatty caller from holding memory or file descriptors.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 64 << 10
)

// DefaultWriteTimeout is how long a response may take where nothing else is said.
const DefaultWriteTimeout = 15 * time.Second

// retryInterval is the pause after a failed bind, kube-proxy's five seconds.
const retryInterval = 5 * time.Second

// drainTime is how long running requests may take to end when the agent stops.
const drainTime = time.Second

// New returns an HTTP server for handler with the limits set. A panic in handler ends
// the process, as one anywhere else does.
func New(handler http.Handler, writeTimeout time.Duration) *http.Server {
	return &http.Server{
		Handler:           http.MaxBytesHandler(fatal(handler), maxBodyBytes),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(serverLog{}, "", 0),
	}
}

// fatal makes a panic in next end the process. net/http would catch it and go on, with
// whatever next had locked or half changed: an agent that looks alive and is not.
func fatal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler: // how a handler says that it gives up a response
				panic(cause)
			default:
				// On a goroutine of its own nothing can catch it.
				go panic(fmt.Sprintf("HTTP handler of %s: %v\n\n%s", r.URL.Path, cause, debug.Stack()))
				select {}
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// ReadOnly lets through the methods that ask and change nothing. OPTIONS is one of
// them: HAProxy's health checks use it unless they are told otherwise.
func ReadOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Allow", "GET, HEAD, OPTIONS")
			http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
		}
	})
}

// serverLog is where net/http reports to. What it says of broken connections is for
// debugging: a port scan is not the operator's problem.
type serverLog struct{}

func (serverLog) Write(line []byte) (int, error) {
	klog.Background().V(4).Info("HTTP connection failed", "report", string(bytes.TrimSpace(line)))
	return len(line), nil
}

// Server serves one handler on one address for as long as the agent runs.
type Server struct {
	// Name says in logs and errors which server it is: "health", "metrics".
	Name string
	// Address is the host:port to listen on. Empty turns the server off.
	Address string
	Handler http.Handler
	// HardFail ends Run with an error when the address cannot be listened on. Without
	// it the bind is tried again every five seconds.
	HardFail bool
	// WriteTimeout is the longest that a response may take; 0 means DefaultWriteTimeout.
	WriteTimeout time.Duration
	// Failed, if not nil, hears of a bind that failed: once, until one succeeds again.
	Failed func(error)
}

// Run serves until ctx is done and then returns nil. It returns an error only with
// HardFail.
func (s Server) Run(ctx context.Context) error {
	if s.Address == "" {
		<-ctx.Done()
		return nil
	}
	failing := false
	for {
		err := s.serve(ctx, func() { failing = false })
		if ctx.Err() != nil {
			return nil
		}
		if !failing {
			failing = true
			err = s.explain(err)
			if s.Failed != nil {
				s.Failed(err)
			}
			if s.HardFail {
				return err
			}
			klog.FromContext(ctx).Error(err, "Cannot serve, will keep trying", "server", s.Name, "retryEvery", retryInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}

// serve listens and serves until ctx is done or something fails; bound is called
// when the address is ours.
func (s Server) serve(ctx context.Context, bound func()) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", s.Name, err)
	}
	bound()
	klog.FromContext(ctx).V(2).Info("Serving", "server", s.Name, "address", listener.Addr().String())

	timeout := s.WriteTimeout
	if timeout == 0 {
		timeout = DefaultWriteTimeout
	}
	server := New(s.Handler, timeout)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		if server.Shutdown(drain) != nil {
			_ = server.Close() // it only says again that a connection was open
		}
	})
	err = server.Serve(listener)
	if !stop() {
		<-stopped
		return nil
	}
	_ = server.Close() // the error that matters is the one from Serve
	return fmt.Errorf("serve %s on %s: %w", s.Name, s.Address, err)
}

// explain adds to a failed bind who has the port, as far as that can be seen. It
// looks at every file of every process, so it is for the first failure only.
func (s Server) explain(err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	if holder := portHolder("/proc", s.Address); holder != "" {
		return fmt.Errorf("%w: held by %s", err, holder)
	}
	return fmt.Errorf("%w: is another kube-proxy or miniproxy running on this node?", err)
}
