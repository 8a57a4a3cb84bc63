package config

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// versionServer answers requests with its name, and remembers their Authorization
// headers and paths.
type versionServer struct {
	*httptest.Server
	mu     sync.Mutex
	tokens []string
	paths  []string
}

func newVersionServer(t *testing.T, start func(http.Handler) *httptest.Server) *versionServer {
	s := &versionServer{}
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tokens = append(s.tokens, r.Header.Get("Authorization"))
		s.paths = append(s.paths, r.URL.Path)
		_, _ = fmt.Fprintf(w, "{}")
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *versionServer) seen() (tokens, paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tokens), slices.Clone(s.paths)
}

// ca returns the server's certificate authority in PEM.
func (s *versionServer) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// deadAddress is where nothing listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func parsed(t *testing.T, addresses ...string) []*url.URL {
	t.Helper()
	var urls []*url.URL
	for _, address := range addresses {
		u, err := parseServer(address)
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, u)
	}
	return urls
}

// pod returns the surroundings of a pod whose Service account is for host.
func pod(host string, ca []byte, env map[string]string) connector {
	return connector{
		getenv: func(name string) string { return env[name] },
		inCluster: func() (*rest.Config, error) {
			return &rest.Config{Host: host, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, nil
		},
		dial: new(net.Dialer).DialContext,
	}
}

// bare returns the surroundings of a process outside of any cluster.
func bare(env map[string]string) connector {
	return connector{
		getenv:    func(name string) string { return env[name] },
		inCluster: func() (*rest.Config, error) { return nil, rest.ErrNotInCluster },
		dial:      new(net.Dialer).DialContext,
	}
}

func TestParseServer(t *testing.T) {
	tests := []struct {
		in, want string // "" for an error
	}{
		{"https://10.0.0.1:6443", "https://10.0.0.1:6443"},
		{"https://api.example", "https://api.example"},
		{"https://rancher.example/k8s/clusters/a", "https://rancher.example/k8s/clusters/a"},
		{"http://127.0.0.1:8080", "http://127.0.0.1:8080"},
		{"kind-control-plane:6443", "https://kind-control-plane:6443"},
		{" 10.0.0.1 ", "https://10.0.0.1:6443"},
		{"10.0.0.1:443", "https://10.0.0.1:443"},
		{"fd00::1", "https://[fd00::1]:6443"},
		{"[fd00::1]:443", "https://[fd00::1]:443"},
		{"", ""}, {"https://", ""}, {"ftp://a", ""}, {"a b", ""}, {"a:port", ""},
	}
	for _, tt := range tests {
		got, err := parseServer(tt.in)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%q: got %v, want an error", tt.in, got)
		case tt.want != "" && (err != nil || got.String() != tt.want):
			t.Errorf("%q: got %v (%v), want %s", tt.in, got, err, tt.want)
		}
	}
}

