package model

import (
	"net/netip"
	"slices"
)

// NodeFacts is what one family needs to know of the node the agent runs on.
type NodeFacts struct {
	// Name is the node's name, trimmed and lower-cased.
	Name string
	// Known says that a Node object of that name exists.
	Known bool
	// Zone is the label topology.kubernetes.io/zone, empty without one.
	Zone string
	// Addresses are the node's InternalIPs, then its ExternalIPs, of the family in
	// the order of the object; the first is the primary one.
	Addresses []netip.Addr
	// PodCIDRs are the ranges of the family that the node's pods get addresses from.
	PodCIDRs []netip.Prefix
}

// Equal reports whether both say the same.
func (n NodeFacts) Equal(o NodeFacts) bool {
	return n.Name == o.Name && n.Known == o.Known && n.Zone == o.Zone &&
		slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// Primary is the node's first address of the family, the zero Addr without one.
func (n NodeFacts) Primary() netip.Addr {
	if len(n.Addresses) == 0 {
		return netip.Addr{}
	}
	return n.Addresses[0]
}
