package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// frontPort is where the front listens on the control plane's host.
const frontPort = 7443

// apiFront stands before the API server and withholds one resource until released.
type apiFront struct {
	kubeconfig string // leads through the front

	withheld string
	open     chan struct{}
	once     sync.Once
	asked    atomic.Int64 // requests for what is withheld
	bytes    atomic.Int64 // sent of everything else
}

// newAPIFront starts a front that goes with the test.
func newAPIFront(t *testing.T, c *cluster, withheld string) *apiFront {
	t.Helper()
	f := &apiFront{
		withheld:   withheld,
		open:       make(chan struct{}),
		kubeconfig: filepath.Join(c.dir, "front.kubeconfig"),
	}
	target, err := url.Parse(c.cp.url())
	if err != nil {
		t.Fatal(err)
	}
	// The token is the agent's own; only the connection is the front's.
	transport, err := rest.TransportFor(&rest.Config{
		Host: c.cp.url(), TLSClientConfig: rest.TLSClientConfig{CAData: c.cp.ca.pem()}, Dial: c.cp.host.Dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches are endless answers
	}
	f.serve(t, c, proxy)
	f.writeKubeconfig(t, c)
	return f
}

func (f *apiFront) serve(t *testing.T, c *cluster, proxy http.Handler) {
	t.Helper()
	certPEM, keyPEM, err := c.cp.ca.serverCertificate(c.cp.certificateIPs(), nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.cp.host.Listen(t.Context(), "tcp", fmt.Sprintf("%s:%d", controlAddrs[0].Addr(), frontPort))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.handle(w, r, proxy) }),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(l, "", "") }()
	t.Cleanup(func() {
		f.release()
		server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("front: %v", err)
		}
	})
}

func (f *apiFront) handle(w http.ResponseWriter, r *http.Request, proxy http.Handler) {
	if strings.HasSuffix(r.URL.Path, "/"+f.withheld) {
		f.asked.Add(1)
		select {
		case <-f.open:
		case <-r.Context().Done():
			return
		}
	}
	proxy.ServeHTTP(&countingWriter{ResponseWriter: w, n: &f.bytes}, r)
}

// writeKubeconfig copies n1's way to the API server, through the front.
func (f *apiFront) writeKubeconfig(t *testing.T, c *cluster) {
	t.Helper()
	direct, err := clientcmd.BuildConfigFromFlags("", c.nodes[n1].kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("https://%s:%d", controlAddrs[0].Addr(), frontPort)
	if err := writeKubeconfig(f.kubeconfig, server, c.cp.ca.pem(), direct.BearerToken); err != nil {
		t.Fatal(err)
	}
}

// release lets through what was withheld.
func (f *apiFront) release() { f.once.Do(func() { close(f.open) }) }

// delivered is how many bytes of answers the agent was sent.
func (f *apiFront) delivered() int64 { return f.bytes.Load() }

// waitForTraffic waits until the agent has asked for what is withheld, and has been
// sent other things.
func (f *apiFront) waitForTraffic(t *testing.T, n *node) {
	t.Helper()
	eventually(t, "the agent to list", func() error {
		if err := n.agent.alive(); err != nil {
			return err
		}
		if f.asked.Load() == 0 || f.bytes.Load() == 0 {
			return fmt.Errorf("asked %d times for %s, was sent %d bytes of other things", f.asked.Load(), f.withheld, f.bytes.Load())
		}
		return nil
	})
}

// countingWriter counts what an answer's body holds.
type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(int64(n))
	return n, err
}

// Unwrap lets the proxy find the flusher below.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
