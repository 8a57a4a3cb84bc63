package tracker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

func TestServiceAndSliceInAnyOrder(t *testing.T) {
	const both = `
		ns1/s:http TCP at 10.96.0.80:80
		10.244.1.10:8080 local
		10.244.2.10:8080`
	t.Run("Service first", func(t *testing.T) {
		tracker := New(model.IPv4, thisNode)
		tracker.ServiceChanged(nil, newService())
		expect(t, tracker, "ns1/s:http TCP at 10.96.0.80:80", "ns1/s:http/TCP")
		tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.2.10", "10.244.1.10")))
		expect(t, tracker, both, "ns1/s:http/TCP")
	})
	t.Run("slice first", func(t *testing.T) {
		tracker := New(model.IPv4, thisNode)
		tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.2.10", "10.244.1.10")))
		expect(t, tracker, "", "")
		tracker.ServiceChanged(nil, newService())
		expect(t, tracker, both, "ns1/s:http/TCP")
	})
	t.Run("slice deleted and made again", func(t *testing.T) {
		tracker := New(model.IPv4, thisNode)
		slice := newSlice("s-1", ready("10.244.2.10", "10.244.1.10"))
		tracker.ServiceChanged(nil, newService())
		tracker.EndpointSliceChanged(nil, slice)
		expect(t, tracker, both, "ns1/s:http/TCP")
		tracker.EndpointSliceChanged(slice, nil)
		expect(t, tracker, "ns1/s:http TCP at 10.96.0.80:80", "ns1/s:http/TCP")
		tracker.EndpointSliceChanged(nil, slice)
		expect(t, tracker, both, "ns1/s:http/TCP")
	})
	t.Run("Service deleted before its slice", func(t *testing.T) {
		tracker := New(model.IPv4, thisNode)
		tracker.ServiceChanged(nil, newService())
		tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.1.10")))
		take(tracker)
		tracker.ServiceChanged(newService(), nil)
		expect(t, tracker, "", "ns1/s:http/TCP")
		tracker.EndpointSliceChanged(newSlice("s-1", nil), nil)
		expect(t, tracker, "", "")
	})
}

func TestSliceMovesBetweenServices(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	other := newService(func(s *corev1.Service) { s.Name = "t"; s.Spec.ClusterIPs = []string{"10.96.0.81"} })
	tracker.ServiceChanged(nil, newService())
	tracker.ServiceChanged(nil, other)
	before := newSlice("x", ready("10.244.1.10"))
	tracker.EndpointSliceChanged(nil, before)
	take(tracker)

	after := newSlice("x", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "t" })
	if !tracker.EndpointSliceChanged(before, after) {
		t.Error("a move was not reported")
	}
	expect(t, tracker, `
		ns1/s:http TCP at 10.96.0.80:80
		ns1/t:http TCP at 10.96.0.81:80
		10.244.1.10:8080 local`, "ns1/s:http/TCP ns1/t:http/TCP")

	unlabelled := newSlice("x", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) { s.Labels = nil })
	tracker.EndpointSliceChanged(after, unlabelled)
	expect(t, tracker, `
		ns1/s:http TCP at 10.96.0.80:80
		ns1/t:http TCP at 10.96.0.81:80`, "ns1/t:http/TCP")
}

