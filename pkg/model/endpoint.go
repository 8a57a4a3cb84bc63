package model

import (
	"net/netip"
	"slices"
)

// Endpoint is one address and port behind a Service port.
type Endpoint struct {
	Addr netip.AddrPort
	// Local says that the endpoint runs on this node.
	Local bool
	// Ready, Serving and Terminating are the conditions of the EndpointSlice, with
	// the API's defaults filled in. Ready holds for not-ready pods too where the
	// Service publishes them.
	Ready       bool
	Serving     bool
	Terminating bool
	// ZoneHints and NodeHints are the slice's hints, sorted.
	ZoneHints []string
	NodeHints []string
}

// Equal reports whether two endpoints are the same in every respect.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Addr == o.Addr && e.Local == o.Local && e.Ready == o.Ready && e.Serving == o.Serving &&
		e.Terminating == o.Terminating && slices.Equal(e.ZoneHints, o.ZoneHints) && slices.Equal(e.NodeHints, o.NodeHints)
}

// isDraining reports whether the endpoint is on its way out but still answers.
func (e Endpoint) isDraining() bool { return e.Serving && e.Terminating }

// Reachable is which endpoints of a Service port each traffic policy may use on
// this node. Its slices are in the order of the endpoints they were chosen from.
type Reachable struct {
	// Cluster serves policy Cluster: ready endpoints anywhere, narrowed by hints.
	Cluster []Endpoint
	// Local serves policy Local: endpoints on this node.
	Local []Endpoint
	// All is the union of both: the endpoints that need a chain on this node.
	All []Endpoint
	// Anywhere says that some endpoint somewhere could serve, even if none of them
	// may be used from this node.
	Anywhere bool
}

// Choose decides which of a Service port's endpoints may be used on the node.
//
// Cluster and Local traffic decide separately (KEP-1669): ready endpoints if there
// are any in scope, otherwise those that are terminating and still serving, so
// that the last replica of a rollout keeps answering while it drains. Hints narrow
// the Cluster set only (KEP-2433, KEP-3015).
func Choose(port ServicePort, endpoints []Endpoint, node NodeFacts) Reachable {
	var r Reachable
	if port.UsesClusterEndpoints() {
		r.Cluster = choose(endpoints, Endpoint.isReady, hinted(endpoints, node))
		if len(r.Cluster) == 0 {
			r.Cluster = choose(endpoints, Endpoint.isDraining)
		}
	}
	if port.UsesLocalEndpoints() {
		r.Local = choose(endpoints, Endpoint.isLocal, Endpoint.isReady)
		if len(r.Local) == 0 {
			r.Local = choose(endpoints, Endpoint.isLocal, Endpoint.isDraining)
		}
	}
	r.Anywhere = slices.ContainsFunc(endpoints, func(e Endpoint) bool { return e.isReady() || e.isDraining() })
	r.All = union(endpoints, r.Cluster, r.Local)
	return r
}

func (e Endpoint) isReady() bool { return e.Ready }
func (e Endpoint) isLocal() bool { return e.Local }

// choose returns the endpoints that satisfy every condition.
func choose(endpoints []Endpoint, conditions ...func(Endpoint) bool) []Endpoint {
	var chosen []Endpoint
	for _, e := range endpoints {
		if !slices.ContainsFunc(conditions, func(ok func(Endpoint) bool) bool { return !ok(e) }) {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// hinted returns the condition that the endpoints' hints put on them for this
// node. A kind of hint counts only when every ready endpoint carries it and one of
// them is meant for this node or zone, node hints before zone hints: half-written
// hints would send all of a zone's traffic to the few endpoints that have them.
func hinted(endpoints []Endpoint, node NodeFacts) func(Endpoint) bool {
	forNode := func(e Endpoint) bool { return slices.Contains(e.NodeHints, node.Name) }
	forZone := func(e Endpoint) bool { return node.Zone != "" && slices.Contains(e.ZoneHints, node.Zone) }
	ready := choose(endpoints, Endpoint.isReady)
	lacks := func(hints func(Endpoint) []string) bool {
		return slices.ContainsFunc(ready, func(e Endpoint) bool { return len(hints(e)) == 0 })
	}
	switch {
	case !lacks(func(e Endpoint) []string { return e.NodeHints }) && slices.ContainsFunc(ready, forNode):
		return forNode
	case !lacks(func(e Endpoint) []string { return e.ZoneHints }) && slices.ContainsFunc(ready, forZone):
		return forZone
	}
	return func(Endpoint) bool { return true }
}

// union returns the endpoints that are in a or b, in the order of all, from which
// both were chosen.
func union(all, a, b []Endpoint) []Endpoint {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	wanted := make(map[netip.AddrPort]bool, len(a)+len(b))
	for _, e := range a {
		wanted[e.Addr] = true
	}
	for _, e := range b {
		wanted[e.Addr] = true
	}
	return choose(all, func(e Endpoint) bool { return wanted[e.Addr] })
}
