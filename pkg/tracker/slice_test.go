package tracker

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// follow returns what a fresh tracker makes of ns1/s and some slices that arrive in
// the given order, as the lines under the Service port.
func follow(all ...*discoveryv1.EndpointSlice) string {
	tracker := New(model.IPv4, thisNode)
	tracker.ServiceChanged(nil, newService())
	for _, s := range all {
		tracker.EndpointSliceChanged(nil, s)
	}
	snapshot, _ := take(tracker)
	_, endpoints, _ := strings.Cut(snapshot, "\n")
	return lines(endpoints)
}

// mustFollow fails the test unless all orders of the slices give the endpoints.
func mustFollow(t *testing.T, want string, all ...*discoveryv1.EndpointSlice) {
	t.Helper()
	for i := range all {
		order := append(append([]*discoveryv1.EndpointSlice{}, all[i:]...), all[:i]...)
		if got := follow(order...); got != lines(want) {
			t.Errorf("endpoints of %d slices, beginning with %s:\n%s\nwant:\n%s", len(all), order[0].Name, got, lines(want))
		}
	}
}

func TestDuplicateAddresses(t *testing.T) {
	pod := func(e discoveryv1.Endpoint, name, node string) discoveryv1.Endpoint {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "ns1", Name: name}
		e.NodeName = &node
		return e
	}
	ghost := pod(endpointOf("10.244.1.10", new(false), new(false), new(true)), "p1", "n1")
	running := pod(endpointOf("10.244.1.10", new(true), new(true), new(false)), "p2", "n2")
	draining := pod(endpointOf("10.244.1.10", new(false), new(true), new(true)), "p3", "n1")
	created := func(second int64) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.CreationTimestamp = at(second) }
	}
	list := func(all ...discoveryv1.Endpoint) []discoveryv1.Endpoint { return all }

	t.Run("B-29 ghost first in one slice", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(ghost, running)))
	})
	t.Run("B-29 ghost last in one slice", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(running, ghost)))
	})
	t.Run("B-29 over two slices, the newer has the ghost", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(running), created(1)), newSlice("s-2", list(ghost), created(2)))
	})
	t.Run("B-29 over two slices, the older has the ghost", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(ghost), created(1)), newSlice("s-2", list(running), created(2)))
	})
	t.Run("B-29 draining beats a ghost", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080 local draining", newSlice("s-1", list(draining)), newSlice("s-2", list(ghost)))
	})
	t.Run("B-29 running beats draining", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(draining)), newSlice("s-2", list(running)))
	})
	onN1 := pod(running, "p2", "n1")
	t.Run("B-29 in transit: the newer slice counts", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080 local", newSlice("s-1", list(onN1), created(2)), newSlice("s-2", list(running), created(1)))
	})
	t.Run("B-29 in transit: slices of one age", func(t *testing.T) {
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(onN1)), newSlice("s-2", list(running)))
	})
	t.Run("item 3 the same pod, usable in one slice only", func(t *testing.T) {
		unready := pod(endpointOf("10.244.1.10", new(false), new(false), new(false)), "p2", "n2")
		mustFollow(t, "10.244.1.10:8080", newSlice("s-1", list(running), created(1)), newSlice("s-2", list(unready), created(2)))
	})
	t.Run("the ghost is what is left", func(t *testing.T) {
		tracker := New(model.IPv4, thisNode)
		tracker.ServiceChanged(nil, newService())
		tracker.EndpointSliceChanged(nil, newSlice("s-1", list(ghost)))
		tracker.EndpointSliceChanged(nil, newSlice("s-2", list(running)))
		take(tracker)
		tracker.EndpointSliceChanged(newSlice("s-2", list(running)), nil)
		expect(t, tracker, "ns1/s:http TCP at 10.96.0.80:80\n10.244.1.10:8080 local unready", "ns1/s:http/TCP")
	})
	t.Run("B-30 one address, two ports", func(t *testing.T) {
		mustFollow(t, "10.0.0.1:8080 local\n10.0.0.1:8081 local",
			newSlice("s-1", ready("10.0.0.1")),
			newSlice("s-2", ready("10.0.0.1"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = new(int32(8081)) }))
	})
}