func TestUpdateIsMoreThanAddition(t *testing.T) {
	port := func(change func(*corev1.ServicePort)) func(*corev1.Service) {
		return func(s *corev1.Service) { change(&s.Spec.Ports[0]) }
	}
	withEndpoint := `
		ns1/s:http TCP at 10.96.0.80:80
		10.244.1.10:8080 local`
	start := func() *Tracker {
		tracker := New(model.IPv4, thisNode)
		tracker.ServiceChanged(nil, newService())
		tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.1.10")))
		take(tracker)
		return tracker
	}
	t.Run("B-86 port renamed, the slice follows", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), newService(port(func(p *corev1.ServicePort) { p.Name = "web" })))
		expect(t, tracker, "ns1/s:web TCP at 10.96.0.80:80", "ns1/s:http/TCP ns1/s:web/TCP")
		tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("web") }))
		expect(t, tracker, `
			ns1/s:web TCP at 10.96.0.80:80
			10.244.1.10:8080 local`, "ns1/s:web/TCP")
	})
	t.Run("B-86 protocol changed", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), newService(port(func(p *corev1.ServicePort) { p.Protocol = corev1.ProtocolUDP })))
		expect(t, tracker, "ns1/s:http UDP at 10.96.0.80:80", "ns1/s:http/TCP ns1/s:http/UDP")
	})
	t.Run("B-86 node port changed", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), newService(port(func(p *corev1.ServicePort) { p.NodePort = 30081 })))
		expect(t, tracker, withEndpoint, "ns1/s:http/TCP")
	})
	t.Run("B-86 another Service takes over the cluster IP", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), nil)
		tracker.ServiceChanged(nil, newService(func(s *corev1.Service) { s.Name = "t" }))
		expect(t, tracker, "ns1/t:http TCP at 10.96.0.80:80", "ns1/s:http/TCP ns1/t:http/TCP")
	})
	t.Run("B-86 deleted and made again in one batch", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), nil)
		tracker.ServiceChanged(nil, newService(port(func(p *corev1.ServicePort) { p.Port = 81 })))
		expect(t, tracker, `
			ns1/s:http TCP at 10.96.0.80:81
			10.244.1.10:8080 local`, "ns1/s:http/TCP")
	})
	t.Run("becomes headless", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), newService(func(s *corev1.Service) { s.Spec.ClusterIPs = []string{corev1.ClusterIPNone} }))
		expect(t, tracker, "", "ns1/s:http/TCP")
	})
	t.Run("becomes an ExternalName", func(t *testing.T) {
		tracker := start()
		tracker.ServiceChanged(newService(), newService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }))
		expect(t, tracker, "", "ns1/s:http/TCP")
	})
	t.Run("one of two ports goes", func(t *testing.T) {
		tracker := start()
		two := newService(func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 9100})
		})
		tracker.ServiceChanged(newService(), two)
		expect(t, tracker, withEndpoint+"\nns1/s:metrics TCP at 10.96.0.80:9100", "ns1/s:metrics/TCP")
		tracker.ServiceChanged(two, newService())
		expect(t, tracker, withEndpoint, "ns1/s:metrics/TCP")
	})
}

func TestChangeTakenBackIsNoChange(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	slice := newSlice("s-1", ready("10.244.1.10"))
	tracker.ServiceChanged(nil, newService())
	tracker.EndpointSliceChanged(nil, slice)
	want, _ := take(tracker)

	changed := newService(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 })
	tracker.ServiceChanged(newService(), changed)
	tracker.ServiceChanged(changed, newService())
	expect(t, tracker, want, "")

	tracker.EndpointSliceChanged(slice, nil)
	tracker.EndpointSliceChanged(nil, slice)
	expect(t, tracker, want, "")

	tracker.ServiceChanged(newService(), nil)
	tracker.ServiceChanged(nil, newService())
	expect(t, tracker, want, "")

	gone := newService(func(s *corev1.Service) { s.Name = "t" })
	tracker.ServiceChanged(nil, gone)
	tracker.ServiceChanged(gone, nil)
	expect(t, tracker, want, "")
}

func TestSameAgainIsNoChange(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	slice := newSlice("s-1", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("a"), Port: new(int32(1))})
	})
	for i, want := range []bool{true, false} {
		if got := tracker.ServiceChanged(nil, newService()); got != want {
			t.Errorf("delivery %d of the Service: changed = %v, want %v", i+1, got, want)
		}
		if got := tracker.EndpointSliceChanged(nil, slice); got != want {
			t.Errorf("B-33 delivery %d of the slice: changed = %v, want %v", i+1, got, want)
		}
		if got := tracker.NodeChanged(nil, newNode()); got != want {
			t.Errorf("delivery %d of the Node: changed = %v, want %v", i+1, got, want)
		}
	}
	if services, endpoints := tracker.Pending(); services != 1 || endpoints != 1 {
		t.Errorf("Pending() = %d, %d, want 1, 1", services, endpoints)
	}
	take(tracker)
	if services, endpoints := tracker.Pending(); services != 0 || endpoints != 0 {
		t.Errorf("Pending() = %d, %d after Take, want 0, 0", services, endpoints)
	}
}

