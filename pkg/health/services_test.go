package health

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
)

var (
	localhost = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	svcA      = model.ServiceName{Namespace: "ns1", Name: "a"}
	svcB      = model.ServiceName{Namespace: "ns1", Name: "b"}
)

func healthy() bool { return true }

// freePorts are ports of 127.0.0.1 on which nothing listens.
func freePorts(t *testing.T, n int) []uint16 {
	t.Helper()
	ports := make([]uint16, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = netip.MustParseAddrPort(l.Addr().String()).Port()
	}
	return ports
}

func url(port uint16) string { return "http://127.0.0.1:" + strconv.Itoa(int(port)) + "/any/path" }

// check asks a health-check node port; 0 means that nobody listens.
func check(t *testing.T, port uint16) (code int, weight, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url(port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return 0, "", ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(text)
}

func wantCode(t *testing.T, port uint16, want int) {
	t.Helper()
	if got, _, _ := check(t, port); got != want {
		t.Errorf("port %d answers %d, want %d", port, got, want)
	}
}

// newServices returns a server that is closed at the end of the test.
func newServices(t *testing.T, healthy func() bool, failed BindFailure) *Services {
	t.Helper()
	s := NewServices(healthy, failed)
	t.Cleanup(func() { s.close(context.WithoutCancel(t.Context())) })
	return s
}

// TestServiceAnswers is B-16: the last local endpoint moves, the agent gets sick,
// the Service goes.
func TestServiceAnswers(t *testing.T) {
	port := freePorts(t, 1)[0]
	var sick atomic.Bool
	s := newServices(t, func() bool { return !sick.Load() }, nil)

	s.Sync(t.Context(), localhost, map[model.ServiceName]Check{svcA: {Port: port, Endpoints: 3}})
	code, weight, body := check(t, port)
	wantBody := "{\n\t\"service\": {\n\t\t\"namespace\": \"ns1\",\n\t\t\"name\": \"a\"\n\t},\n\t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": true\n}"
	if code != 200 || weight != "3" || body != wantBody {
		t.Errorf("with endpoints: got %d, weight %q, body %s", code, weight, body)
	}

	sick.Store(true)
	wantCode(t, port, 503)
	sick.Store(false)

	s.Sync(t.Context(), localhost, map[model.ServiceName]Check{svcA: {Port: port}})
	if code, weight, _ := check(t, port); code != 503 || weight != "0" {
		t.Errorf("without endpoints: got %d, weight %q, want 503 and 0", code, weight)
	}

	s.Sync(t.Context(), localhost, nil)
	wantCode(t, port, 0)
}

// A request that was accepted before its Service went must not be told 200 (B-16).
func TestServiceGoneDuringRequest(t *testing.T) {
	s := newServices(t, healthy, nil)
	handler := s.handler(svcA)
	s.Sync(t.Context(), nil, map[model.ServiceName]Check{svcA: {Port: 32000, Endpoints: 1}})
	answerOf := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		return w.Code
	}
	if got := answerOf(); got != 200 {
		t.Fatalf("got %d while the Service exists, want 200", got)
	}
	s.Sync(t.Context(), nil, nil)
	if got := answerOf(); got != 503 {
		t.Errorf("got %d after the Service went, want 503", got)
	}
}

func TestPortsChange(t *testing.T) {
	ports := freePorts(t, 3)
	s := newServices(t, healthy, func(svc model.ServiceName, check Check, err error) {
		t.Errorf("%s could not bind %d: %v", svc, check.Port, err)
	})
	steps := []map[model.ServiceName]Check{
		{svcA: {Port: ports[0], Endpoints: 1}, svcB: {Port: ports[1], Endpoints: 1}},
		{svcA: {Port: ports[1], Endpoints: 1}, svcB: {Port: ports[0], Endpoints: 1}}, // swapped
		{svcA: {Port: ports[2], Endpoints: 1}},
	}
	for _, checks := range steps {
		s.Sync(t.Context(), localhost, checks)
		open := map[uint16]bool{}
		for _, c := range checks {
			open[c.Port] = true
		}
		for _, port := range ports {
			want := 0
			if open[port] {
				want = 200
			}
			wantCode(t, port, want)
		}
	}
}