// TestServerOrder pins which addresses are tried, and in which order.
func TestServerOrder(t *testing.T) {
	env := map[string]string{envControlPlane: "cp-1:6443, cp-2"}
	tests := []struct {
		name string
		c    connector
		api  API
		own  string
		want []string
	}{
		{"flags alone", bare(env), API{Servers: parsed(t, "a", "b")}, "https://own", []string{"https://a:6443", "https://b:6443"}},
		{"variable, then the credentials' own", bare(env), API{}, "https://own", []string{"https://cp-1:6443", "https://cp-2:6443", "https://own"}},
		{"own alone", bare(nil), API{}, "https://own", []string{"https://own"}},
		{"variable alone", bare(env), API{}, "", []string{"https://cp-1:6443", "https://cp-2:6443"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			servers, err := tt.c.servers(tt.api, tt.own)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range servers {
				got = append(got, s.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if _, err := bare(map[string]string{envControlPlane: "a:port"}).servers(API{}, ""); err == nil || !strings.Contains(err.Error(), envControlPlane) {
		t.Errorf("bad variable: got error %v, want one that names it", err)
	}
}

func TestConnectSettings(t *testing.T) {
	s := newVersionServer(t, httptest.NewServer)
	config, err := bare(nil).connect(t.Context(), API{Servers: parsed(t, s.URL), ContentType: "a/b", AcceptContentTypes: "c/d", QPS: 3, Burst: 4})
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != s.URL || config.ContentType != "a/b" || config.AcceptContentTypes != "c/d" || config.QPS != 3 || config.Burst != 4 {
		t.Errorf("settings are not those of the configuration: %+v", config)
	}
}

// TestConnectLoop covers B-78: an agent whose only way to the API server is the
// Service it is to make work says so at once.
func TestConnectLoop(t *testing.T) {
	dead := deadAddress(t)
	other := deadAddress(t)
	port := func(address string) string { return strings.TrimPrefix(address, "127.0.0.1:") }
	tests := []struct {
		name string
		c    connector
		api  API
		loop bool
	}{
		{"in-cluster address", pod("https://"+dead, nil, map[string]string{"KUBERNETES_SERVICE_HOST": "127.0.0.1"}), API{}, true},
		{"the Service's address given by hand", pod("https://"+dead, nil, map[string]string{"KUBERNETES_PORT_443_TCP_ADDR": "127.0.0.1"}), API{Servers: parsed(t, "https://"+other)}, true},
		{"in-cluster variable set to a real server", pod("https://"+dead, nil, map[string]string{"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1"}), API{}, false},
		{"one address of several", pod("https://"+dead, nil, map[string]string{"KUBERNETES_SERVICE_HOST": "127.0.0.1", envControlPlane: "localhost:" + port(other)}), API{}, false},
		{"outside of a cluster", bare(nil), API{Servers: parsed(t, "https://"+dead)}, false},
		{"by name", bare(nil), API{Servers: parsed(t, "https://kubernetes.default.svc:1")}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, err := tt.c.connect(t.Context(), tt.api)
			var loop *LoopError
			if isLoop := errors.As(err, &loop); isLoop != tt.loop {
				t.Fatalf("got error %v, want a loop: %v", err, tt.loop)
			}
			if !tt.loop && err != nil {
				t.Errorf("a server that is down for now is no error: got %v", err)
			}
			if config == nil {
				t.Error("got no configuration to go on with")
			}
			if tt.loop {
				for _, words := range []string{`Service "kubernetes"`, "--api-servers=", envControlPlane, loop.Server} {
					if !strings.Contains(err.Error(), words) {
						t.Errorf("the message does not say %q: %v", words, err)
					}
				}
			}
		})
	}
}

func TestConnectNeedsAServer(t *testing.T) {
	tests := []struct {
		name string
		c    connector
		api  API
		want string
	}{
		{"nothing known", bare(nil), API{}, "no API server is known: set --kubeconfig or --api-servers, or use --manifests"},
		{"no such kubeconfig", bare(nil), API{Kubeconfig: "/does/not/exist"}, "read the kubeconfig /does/not/exist"},
		{"broken service account", connector{
			getenv:    func(string) string { return "" },
			inCluster: func() (*rest.Config, error) { return nil, fs.ErrPermission },
		}, API{}, "read the pod's service account"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if config, err := tt.c.connect(t.Context(), tt.api); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v; want an error with %q", config, err, tt.want)
			}
		})
	}
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	return write(t, "kubeconfig", `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "`+server+`", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: from-kubeconfig}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`)
}

func TestConnectWithKubeconfig(t *testing.T) {
	s := newVersionServer(t, httptest.NewTLSServer)
	tests := []struct {
		name string
		api  API
	}{
		{"its server", API{Kubeconfig: kubeconfig(t, s.URL)}},
		{"another server", API{Kubeconfig: kubeconfig(t, "https://unused:1"), Servers: parsed(t, s.URL)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, err := bare(nil).connect(t.Context(), tt.api)
			if err != nil {
				t.Fatal(err)
			}
			if tokens, _ := s.seen(); config.Host != s.URL || tokens[len(tokens)-1] != "Bearer from-kubeconfig" {
				t.Errorf("got host %s, tokens %q; want the server and the kubeconfig's token", config.Host, tokens)
			}
		})
	}
}

// get asks the API server of config for a path.
func get(t *testing.T, config *rest.Config, path string) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).Error()
}

func TestConnectTriesInTurn(t *testing.T) {
	s := newVersionServer(t, httptest.NewTLSServer)
	config, err := pod("https://10.96.0.1", s.ca(), nil).connect(t.Context(), API{Servers: parsed(t, deadAddress(t), s.URL)})
	if err != nil {
		t.Fatal(err)
	}
	if err := get(t, config, "/version"); err != nil {
		t.Errorf("asking after the first server was found dead: %v", err)
	}
	tokens, _ := s.seen()
	if want := []string{"Bearer secret", "Bearer secret"}; !slices.Equal(tokens, want) {
		t.Errorf("got tokens %q, want the Service account's for the probe and the request", tokens)
	}
}

func TestFailover(t *testing.T) {
	first := newVersionServer(t, httptest.NewServer)
	second := newVersionServer(t, httptest.NewServer)
	config, err := pod("https://10.96.0.1", nil, nil).connect(t.Context(), API{Servers: parsed(t, first.URL, second.URL+"/base/")})
	if err != nil {
		t.Fatal(err)
	}
	if err := get(t, config, "/livez"); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if err := get(t, config, "/livez"); err == nil {
		t.Fatal("the request to the dead server succeeded")
	}
	if err := get(t, config, "/readyz"); err != nil {
		t.Errorf("after the first server died: %v", err)
	}
	if _, paths := first.seen(); !slices.Equal(paths, []string{"/version", "/livez"}) {
		t.Errorf("first server: got %q", paths)
	}
	tokens, paths := second.seen()
	if !slices.Equal(paths, []string{"/base/readyz"}) {
		t.Errorf("second server: got %q, want the request below its path", paths)
	}
	if !slices.Equal(tokens, []string{""}) {
		t.Errorf("second server: got tokens %q, want none over plain HTTP", tokens)
	}
}

// TestCancelledRequestIsNoFailure holds that a request that the client gave up does
// not move to another server.
func TestCancelledRequestIsNoFailure(t *testing.T) {
	servers := parsed(t, "http://a:1", "http://b:1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var asked []string
	rt := failover(t.Context(), servers, 0)(roundTripper(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.Host)
		return nil, errors.New("no answer")
	}))
	for _, ctx := range []context.Context{ctx, t.Context(), t.Context(), t.Context()} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a:1/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rt.RoundTrip(r); err == nil {
			t.Fatal("got no error")
		}
	}
	if want := []string{"a:1", "a:1", "b:1", "a:1"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