func TestNilFields(t *testing.T) {
	slicePorts := func(all ...discoveryv1.EndpointPort) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Ports = all }
	}
	good := newSlice("good", ready("10.244.2.10"))
	tests := []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		want   string // endpoints beside that of the good slice
	}{
		{"B-31 ports null", slicePorts(), ""},
		{"B-31 no ports", func(s *discoveryv1.EndpointSlice) { s.Ports = []discoveryv1.EndpointPort{} }, ""},
		{"B-31 port without a number", slicePorts(discoveryv1.EndpointPort{Name: new("http")}), ""},
		{"B-31 port 0", slicePorts(discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(0))}), ""},
		{"B-31 port beyond all ports", slicePorts(discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(70000))}), ""},
		{"B-31 protocol null is TCP", slicePorts(discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(8080))}), "10.244.1.10:8080 local"},
		{"B-31 name null is not http", slicePorts(discoveryv1.EndpointPort{Port: new(int32(8080))}), ""},
		{"B-31 no addresses", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil }, ""},
		{"B-31 two addresses", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.244.1.10", "10.244.1.11"} }, "10.244.1.10:8080 local"},
		{"B-31 no label", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, ""},
		{"B-31 empty label", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "" }, ""},
		{"B-31 FQDN", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, ""},
		{"B-31 no address type", func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }, ""},
		{"B-31 no node name", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = nil }, "10.244.1.10:8080"},
		{"B-31 no endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, ""},
		{"B-36 IPv6 slice", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6, []string{"fd00:244:1::10"}
		}, ""},
		{"B-36 IPv6 address in an IPv4 slice", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"fd00:244:1::10"} }, ""},
		{"item 13 leading zeros", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"010.244.001.010"} }, "10.244.1.10:8080 local"},
		{"item 13 IPv6 form", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"::ffff:10.244.1.10"} }, "10.244.1.10:8080 local"},
		{"B-32 no conditions", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{} }, "10.244.1.10:8080 local"},
		{"B-32 ready but not serving", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = new(false) }, "10.244.1.10:8080 local"},
		{"B-32 terminating without the other conditions", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)}
		}, "10.244.1.10:8080 local draining"},
		{"hints", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Hints = &discoveryv1.EndpointHints{
				ForZones: []discoveryv1.ForZone{{Name: "zone-b"}, {Name: "zone-a"}},
				ForNodes: []discoveryv1.ForNode{{Name: "n2"}, {Name: "n1"}},
			}
		}, "10.244.1.10:8080 local for zone-a,zone-b,n1,n2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bad := newSlice("bad", ready("10.244.1.10"), test.change)
			mustFollow(t, test.want+"\n10.244.2.10:8080", good, bad)
		})
	}
}

func TestUnnamedPort(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	tracker.ServiceChanged(nil, newService(func(s *corev1.Service) { s.Spec.Ports[0].Name = "" }))
	tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = nil }))
	tracker.EndpointSliceChanged(nil, newSlice("s-2", ready("10.244.1.11"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("") }))
	expect(t, tracker, `
		ns1/s TCP at 10.96.0.80:80
		10.244.1.10:8080 local
		10.244.1.11:8080 local`, "ns1/s/TCP")
}

// Endpoints stand in the order in which kube-proxy's rules do, that of their text.
func TestEndpointOrder(t *testing.T) {
	mustFollow(t, "10.244.1.10:8080 local\n10.244.1.9:8080 local\n10.244.2.1:8080",
		newSlice("s-1", ready("10.244.1.9", "10.244.2.1")), newSlice("s-2", ready("10.244.1.10")))
}

func TestSlicesOfOneNameInTwoNamespaces(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	tracker.ServiceChanged(nil, newService())
	tracker.EndpointSliceChanged(nil, newSlice("x", ready("10.244.1.10")))
	tracker.EndpointSliceChanged(nil, newSlice("x", ready("10.244.1.11"), func(s *discoveryv1.EndpointSlice) { s.Namespace = "ns2" }))
	expect(t, tracker, "ns1/s:http TCP at 10.96.0.80:80\n10.244.1.10:8080 local", "ns1/s:http/TCP")
}
