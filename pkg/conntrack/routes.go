package conntrack

import (
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// routes are the ways of connections to a Service port, as plain lists: there is one
// for every TCP Service port of the cluster.
type routes struct {
	// frontends are without an address for the node port.
	frontends []netip.AddrPort
	// internal and external are where the cluster IP, and where all other frontends,
	// lead new connections.
	internal, external []netip.AddrPort
	// all are all endpoints, if it matters that one was removed which no new connection
	// was led to.
	all []netip.AddrPort
}

// routesOf returns the routes of a Service port, none if it does not exist.
func routesOf(snap model.Snapshot, name model.ServicePortName, withAll bool) routes {
	port, exists := snap.Services[name]
	if !exists {
		return routes{}
	}
	var r routes
	for _, addr := range frontends(port) {
		r.frontends = append(r.frontends, netip.AddrPortFrom(addr, port.Port))
	}
	if port.NodePort != 0 {
		r.frontends = append(r.frontends, netip.AddrPortFrom(netip.Addr{}, port.NodePort))
	}
	internal, external := choose(port, snap.Endpoints[name], snap.Node)
	r.internal = addresses(internal)
	r.external = r.internal
	if port.InternalLocal || port.ExternalLocal {
		r.external = addresses(external)
	}
	if withAll {
		r.all = addresses(snap.Endpoints[name])
	}
	return r
}

// choose returns the endpoints that new connections to the cluster IP, and those that
// new connections to any other frontend, can be led to. Where the external traffic
// policy is Local, what pods and the node itself send to such a frontend may go
// anywhere; a frontend does not tell who came in by it.
func choose(port model.ServicePort, endpoints []model.Endpoint, node model.NodeFacts) (internal, external []model.Endpoint) {
	use := model.Choose(port, endpoints, node)
	internal, external = use.Cluster, use.Cluster
	if port.InternalLocal {
		internal = use.Local
	}
	if port.ExternalLocal {
		external = use.All
	}
	return internal, external
}

func addresses(endpoints []model.Endpoint) []netip.AddrPort {
	list := make([]netip.AddrPort, len(endpoints))
	for i, ep := range endpoints {
		list[i] = ep.Addr
	}
	return list
}

// lostSome reports whether a connection may be on its way by a route that is not
// there now.
func (r routes) lostSome(now routes) bool {
	return lacks(now.frontends, r.frontends) || lacks(now.internal, r.internal) ||
		lacks(now.external, r.external) || lacks(now.all, r.all)
}

// lacks reports whether something of before is not in now.
func lacks(now, before []netip.AddrPort) bool {
	if slices.Equal(now, before) {
		return false
	}
	has := make(map[netip.AddrPort]bool, len(now))
	for _, addr := range now {
		has[addr] = true
	}
	return slices.ContainsFunc(before, func(addr netip.AddrPort) bool { return !has[addr] })
}
