// Package model holds the plain values that the rest of miniproxy speaks in: IP
// families, Service ports, endpoints, what is known of the node, and which
// endpoints each traffic policy may use. It imports the standard library only,
// runs nothing and reads no clock.
package model

import "net/netip"

// Family is an IP family. It is a value handed to shared code, never a reason for
// a second copy of that code.
type Family uint8

// The two families. The zero value is no family.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families in the order in which they are worked on.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of addr; an IPv4 address in IPv6 form
// (::ffff:10.0.0.1) is IPv4. The zero Addr has no family.
func FamilyOf(addr netip.Addr) Family {
	switch addr = addr.Unmap(); {
	case addr.Is4():
		return IPv4
	case addr.Is6():
		return IPv6
	}
	return 0
}

// String returns the name that the Kubernetes API and kube-proxy's metrics use:
// "IPv4" or "IPv6".
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "no family"
}

// Bits is the length of an address of the family, in bits.
func (f Family) Bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// Loopback is the range of the family's loopback addresses.
func (f Family) Loopback() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// Has reports whether addr is an address of the family.
func (f Family) Has(addr netip.Addr) bool { return FamilyOf(addr) == f }
