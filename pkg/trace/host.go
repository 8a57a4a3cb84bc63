package trace

import (
	"net/netip"
	"strings"
)

// Loopback is the name of the interface that every host has.
const Loopback = "lo"

// Host is what a walk needs to know of the machine that holds the rules. Every
// host also has the loopback interface with 127.0.0.1 and ::1.
type Host struct {
	// Interfaces are the host's interfaces; the first one is the uplink, which
	// packets leave by that no range or route is for.
	Interfaces []Interface
	// Routes are ranges behind an interface that are not on its link.
	Routes []Route
	// BridgePorts are interfaces that packets come in by on their way to a bridge.
	BridgePorts []BridgePort
}

// Interface is an interface with its addresses and their on-link ranges.
type Interface struct {
	Name  string
	Addrs []netip.Prefix
}

// Route says that packets to a range leave by an interface.
type Route struct {
	To  netip.Prefix
	Dev string
}

// BridgePort is an interface that is part of a bridge.
type BridgePort struct {
	Name   string
	Bridge string
}

// Owns reports whether the address is one of the host's own: what the kernel calls
// LOCAL.
func (h Host) Owns(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	for _, i := range h.Interfaces {
		for _, p := range i.Addrs {
			if p.Addr() == addr {
				return true
			}
		}
	}
	return false
}

// Addrs returns the host's addresses of the family that addr is of, without those
// of the loopback interface.
func (h Host) Addrs(family netip.Addr) []netip.Addr {
	var addrs []netip.Addr
	for _, i := range h.Interfaces {
		for _, p := range i.Addrs {
			if sameFamily(p.Addr(), family) {
				addrs = append(addrs, p.Addr())
			}
		}
	}
	return addrs
}

// Out returns the interface that a packet to addr leaves by: the one with the
// longest range around it, and the uplink for want of any.
func (h Host) Out(addr netip.Addr) string {
	if h.Owns(addr) {
		return Loopback
	}
	best, out := -1, ""
	if len(h.Interfaces) > 0 {
		out = h.Interfaces[0].Name
	}
	consider := func(p netip.Prefix, dev string) {
		if p.Bits() > best && p.Contains(addr) {
			best, out = p.Bits(), dev
		}
	}
	for _, r := range h.Routes {
		consider(r.To, r.Dev)
	}
	for _, i := range h.Interfaces {
		for _, p := range i.Addrs {
			consider(p, i.Name)
		}
	}
	return out
}

// masqueradeAddr returns the address that MASQUERADE gives to a packet that leaves by
// an interface. One without an address of its own, as lo, lends the host's first;
// but IPv6 prefers, where it can, the very address that the packet goes to (RFC
// 6724, section 5, rule 1).
func (h Host) masqueradeAddr(out string, destination netip.Addr) netip.Addr {
	if destination.Is6() && h.Owns(destination) {
		return destination
	}
	for _, i := range h.Interfaces {
		if i.Name != out {
			continue
		}
		for _, p := range i.Addrs {
			if sameFamily(p.Addr(), destination) {
				return p.Addr()
			}
		}
	}
	if addrs := h.Addrs(destination); len(addrs) > 0 {
		return addrs[0]
	}
	return destination
}

func sameFamily(a, b netip.Addr) bool { return a.BitLen() == b.BitLen() }

// matchesInterface reports whether a name fits an iptables interface pattern.
func matchesInterface(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "+"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}