// TestNoMemoryOfGoneNames is B-34: names that come and go must not add up.
func TestNoMemoryOfGoneNames(t *testing.T) {
	count := 100_000
	if testing.Short() {
		count = 2_000
	}
	tracker := New(model.IPv4, thisNode)
	named := func(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
		name := fmt.Sprintf("s%d", i)
		return newService(func(s *corev1.Service) { s.Name = name }),
			newSlice(name+"-1", ready("10.244.1.10"), func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = name })
	}
	for i := range count {
		svc, slice := named(i)
		tracker.ServiceChanged(nil, svc)
		tracker.EndpointSliceChanged(nil, slice)
		if i%3 == 0 { // the others go before anybody has looked
			tracker.Take()
		}
		if i%2 == 0 {
			tracker.EndpointSliceChanged(slice, nil)
			tracker.ServiceChanged(svc, nil)
		} else {
			tracker.ServiceChanged(svc, nil)
			tracker.EndpointSliceChanged(slice, nil)
		}
		if i%1000 == 0 {
			tracker.Take()
		}
	}
	snapshot, _ := tracker.Take()
	for what, n := range map[string]int{
		"services":           len(tracker.services),
		"owners":             len(tracker.owners),
		"pending services":   len(tracker.pendingServices),
		"pending endpoints":  len(tracker.pendingEndpoints),
		"triggers":           len(tracker.triggers),
		"snapshot services":  len(snapshot.Services),
		"snapshot endpoints": len(snapshot.Endpoints),
	} {
		if n != 0 {
			t.Errorf("B-34 %d entries are left in %s", n, what)
		}
	}
}

func TestTriggers(t *testing.T) {
	caused := func(name string, second int64, address string) *discoveryv1.EndpointSlice {
		return newSlice(name, ready(address), func(s *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at(second).UTC().Format(time.RFC3339Nano)}
		})
	}
	tracker := New(model.IPv4, thisNode)
	tracker.ServiceChanged(nil, newService())
	tracker.EndpointSliceChanged(nil, caused("s-1", 1, "10.244.1.10"))
	if _, changes := tracker.Take(); len(changes.Triggers) != 0 {
		t.Errorf("what was there at the start was caused at %v; it is no change", changes.Triggers)
	}
	tracker.EndpointSliceChanged(nil, caused("s-1", 1, "10.244.1.10")) // the same again
	tracker.EndpointSliceChanged(nil, caused("s-1", 2, "10.244.1.11"))
	tracker.EndpointSliceChanged(nil, caused("s-2", 3, "10.244.1.12"))
	tracker.EndpointSliceChanged(nil, newSlice("s-3", ready("10.244.1.13")))
	_, changes := tracker.Take()
	want := []time.Time{at(2).Time, at(3).Time}
	if !slices.EqualFunc(changes.Triggers, want, time.Time.Equal) {
		t.Errorf("Triggers = %v, want %v", changes.Triggers, want)
	}
	if _, changes := tracker.Take(); len(changes.Triggers) != 0 {
		t.Errorf("Triggers = %v in the next call, want none", changes.Triggers)
	}
}

// TestTakeLosesNothing is B-40: whatever arrives while snapshots are taken, what each
// of them says has changed adds up to the last one.
func TestTakeLosesNothing(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	seen := model.Snapshot{Services: map[model.ServicePortName]model.ServicePort{}, Endpoints: map[model.ServicePortName][]model.Endpoint{}}
	follow := func() {
		snapshot, changes := tracker.Take()
		for _, name := range changes.ServicePorts {
			delete(seen.Services, name)
			delete(seen.Endpoints, name)
			if port, ok := snapshot.Services[name]; ok {
				seen.Services[name], seen.Endpoints[name] = port, snapshot.Endpoints[name]
			}
		}
	}

	const rounds = 300
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range rounds {
			tracker.ServiceChanged(nil, newService(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = int32(30000 + i) }))
			tracker.ServiceChanged(nil, newService(func(s *corev1.Service) { s.Name = "t"; s.Spec.Ports[0].Name = fmt.Sprint("p", i%3) }))
		}
	})
	writers.Go(func() {
		for i := range rounds {
			tracker.EndpointSliceChanged(nil, newSlice("s-1", ready(fmt.Sprintf("10.244.1.%d", i%200))))
			tracker.EndpointSliceChanged(newSlice("s-1", nil), nil)
			tracker.EndpointSliceChanged(nil, newSlice("s-2", ready(fmt.Sprintf("10.244.2.%d", i%200))))
		}
	})
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for quiet := false; !quiet; {
		select {
		case <-done:
			quiet = true
		default:
		}
		follow()
	}
	snapshot, changes := tracker.Take()
	if len(changes.ServicePorts) != 0 {
		t.Errorf("B-40 %v changed after the last Take", changes.ServicePorts)
	}
	if got, want := describe(seen), describe(snapshot); got != want {
		t.Errorf("B-40 the changes add up to:\n%swant:\n%s", got, want)
	}
	if !maps.EqualFunc(seen.Services, snapshot.Services, model.ServicePort.Equal) {
		t.Errorf("B-40 the changes add up to %v, want %v", seen.Services, snapshot.Services)
	}
}
