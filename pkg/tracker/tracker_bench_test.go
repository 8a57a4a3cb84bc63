package tracker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// many returns Services with one slice of ten endpoints each.
func many(n int) ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	var services []*corev1.Service
	var slices []*discoveryv1.EndpointSlice
	for i := range n {
		name := fmt.Sprint("s", i)
		services = append(services, newService(func(s *corev1.Service) {
			s.Name = name
			s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250)}
		}))
		slices = append(slices, manyEndpoints(name, i))
	}
	return services, slices
}

// manyEndpoints returns a slice of a Service with ten endpoints, from number first on.
func manyEndpoints(service string, first int) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for j := range 10 {
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", 2+first/25%250, first%25*10+j)}})
	}
	return newSlice(service+"-1", endpoints, func(s *discoveryv1.EndpointSlice) {
		s.Labels[discoveryv1.LabelServiceName] = service
	})
}

// track returns a tracker that knows n Services and has been asked for them.
func track(n int) *Tracker {
	t := New(model.IPv4, thisNode)
	services, slices := many(n)
	for i := range services {
		t.ServiceChanged(nil, services[i])
		t.EndpointSliceChanged(nil, slices[i])
	}
	t.Take()
	return t
}

// TestChangeAllocations pins that a change costs the same however much else there is.
func TestChangeAllocations(t *testing.T) {
	cost := func(services int) float64 {
		tr := track(services)
		variants := []*discoveryv1.EndpointSlice{manyEndpoints("s7", 8), manyEndpoints("s7", 9)}
		i := 0
		return testing.AllocsPerRun(20, func() {
			i++
			if !tr.EndpointSliceChanged(nil, variants[i%2]) {
				t.Error("no change")
			}
			if _, changes := tr.Take(); len(changes.ServicePorts) != 1 {
				t.Errorf("changed: %v, want one Service port", changes.ServicePorts)
			}
		})
	}
	few, lots := cost(10), cost(1000)
	t.Logf("a change among 10 Services: %.0f allocations, among 1,000: %.0f", few, lots)
	if lots > 20 || few > 20 {
		t.Errorf("got %.0f and %.0f allocations, want at most 20", few, lots)
	}
}

func BenchmarkChange(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			tr := track(services)
			variants := []*discoveryv1.EndpointSlice{manyEndpoints("s7", 8), manyEndpoints("s7", 9)}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				tr.EndpointSliceChanged(nil, variants[i%2])
				tr.Take()
			}
		})
	}
}

func BenchmarkStart(b *testing.B) {
	services, slices := many(1000)
	b.ReportAllocs()
	for b.Loop() {
		t := New(model.IPv4, thisNode)
		for i := range services {
			t.ServiceChanged(nil, services[i])
			t.EndpointSliceChanged(nil, slices[i])
		}
		t.Take()
	}
}
