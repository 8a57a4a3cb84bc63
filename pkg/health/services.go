package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/httpserver"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// bindRetry is the pause before a health-check node port that could not be bound
// is tried again.
const bindRetry = 5 * time.Second

// Check is what a Service's health-check node port shall be: where, and how many
// endpoints it has to report.
type Check struct {
	Port uint16
	// Endpoints is the number of addresses of ready endpoints on this node.
	Endpoints int
	// UID is the Service object's, for who reports about it.
	UID string
}

// ServiceChecks returns the health-check node ports that the snapshot asks for.
//
// An address counts once, however many ports of the Service it stands behind. An
// endpoint that only drains does not count although it still gets traffic, so that
// the balancer stops sending new connections here while it can (KEP-1669).
func ServiceChecks(snap model.Snapshot) map[model.ServiceName]Check {
	ready := map[model.ServiceName]map[netip.Addr]struct{}{}
	checks := map[model.ServiceName]Check{}
	for name, port := range snap.Services {
		if port.HealthCheckNodePort == 0 {
			continue
		}
		checks[name.ServiceName] = Check{Port: port.HealthCheckNodePort, UID: port.UID}
		for _, ep := range snap.Endpoints[name] {
			if !ep.Local || !ep.Ready {
				continue
			}
			if ready[name.ServiceName] == nil {
				ready[name.ServiceName] = map[netip.Addr]struct{}{}
			}
			ready[name.ServiceName][ep.Addr.Addr()] = struct{}{}
		}
	}
	for name, check := range checks {
		check.Endpoints = len(ready[name])
		checks[name] = check
	}
	return checks
}

// BindFailure is called with a health-check node port that cannot be listened on:
// once, until it succeeds or is no longer asked for.
type BindFailure func(svc model.ServiceName, check Check, err error)

// Services serves the health-check node ports of one family: per Service a port on
// which a load balancer asks whether this node has endpoints for it.
type Services struct {
	healthy func() bool
	failed  BindFailure

	mu        sync.Mutex
	closed    bool
	addresses []netip.Addr
	checks    map[model.ServiceName]Check
	open      map[socket]*listener
	failing   map[socket]bool
}

// socket is one address and port that one Service's checks are answered on.
type socket struct {
	service model.ServiceName
	address netip.AddrPort
}

// NewServices returns a server without any port. healthy says whether the node's
// rules can be relied on (State.Healthy); failed may be nil.
func NewServices(healthy func() bool, failed BindFailure) *Services {
	return &Services{
		healthy: healthy, failed: failed,
		checks: map[model.ServiceName]Check{}, open: map[socket]*listener{}, failing: map[socket]bool{},
	}
}

// Sync makes the ports be as checks says, on each of the addresses (an unspecified
// address, 0.0.0.0 or ::, is every address of its family). What is no longer asked
// for is closed before anything is opened, so that a port can go from one Service
// to another. A port that cannot be bound is reported and tried again by Run and by
// the next Sync; the others are not affected.
func (s *Services) Sync(ctx context.Context, addresses []netip.Addr, checks map[model.ServiceName]Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses, s.checks = slices.Clone(addresses), checks
	s.reconcile(ctx)
}

// Run tries ports again that could not be bound, until ctx is done; then it closes
// all of them.
func (s *Services) Run(ctx context.Context) {
	tick := time.NewTicker(bindRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.close(ctx)
			return
		case <-tick.C:
			s.retry(ctx)
		}
	}
}

func (s *Services) retry(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failing) > 0 {
		s.reconcile(ctx)
	}
}

func (s *Services) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks = nil
	s.reconcile(ctx)
	s.closed = true
}

// reconcile closes and opens sockets until they are those that checks ask for.
func (s *Services) reconcile(ctx context.Context) {
	if s.closed {
		return
	}
	want := map[socket]bool{}
	for name, check := range s.checks {
		for _, addr := range s.addresses {
			want[socket{name, netip.AddrPortFrom(addr, check.Port)}] = true
		}
	}
	for sock, l := range s.open {
		if !want[sock] {
			l.close()
			delete(s.open, sock)
			klog.FromContext(ctx).V(2).Info("Closed health-check node port", "service", sock.service, "address", sock.address)
		}
	}
	for sock := range s.failing {
		if !want[sock] {
			delete(s.failing, sock)
		}
	}
	for sock := range want {
		if s.open[sock] == nil {
			s.listen(ctx, sock)
		}
	}
}

func (s *Services) listen(ctx context.Context, sock socket) {
	logger := klog.FromContext(ctx)
	l, err := open(ctx, sock.address, s.handler(sock.service))
	if err != nil {
		if !s.failing[sock] {
			s.failing[sock] = true
			logger.Error(err, "Cannot open health-check node port, will keep trying", "service", sock.service, "retryEvery", bindRetry)
			if s.failed != nil {
				s.failed(sock.service, s.checks[sock.service], err)
			}
		}
		return
	}
	delete(s.failing, sock)
	s.open[sock] = l
	logger.V(2).Info("Opened health-check node port", "service", sock.service, "address", sock.address)
}

// checkBody is what a health-check node port answers, kube-proxy's.
type checkBody struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers for one Service. A request can be under way while its Service
// goes: then there are no endpoints, and the answer is 503 like any other without.
func (s *Services) handler(name model.ServiceName) http.Handler {
	return httpserver.ReadOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		count := s.checks[name].Endpoints
		s.mu.Unlock()

		body := checkBody{LocalEndpoints: count, ServiceProxyHealthy: s.healthy()}
		body.Service.Namespace, body.Service.Name = name.Namespace, name.Name
		text, err := json.MarshalIndent(body, "", "\t")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
		write(w, err == nil && count > 0 && body.ServiceProxyHealthy, text)
	}))
}

// listener is a bound port with its server.
type listener struct {
	net.Listener
	server *http.Server
	done   chan struct{}
}

// open listens on address and serves handler there until close. The network names
// the family, so that the two families' "all addresses" do not collide.
func open(ctx context.Context, address netip.AddrPort, handler http.Handler) (*listener, error) {
	network := "tcp6"
	if address.Addr().Is4() {
		network = "tcp4"
	}
	var lc net.ListenConfig
	bound, err := lc.Listen(ctx, network, address.String())
	if err != nil {
		return nil, fmt.Errorf("open health-check node port: %w", err)
	}
	l := &listener{Listener: bound, server: httpserver.New(handler, httpserver.DefaultWriteTimeout), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		if err := l.server.Serve(bound); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			klog.FromContext(ctx).Error(err, "Health-check node port stopped answering", "address", address)
		}
	}()
	return l, nil
}

// close frees the port before it returns and cuts what is connected.
func (l *listener) close() {
	// The server closes its listener too, but not if Serve has not come so far.
	_ = l.Listener.Close() // either of the two closes it first
	_ = l.server.Close()   // likewise
	<-l.done
}
