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

// slice is what is kept of an EndpointSlice.
type slice struct {
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

func (s *slice) equal(o *slice) bool {
	return s.created.Equal(o.created) && slices.Equal(s.ports, o.ports) &&
		slices.EqualFunc(s.endpoints, o.endpoints, sliceEndpoint.equal)
}

// parseSlice returns what one family needs of a slice, and the Service it belongs
// to; nil if it belongs to none or is of another address type.
func parseSlice(object *discoveryv1.EndpointSlice, family model.Family, nodeName string) (model.ServiceName, *slice) {
	owner := object.Labels[discoveryv1.LabelServiceName]
	if owner == "" || string(object.AddressType) != family.String() {
		return model.ServiceName{}, nil
	}
	s := &slice{created: object.CreationTimestamp.Time}
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
	return model.ServiceName{Namespace: object.Namespace, Name: owner}, s
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
func merge(all map[string]*slice, name model.ServicePortName) []model.Endpoint {
	type candidate struct {
		model.Endpoint
		created time.Time
		slice   string
	}
	best := map[netip.AddrPort]candidate{}
	for sliceName, s := range all {
		for _, port := range s.ports {
			if port.name != name.Port || port.protocol != name.Protocol {
				continue
			}
			for _, e := range s.endpoints {
				c := candidate{Endpoint: e.Endpoint, created: s.created, slice: sliceName}
				c.Addr = netip.AddrPortFrom(e.addr, port.number)
				rival, taken := best[c.Addr]
				better := func() int {
					return cmp.Or(
						cmp.Compare(usability(c.Endpoint), usability(rival.Endpoint)),
						c.created.Compare(rival.created),
						cmp.Compare(c.slice, rival.slice),
					)
				}
				if !taken || better() > 0 {
					best[c.Addr] = c
				}
			}
		}
	}
	endpoints := make([]model.Endpoint, 0, len(best))
	for _, c := range best {
		endpoints = append(endpoints, c.Endpoint)
	}
	slices.SortFunc(endpoints, func(a, b model.Endpoint) int { return compareText(a.Addr, b.Addr) })
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
