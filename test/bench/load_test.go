package main

import (
	"net/netip"
	"testing"
)

// TestAddressesAreDistinct: an address with two owners would be measured as one that is
// not served.
func TestAddressesAreDistinct(t *testing.T) {
	seen := map[netip.Addr]string{
		probeService.Addr(): "the Service that changes", directEndpoint.Addr(): "the direct endpoint",
		probeEndpoints[0]: "a changing endpoint", probeEndpoints[1]: "a changing endpoint",
	}
	add := func(addr netip.Addr, within netip.Prefix, what string) {
		if other := seen[addr]; other != "" {
			t.Fatalf("%s is the address of %s and of %s", addr, what, other)
		}
		if !within.Contains(addr) {
			t.Fatalf("%s of %s is not in %s", addr, what, within)
		}
		seen[addr] = what
	}
	for i := range 100_000 {
		add(serviceAddr(i).Addr(), serviceRange, "a Service")
	}
	for i := range maxPods {
		add(podAddr(i), podRange, "a pod")
	}
}
