package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// envControlPlane is the variable that names the control plane, host:port with
// commas between several. kind's network agent reads the same one.
const envControlPlane = "CONTROL_PLANE_ENDPOINT"

// probeTimeout is how long one API server may take to answer at the start.
const probeTimeout = 4 * time.Second

// dialTimeout is how long an API server may take to accept a connection.
const dialTimeout = 10 * time.Second

// LoopError says that the only known way to the API server leads through the rules
// that the agent can write only after it has reached the API server.
type LoopError struct {
	// Server is the address, which belongs to the Service "kubernetes".
	Server string
	// Err is why it cannot be reached.
	Err error
}

// Error says what the loop is and how to get out of it.
func (e *LoopError) Error() string {
	return fmt.Sprintf("cannot reach the API server at %s: this is the address of the Service \"kubernetes\", which works only after a proxy has written its rules, "+
		"and miniproxy cannot write them before it has reached the API server; "+
		"give it an address that needs no Service: --api-servers=https://CONTROL-PLANE:6443, or the variable %s=CONTROL-PLANE:6443, "+
		"or a kubeconfig with such a server (in kind: CLUSTER-control-plane:6443): %v", e.Server, envControlPlane, e.Err)
}

// Unwrap returns why the API server did not answer.
func (e *LoopError) Unwrap() error { return e.Err }

// Connect decides which API server to use and returns how to talk to it.
//
// The addresses are those of --master or --api-servers, and no others; without
// them those of the variable CONTROL_PLANE_ENDPOINT, then the one of the kubeconfig
// or, without a kubeconfig, of the pod's environment. Credentials come from the
// kubeconfig or the pod's service account. Each address is tried in turn; the first
// that answers is used, and later the next one when it stops answering.
//
// That nothing answers is no error: the API server may start after the agent, and
// its clients try again for ever. But if all addresses are that of the Service
// "kubernetes", the error is a *LoopError. The configuration is valid then too, for
// a caller who knows that the rules for that Service are in place.
func Connect(ctx context.Context, api API) (*rest.Config, error) {
	// Over HTTPS, client-go's HTTP/2 pings notice a silent loss within 45 s. These
	// probes do the same for plain HTTP, where a watch would hang for minutes.
	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3},
	}
	return connector{getenv: os.Getenv, inCluster: rest.InClusterConfig, dial: dialer.DialContext}.connect(ctx, api)
}

// connector is what Connect takes from its surroundings.
type connector struct {
	getenv    func(string) string
	inCluster func() (*rest.Config, error)
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c connector) connect(ctx context.Context, api API) (*rest.Config, error) {
	config, err := c.credentials(api)
	if err != nil {
		return nil, err
	}
	servers, err := c.servers(api, config.Host)
	if err != nil {
		return nil, err
	}
	config.Host = servers[0].String()
	config.ContentType = api.ContentType
	config.AcceptContentTypes = api.AcceptContentTypes
	config.QPS = api.QPS
	config.Burst = api.Burst
	config.Dial = c.dial
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to the API server: %w; check the certificates and the token", err)
	}
	first, err := choose(ctx, transport, servers)
	config.Wrap(failover(ctx, servers, first))
	if err != nil && c.areServiceAddresses(servers) {
		return config, &LoopError{Server: servers[0].String(), Err: err}
	}
	return config, nil
}

// credentials returns the configuration of the kubeconfig or of the pod's service
// account, with its server if it names one.
func (c connector) credentials(api API) (*rest.Config, error) {
	if api.Kubeconfig != "" {
		var overrides clientcmd.ConfigOverrides
		if len(api.Servers) > 0 {
			overrides.ClusterInfo.Server = api.Servers[0].String()
		}
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: api.Kubeconfig}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig %s: %w", api.Kubeconfig, err)
		}
		return config, nil
	}
	config, err := c.inCluster()
	switch {
	case err == nil:
		return config, nil
	case !errors.Is(err, rest.ErrNotInCluster) && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the pod's service account: %w", err)
	case len(api.Servers) == 0 && c.getenv(envControlPlane) == "":
		return nil, fmt.Errorf("no API server is known: set --kubeconfig or --api-servers, or use --manifests instead of one: %w", err)
	}
	return &rest.Config{}, nil
}

// servers returns the addresses to try; own is the one that came with the
// credentials, if any.
func (c connector) servers(api API, own string) ([]*url.URL, error) {
	if len(api.Servers) > 0 {
		return api.Servers, nil
	}
	var servers []*url.URL
	for text := range strings.SplitSeq(c.getenv(envControlPlane), ",") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		server, err := parseServer(text)
		if err != nil {
			return nil, fmt.Errorf("the variable %s: %q %w", envControlPlane, text, err)
		}
		servers = append(servers, server)
	}
	if own == "" {
		return servers, nil
	}
	server, err := parseServer(own)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig's server: %q %w", own, err)
	}
	return append(servers, server), nil
}

// areServiceAddresses reports whether all servers are addresses or names of the
// Service "kubernetes".
func (c connector) areServiceAddresses(servers []*url.URL) bool {
	// The kubelet sets the first variable to the Service's address. The second one is
	// the same, unless a manifest sets it to a real server.
	address := c.getenv("KUBERNETES_PORT_443_TCP_ADDR")
	if address == "" {
		address = c.getenv("KUBERNETES_SERVICE_HOST")
	}
	for _, server := range servers {
		host := server.Hostname()
		isName := host == "kubernetes" || host == "kubernetes.default" || strings.HasPrefix(host, "kubernetes.default.svc")
		if !isName && host != address {
			return false
		}
	}
	return true
}

// choose returns the index of the first server that answers. If none does it returns
// 0 and the reasons.
func choose(ctx context.Context, transport http.RoundTripper, servers []*url.URL) (int, error) {
	logger := klog.FromContext(ctx)
	var errs []error
	for i, server := range servers {
		err := probe(ctx, transport, server)
		if err == nil {
			logger.Info("Using API server", "server", server.String(), "choices", len(servers))
			return i, nil
		}
		logger.Error(err, "API server cannot be reached", "server", server.String())
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}

// probe asks a server for its version. Any answer will do, even a refusal: it shows
// that the way there is open and that the certificate is the right one.
func probe(ctx context.Context, transport http.RoundTripper, server *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), nil)
	if err != nil {
		return err
	}
	if server.Scheme != "https" {
		transport = withoutCredentials{transport}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", server, err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	return errors.Join(err, response.Body.Close())
}
