package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// ServePod is a pod's web server: it answers every request with the pod's name and
// the address it sees, and closes the connection. It serves until ctx ends.
func ServePod(ctx context.Context, name, listen string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("serve pod %s: %w", name, err)
	}
	server := &http.Server{Handler: podHandler(name), ReadHeaderTimeout: 10 * time.Second}
	// The choice among pods is made per connection: a client that keeps one would ask
	// the same pod every time.
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pod %s: %w", name, err)
	}
	return nil
}

func podHandler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := r.RemoteAddr
		if addr, err := netip.ParseAddrPort(client); err == nil {
			client = addr.Addr().Unmap().String()
		}
		fmt.Fprintf(w, "%s sees %s\n", name, client)
	})
}
