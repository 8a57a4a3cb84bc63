package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// backends are the endpoints that a frontend's flows may lead to.
type backends map[netip.AddrPort]struct{}

// desired is where UDP flows of one family may lead. A frontend without backends is
// one whose flows may lead nowhere: of a Service that has no endpoints, or is gone.
type desired struct {
	// services are cluster IPs, external IPs and load balancer VIPs with their port.
	services map[netip.AddrPort]backends
	// nodePorts count on addresses only.
	nodePorts map[uint16]backends
	addresses []netip.Prefix
}

// wanted returns what the snapshot wants. Its addresses are for the caller to fill
// in.
//
// Every endpoint that still serves may keep its flows, whatever traffic policy,
// topology or readiness would choose for a new one: a change of these must not cut
// a flow that works, as it does not cut a TCP connection. Of two Services on one
// frontend both keep theirs.
func wanted(snap model.Snapshot) desired {
	d := desired{services: map[netip.AddrPort]backends{}, nodePorts: map[uint16]backends{}}
	for name, port := range snap.Services {
		if name.Protocol != model.UDP {
			continue
		}
		serving := backends{}
		for _, ep := range snap.Endpoints[name] {
			if ep.Ready || ep.Serving {
				serving[ep.Addr] = struct{}{}
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
		maps.Copy(more, have)
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

// stale reports whether the entry leads a flow to one of our frontends somewhere
// else than it should go.
func (d desired) stale(e Entry) bool {
	// Zones other than 0 belong to other datapaths, such as a virtual switch in which
	// a packet to a cluster IP is rightly seen before we translate it.
	if e.Zone != 0 {
		return false
	}
	// Somebody else's flow, even when its port is one of our node ports, or its
	// address one of ours with another port (B-27).
	to, ours := d.backends(e.Destination)
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
