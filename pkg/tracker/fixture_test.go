package tracker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// The address plan:
//
//	10.0.0.0/24, fd00::/64            nodes; n1 is the one under test
//	10.244.1.0/24, fd00:244:1::/64    pods on n1
//	10.244.2.0/24, fd00:244:2::/64    pods on n2
//	10.96.0.0/16, fd00:96::/112       cluster IPs
//	10.50.0.0/16, fd00:50::/32        load balancer IPs
//	10.60.0.0/16, fd00:60::/32        external IPs
//	10.9.0.0/16, fd00:9::/32          clients outside
const thisNode = "n1"

// newService returns the Service ns1/s: port http, TCP 80, cluster IP 10.96.0.80.
func newService(changes ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: "s"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.80",
			ClusterIPs: []string{"10.96.0.80"},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	return svc
}

// newSlice returns a slice of ns1/s: port http, TCP 8080, with the given endpoints.
func newSlice(name string, endpoints []discoveryv1.Endpoint, changes ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1",
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: "s"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// ready returns ready endpoints, on n1 or n2 as the address plan has it.
func ready(addresses ...string) []discoveryv1.Endpoint {
	var endpoints []discoveryv1.Endpoint
	for _, address := range addresses {
		endpoints = append(endpoints, endpointOf(address, new(true), new(true), new(false)))
	}
	return endpoints
}

func endpointOf(address string, ready, serving, terminating *bool) discoveryv1.Endpoint {
	node := "n1"
	if strings.HasPrefix(address, "10.244.2.") || strings.HasPrefix(address, "fd00:244:2:") {
		node = "n2"
	}
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		NodeName:   &node,
		Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating},
	}
}

// describe writes a snapshot as lines that can be compared: each Service port with
// its frontends, and its endpoints with what is remarkable about them.
func describe(s model.Snapshot) string {
	var b strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(s.Services), model.ServicePortName.Compare) {
		p := s.Services[name]
		fmt.Fprintf(&b, "%s %s at %s:%d\n", name, name.Protocol, p.ClusterIP, p.Port)
		for _, e := range s.Endpoints[name] {
			fmt.Fprintf(&b, "  %s%s\n", e.Addr, remarks(e))
		}
	}
	return b.String()
}

func remarks(e model.Endpoint) string {
	var remarks string
	if e.Local {
		remarks += " local"
	}
	switch {
	case !e.Ready && e.Serving && e.Terminating:
		remarks += " draining"
	case !e.Ready:
		remarks += " unready"
	}
	if hints := slices.Concat(e.ZoneHints, e.NodeHints); len(hints) > 0 {
		remarks += " for " + strings.Join(hints, ",")
	}
	return remarks
}

// take takes the snapshot and returns it as text, and the names that changed.
func take(t *Tracker) (snapshot, changed string) {
	s, c := t.Take()
	var names []string
	for _, name := range c.ServicePorts {
		names = append(names, name.String()+"/"+string(name.Protocol))
	}
	return describe(s), strings.Join(names, " ")
}

// expect fails the test unless the next snapshot and changes are as given. Lines may
// be indented.
func expect(t *testing.T, tracker *Tracker, snapshot, changed string) {
	t.Helper()
	gotSnapshot, gotChanged := take(tracker)
	if want := lines(snapshot); lines(gotSnapshot) != want {
		t.Errorf("snapshot:\n%s\nwant:\n%s", lines(gotSnapshot), want)
	}
	if gotChanged != changed {
		t.Errorf("changed: %q, want %q", gotChanged, changed)
	}
}

// lines is a text without indentation and blank lines.
func lines(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func at(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(1_800_000_000+seconds, 0)) }
