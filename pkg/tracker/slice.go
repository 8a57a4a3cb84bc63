package tracker

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

type sliceKey struct{ namespace, name string }

// slice is what one family needs of an EndpointSlice. It is read from the object
// whenever it is needed and not kept: the objects are there anyway, in the watch's
// cache, and in a large cluster most of the agent's memory is endpoints.
type slice struct {
	name      string
	created   time.Time
	ports     []slicePort
	endpoints []sliceEndpoint
}

type slicePort struct {
	name     string
	protocol model.Protocol
	number   uint16
}

// sliceEndpoint is an endpoint that has no port yet.
type sliceEndpoint struct {
	model.Endpoint
	addr netip.Addr
}

func (e sliceEndpoint) equal(o sliceEndpoint) bool {
	return e.addr == o.addr && e.Endpoint.Equal(o.Endpoint)
}

func (s slice) equal(o slice) bool {
	return s.created.Equal(o.created) && slices.Equal(s.ports, o.ports) &&
		slices.EqualFunc(s.endpoints, o.endpoints, sliceEndpoint.equal)
}

// ownerOf returns the Service that a slice belongs to, and whether it belongs to one
// and is of the family's address type.
func ownerOf(object *discoveryv1.EndpointSlice, family model.Family) (owner model.ServiceName, ok bool) {
	owner = model.ServiceName{Namespace: object.Namespace, Name: object.Labels[discoveryv1.LabelServiceName]}
	return owner, owner.Name != "" && string(object.AddressType) == family.String()
}

// parseSlice returns what one family needs of a slice.
func parseSlice(object *discoveryv1.EndpointSlice, family model.Family, nodeName string) slice {
	s := slice{
		name:      object.Name,
		created:   object.CreationTimestamp.Time,
		ports:     make([]slicePort, 0, len(object.Ports)),
		endpoints: make([]sliceEndpoint, 0, len(object.Endpoints)),
	}
	for _, p := range object.Ports {
		// A slice may leave the port open ("all ports"), which a Service cannot use.
		if number := portNumber(deref(p.Port, 0)); number != 0 {
			s.ports = append(s.ports, slicePort{
				name:     deref(p.Name, ""),
				protocol: protocol(deref(p.Protocol, "")),
				number:   number,
			})
		}
	}
	for i := range object.Endpoints {
		if e, ok := parseEndpoint(&object.Endpoints[i], family, nodeName); ok {
			s.endpoints = append(s.endpoints, e)
		}
	}
	return s
}

func parseEndpoint(e *discoveryv1.Endpoint, family model.Family, nodeName string) (sliceEndpoint, bool) {
	if len(e.Addresses) == 0 {
		return sliceEndpoint{}, false
	}
	// All addresses of an endpoint are the same endpoint; consumers take the first.
	addr := parseAddr(e.Addresses[0])
	if !family.Has(addr) {
		return sliceEndpoint{}, false
	}
	endpoint := sliceEndpoint{addr: addr, Endpoint: model.Endpoint{
		Local:       deref(e.NodeName, "") == nodeName,
		Ready:       deref(e.Conditions.Ready, true),
		Serving:     deref(e.Conditions.Serving, true),
		Terminating: deref(e.Conditions.Terminating, false),
	}}
	if e.Hints != nil {
		for _, h := range e.Hints.ForZones {
			endpoint.ZoneHints = append(endpoint.ZoneHints, h.Name)
		}
		for _, h := range e.Hints.ForNodes {
			endpoint.NodeHints = append(endpoint.NodeHints, h.Name)
		}
		slices.Sort(endpoint.ZoneHints)
		slices.Sort(endpoint.NodeHints)
	}
	return endpoint, true
}

func deref[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// merge returns the endpoints that a Service's slices give one of its ports, in the
// order of their text, each address and port once.
//
// The same address can stand there twice: a pod that is stuck terminating and the
// one that got its address, or one pod on its way from one slice to another. The
// usable one counts, then the one in the newer slice.
func merge(all []slice, name model.ServicePortName) []model.Endpoint {
	type candidate struct {
		model.Endpoint
		from *slice
	}
	var candidates []candidate
	for i := range all {
		s := &all[i]
		for _, port := range s.ports {
			if port.name != name.Port || port.protocol != name.Protocol {
				continue
			}
			candidates = slices.Grow(candidates, len(s.endpoints))
			for _, e := range s.endpoints {
				c := candidate{e.Endpoint, s}
				c.Addr = netip.AddrPortFrom(e.addr, port.number)
				candidates = append(candidates, c)
			}
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		if a.Addr != b.Addr {
			return compareText(a.Addr, b.Addr)
		}
		return cmp.Or( // the better one first
			cmp.Compare(usability(b.Endpoint), usability(a.Endpoint)),
			b.from.created.Compare(a.from.created),
			cmp.Compare(b.from.name, a.from.name),
		)
	})
	candidates = slices.CompactFunc(candidates, func(a, b candidate) bool { return a.Addr == b.Addr })
	endpoints := make([]model.Endpoint, len(candidates))
	for i, c := range candidates {
		endpoints[i] = c.Endpoint
	}
	return endpoints
}

// usability orders endpoints by what traffic they may get.
func usability(e model.Endpoint) int {
	switch {
	case e.Ready:
		return 2
	case e.Serving && e.Terminating:
		return 1
	}
	return 0
}

// compareText orders addresses as their text sorts, the order in which kube-proxy's
// rules stand.
func compareText(a, b netip.AddrPort) int {
	var x, y [64]byte
	return slices.Compare(a.AppendTo(x[:0]), b.AppendTo(y[:0]))
}

// triggerTime is when the change that a slice shows was caused, if it says so.
func triggerTime(object *discoveryv1.EndpointSlice) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339Nano, object.Annotations[corev1.EndpointsLastChangeTriggerTime])
	return at, err == nil
}
