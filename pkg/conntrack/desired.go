package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// standing is what an address is to a frontend. The higher, the more may lead there.
type standing uint8

const (
	// absent is an address that is no endpoint of the Service, and the zero value.
	absent standing = iota
	// down is an endpoint that does not serve.
	down
	// up is an endpoint that serves, whether or not new connections may go there.
	up
	// chosen is an endpoint that the rules lead new connections to.
	chosen
)

// backends are the endpoints behind a frontend.
type backends map[netip.AddrPort]standing

// hasChosen reports whether the rules lead new connections anywhere.
func (b backends) hasChosen() bool {
	for _, is := range b {
		if is == chosen {
			return true
		}
	}
	return false
}

// desired is where flows of one family and protocol may lead. A frontend without
// backends is one whose flows may lead nowhere: of a Service that has no endpoints,
// or is gone.
type desired struct {
	// services are cluster IPs, external IPs and load balancer VIPs with their port.
	services map[netip.AddrPort]backends
	// nodePorts count on addresses only.
	nodePorts map[uint16]backends
	addresses []netip.Prefix
}

func newDesired() desired {
	return desired{services: map[netip.AddrPort]backends{}, nodePorts: map[uint16]backends{}}
}

// wanted returns what the snapshot wants of UDP. Its addresses are for the caller to
// fill in, and its backends are those that are up.
//
// Every endpoint that still serves may keep its flows, whatever traffic policy,
// topology or readiness would choose for a new one: a change of these must not cut
// a flow that works, as it does not cut a TCP connection. Of two Services on one
// frontend both keep theirs.
func wanted(snap model.Snapshot) desired {
	d := newDesired()
	for name, port := range snap.Services {
		if name.Protocol != model.UDP {
			continue
		}
		serving := backends{}
		for _, ep := range snap.Endpoints[name] {
			if ep.Ready || ep.Serving {
				serving[ep.Addr] = up
			}
		}
		for _, addr := range frontends(port) {
			add(d.services, netip.AddrPortFrom(addr, port.Port), serving)
		}
		if port.NodePort != 0 {
			add(d.nodePorts, port.NodePort, serving)
		}
	}
	return d
}

// frontends are the addresses on which the Service answers on its port.
func frontends(port model.ServicePort) []netip.Addr {
	addrs := slices.Concat([]netip.Addr{port.ClusterIP}, port.ExternalIPs, port.LoadBalancerVIPs)
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !a.IsValid() })
}

// add lets flows to key lead to more backends. The sets of other keys stay as they
// are, although frontends of one Service share theirs.
func add[K comparable](to map[K]backends, key K, more backends) {
	if have, ok := to[key]; ok {
		more = maps.Clone(more)
		for endpoint, is := range have {
			more[endpoint] = max(more[endpoint], is)
		}
	}
	to[key] = more
}

// with returns d and, without backends, the frontends that only former had.
func (d desired) with(former desired) desired {
	return desired{
		services:  union(d.services, former.services),
		nodePorts: union(d.nodePorts, former.nodePorts),
		addresses: d.addresses,
	}
}

func union[K comparable](now, former map[K]backends) map[K]backends {
	all := maps.Clone(now)
	for key := range former {
		if _, ok := all[key]; !ok {
			all[key] = nil
		}
	}
	return all
}

// isEmpty reports whether there is no frontend, so that no flow can be stale.
func (d desired) isEmpty() bool { return len(d.services) == 0 && len(d.nodePorts) == 0 }

// equal reports whether both find the same flows stale.
func (d desired) equal(o desired) bool {
	same := func(a, b backends) bool { return maps.Equal(a, b) }
	return maps.EqualFunc(d.services, o.services, same) && maps.EqualFunc(d.nodePorts, o.nodePorts, same) &&
		slices.Equal(d.addresses, o.addresses)
}

// stale reports whether the entry leads a UDP flow to one of our frontends somewhere
// else than it should go.
func (d desired) stale(e Entry) bool {
	to, ours := d.behind(e)
	if !ours {
		return false
	}
	// It goes where it should. That it did before the agent was restarted counts too
	// (B-25).
	if _, serving := to[e.ReplySource]; serving {
		return false
	}
	// It was sent here before there was a rule, and every further packet of it keeps
	// the entry alive and the rule unseen (B-23). But as long as there are no endpoints
	// to go to, it may well be meant for a program on this node.
	if !e.isTranslated() {
		return len(to) > 0
	}
	// It leads to an endpoint that does not serve any more, or that never was one of
	// the Service which has the frontend now (B-21, B-22, B-24).
	return true
}

// behind returns the backends of the frontend that the entry is about, and whether
// it is ours.
func (d desired) behind(e Entry) (backends, bool) {
	// Zones other than 0 belong to other datapaths, such as a virtual switch in which
	// a packet to a cluster IP is rightly seen before we translate it.
	if e.Zone != 0 {
		return nil, false
	}
	// What is not found is somebody else's flow, even when its port is one of our node
	// ports, or its address one of ours with another port (B-27).
	return d.backends(e.Destination)
}

// backends returns where flows to a frontend may lead, and whether it is ours.
func (d desired) backends(frontend netip.AddrPort) (backends, bool) {
	if to, ok := d.services[frontend]; ok {
		return to, true
	}
	to, ok := d.nodePorts[frontend.Port()]
	if !ok || !slices.ContainsFunc(d.addresses, func(p netip.Prefix) bool { return p.Contains(frontend.Addr()) }) {
		return nil, false
	}
	return to, true
}

// has reports whether one of the frontends is one of the Service port's. It is asked
// of every Service port, and makes no list of them.
func (d desired) has(port model.ServicePort) bool {
	if _, ok := d.nodePorts[port.NodePort]; ok {
		return true
	}
	is := func(addr netip.Addr) bool {
		_, ok := d.services[netip.AddrPortFrom(addr, port.Port)]
		return ok
	}
	return is(port.ClusterIP) || slices.ContainsFunc(port.ExternalIPs, is) || slices.ContainsFunc(port.LoadBalancerVIPs, is)
}

// fill gives those of the frontends that are the Service port's its backends.
func (d desired) fill(port model.ServicePort, internal, external backends) {
	for _, addr := range frontends(port) {
		behind := external
		if addr == port.ClusterIP {
			behind = internal
		}
		frontend := netip.AddrPortFrom(addr, port.Port)
		if _, ok := d.services[frontend]; ok {
			add(d.services, frontend, behind)
		}
	}
	if _, ok := d.nodePorts[port.NodePort]; ok {
		add(d.nodePorts, port.NodePort, external)
	}
}

// standings says what each endpoint is, some of them being chosen.
func standings(endpoints, selected []model.Endpoint) backends {
	b := make(backends, len(endpoints))
	for _, ep := range endpoints {
		if b[ep.Addr] = down; ep.Ready || ep.Serving {
			b[ep.Addr] = up
		}
	}
	for _, ep := range selected {
		b[ep.Addr] = chosen
	}
	return b
}
