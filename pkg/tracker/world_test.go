package tracker

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// choices is where objects get their content from: pick returns one of 0 to n-1.
type choices interface{ pick(n int) int }

type randomChoices struct{ *rand.Rand }

func (r randomChoices) pick(n int) int { return r.IntN(n) }

// byteChoices takes its choices from bytes, 0 after their end.
type byteChoices struct{ data []byte }

func (b *byteChoices) pick(n int) int {
	if len(b.data) == 0 {
		return 0
	}
	choice := int(b.data[0])
	b.data = b.data[1:]
	return choice % n
}

// maker makes objects as they can and cannot be. Free texts stand among the values
// of every field.
type maker struct {
	choices
	texts []string
}

// one returns one of the values.
func one[T any](m maker, values ...T) T { return values[m.pick(len(values))] }

// some returns none to three values of make.
func some[T any](m maker, make func() T) []T {
	var all []T
	for range m.pick(4) {
		all = append(all, make())
	}
	return all
}

// maybe returns a pointer to a value or nil.
func maybe[T any](m maker, value T) *T {
	if m.pick(4) == 0 {
		return nil
	}
	return &value
}

func (m maker) address() string {
	return one(m, append([]string{
		"10.96.0.80", "10.96.0.81", "10.244.1.10", "10.244.1.11", "10.244.2.10", "10.60.0.10", "10.50.0.10",
		"fd00:96::80", "fd00:244:1::10", "fd00:60::10", "010.244.001.010", "::ffff:10.60.0.10", "None", "", "256.1.1.1",
	}, m.texts...)...)
}

func (m maker) rangeText() string {
	return one(m, append([]string{
		"10.9.0.0/16", " 10.9.1.0/24 ", "fd00:9::/64", "0.0.0.0/0", "::/0", "10.9.0.0", "10.9.1.2/16", "",
	}, m.texts...)...)
}

func (m maker) port() int32 { return one[int32](m, 80, 8080, 8081, 30080, 0, -1, 65535, 65536) }

func (m maker) portName() string { return one(m, append([]string{"http", "web", ""}, m.texts...)...) }

func (m maker) protocol() corev1.Protocol {
	return one(m, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, "")
}

func (m maker) service(name string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name, CreationTimestamp: at(int64(m.pick(3)))},
		Spec: corev1.ServiceSpec{
			Type:                     one(m, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName, ""),
			ClusterIP:                m.address(),
			ClusterIPs:               some(m, m.address),
			ExternalIPs:              some(m, m.address),
			LoadBalancerSourceRanges: some(m, m.rangeText),
			ExternalTrafficPolicy:    one(m, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal, ""),
			InternalTrafficPolicy:    maybe(m, one(m, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)),
			SessionAffinity:          one(m, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP),
			HealthCheckNodePort:      m.port(),
		},
	}
	// The names of a Service's ports are different, which the API sees to.
	for _, name := range slices.Compact(slices.Sorted(slices.Values(some(m, m.portName)))) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Protocol: m.protocol(), Port: m.port(), NodePort: m.port()})
	}
	svc.Status.LoadBalancer.Ingress = some(m, func() corev1.LoadBalancerIngress {
		return corev1.LoadBalancerIngress{IP: m.address(), IPMode: maybe(m, one(m, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy))}
	})
	if m.pick(2) == 0 {
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: maybe(m, corev1.ClientIPConfig{TimeoutSeconds: maybe(m, int32(m.pick(100)))})}
	}
	return svc
}

func (m maker) slice(name string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns1", Name: name, CreationTimestamp: at(int64(m.pick(3)))},
		AddressType: one(m, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN, ""),
		Endpoints:   some(m, m.endpoint),
		Ports: some(m, func() discoveryv1.EndpointPort {
			return discoveryv1.EndpointPort{Name: maybe(m, m.portName()), Protocol: maybe(m, m.protocol()), Port: maybe(m, m.port())}
		}),
	}
	if m.pick(8) > 0 {
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: m.serviceName()}
	}
	return slice
}

func (m maker) serviceName() string {
	return one(m, append([]string{"s", "t", "u", ""}, m.texts...)...)
}

func (m maker) endpoint() discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: some(m, m.address),
		Conditions: discoveryv1.EndpointConditions{
			Ready: maybe(m, m.pick(2) == 0), Serving: maybe(m, m.pick(2) == 0), Terminating: maybe(m, m.pick(2) == 0),
		},
		NodeName: maybe(m, one(m, "n1", "n2")),
	}
	if m.pick(2) == 0 {
		e.Hints = &discoveryv1.EndpointHints{
			ForZones: some(m, func() discoveryv1.ForZone { return discoveryv1.ForZone{Name: one(m, "zone-a", "zone-b", "")} }),
			ForNodes: some(m, func() discoveryv1.ForNode { return discoveryv1.ForNode{Name: one(m, "n1", "n2")} }),
		}
	}
	return e
}

// event is something that happened to an object: its versions before and after.
type event struct {
	oldService, service *corev1.Service
	oldSlice, slice     *discoveryv1.EndpointSlice
}

func (e event) deliver(t *Tracker) {
	if e.oldService != nil || e.service != nil {
		t.ServiceChanged(e.oldService, e.service)
	} else {
		t.EndpointSliceChanged(e.oldSlice, e.slice)
	}
}

// histories makes the lives of a few objects: for each, the events in their order.
func (m maker) histories() [][]event {
	var all [][]event
	for _, name := range []string{"s", "t", "u"} {
		var life []event
		var last *corev1.Service
		for range m.pick(4) {
			next := m.service(name)
			if last != nil && m.pick(3) == 0 {
				next = nil
			}
			life = append(life, event{oldService: last, service: next})
			last = next
		}
		all = append(all, life)
	}
	for i := range 4 {
		var life []event
		var last *discoveryv1.EndpointSlice
		for range m.pick(5) {
			next := m.slice(fmt.Sprint("slice-", i))
			if last != nil && m.pick(3) == 0 {
				next = nil
			}
			life = append(life, event{oldSlice: last, slice: next})
			last = next
		}
		all = append(all, life)
	}
	return all
}

// interleave returns the events of all lives in one order that keeps the order
// within each life.
func interleave(c choices, histories [][]event) []event {
	rest := slices.Clone(histories)
	var events []event
	for {
		rest = slices.DeleteFunc(rest, func(life []event) bool { return len(life) == 0 })
		if len(rest) == 0 {
			return events
		}
		i := c.pick(len(rest))
		events = append(events, rest[i][0])
		rest[i] = rest[i][1:]
	}
}

// last returns the last events of the lives: what a tracker that starts now is told.
func last(histories [][]event) []event {
	var events []event
	for _, life := range histories {
		if n := len(life); n > 0 && (life[n-1].service != nil || life[n-1].slice != nil) {
			events = append(events, event{service: life[n-1].service, slice: life[n-1].slice})
		}
	}
	return events
}