// B-17: listeners are on the given addresses only, and follow them.
func TestAddresses(t *testing.T) {
	port := freePorts(t, 1)[0]
	s := newServices(t, healthy, nil)
	checks := map[model.ServiceName]Check{svcA: {Port: port, Endpoints: 1}}

	s.Sync(t.Context(), []netip.Addr{netip.MustParseAddr("127.0.0.2")}, checks)
	wantCode(t, port, 0)
	s.Sync(t.Context(), localhost, checks)
	wantCode(t, port, 200)
	// All addresses of both families at once do not get in each other's way.
	s.Sync(t.Context(), []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, checks)
	wantCode(t, port, 200)
	if got := len(s.open); got != 2 {
		t.Errorf("got %d listeners, want one for each family", got)
	}
}

// B-17: a port that is taken is reported once, tried again, and hurts nobody else.
func TestBindFailure(t *testing.T) {
	ports := freePorts(t, 2)
	holder, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(int(ports[0])))
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	var reports []string
	s := newServices(t, healthy, func(svc model.ServiceName, check Check, err error) {
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("got %v, want address in use", err)
		}
		reports = append(reports, svc.String()+" "+strconv.Itoa(int(check.Port)))
	})
	checks := map[model.ServiceName]Check{svcA: {Port: ports[0], Endpoints: 1}, svcB: {Port: ports[1], Endpoints: 1}}
	s.Sync(t.Context(), localhost, checks)
	s.Sync(t.Context(), localhost, checks)
	s.retry(t.Context())
	wantCode(t, ports[1], 200)
	if want := "ns1/a " + strconv.Itoa(int(ports[0])); len(reports) != 1 || reports[0] != want {
		t.Errorf("got reports %q, want one: %q", reports, want)
	}

	holder.Close()
	s.retry(t.Context())
	wantCode(t, ports[0], 200)
}

// An agent that restarts its parts must find the ports free (B-17).
func TestRunClosesEverything(t *testing.T) {
	port := freePorts(t, 1)[0]
	s := NewServices(healthy, nil)
	checks := map[model.ServiceName]Check{svcA: {Port: port, Endpoints: 1}}
	s.Sync(t.Context(), localhost, checks)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx)
	wantCode(t, port, 0)
	s.Sync(t.Context(), localhost, checks)
	wantCode(t, port, 0)
}

func TestServiceChecks(t *testing.T) {
	addr := netip.MustParseAddrPort
	portOf := func(name string) model.ServicePortName {
		return model.ServicePortName{ServiceName: svcA, Port: name, Protocol: model.TCP}
	}
	with := model.ServicePort{HealthCheckNodePort: 32000}
	for _, tc := range []struct {
		name string
		snap model.Snapshot
		want map[model.ServiceName]Check
	}{
		{
			name: "no health-check node port",
			snap: model.Snapshot{Services: map[model.ServicePortName]model.ServicePort{portOf(""): {}}},
		},
		{
			name: "no endpoints",
			snap: model.Snapshot{Services: map[model.ServicePortName]model.ServicePort{portOf(""): with}},
			want: map[model.ServiceName]Check{svcA: {Port: 32000}},
		},
		{
			name: "ready ones of this node count",
			snap: model.Snapshot{
				Services: map[model.ServicePortName]model.ServicePort{portOf(""): with},
				Endpoints: map[model.ServicePortName][]model.Endpoint{portOf(""): {
					{Addr: addr("10.244.1.10:8080"), Local: true, Ready: true, Serving: true},
					{Addr: addr("10.244.1.11:8080"), Local: true, Serving: true, Terminating: true},
					{Addr: addr("10.244.1.12:8080"), Local: true},
					{Addr: addr("10.244.2.10:8080"), Ready: true, Serving: true},
				}},
			},
			want: map[model.ServiceName]Check{svcA: {Port: 32000, Endpoints: 1}},
		},
		{
			name: "a pod counts once for all ports",
			snap: model.Snapshot{
				Services: map[model.ServicePortName]model.ServicePort{portOf("http"): with, portOf("https"): with},
				Endpoints: map[model.ServicePortName][]model.Endpoint{
					portOf("http"):  {{Addr: addr("10.244.1.10:8080"), Local: true, Ready: true}, {Addr: addr("10.244.1.10:8081"), Local: true, Ready: true}},
					portOf("https"): {{Addr: addr("10.244.1.10:8443"), Local: true, Ready: true}, {Addr: addr("10.244.1.11:8443"), Local: true, Ready: true}},
				},
			},
			want: map[model.ServiceName]Check{svcA: {Port: 32000, Endpoints: 2}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ServiceChecks(tc.snap); !maps.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
