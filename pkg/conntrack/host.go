package conntrack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// NodePorts is where node ports answer: on every address of the host (loopback
// addresses only with Loopback), or on those listed.
type NodePorts struct {
	All       bool
	Loopback  bool
	Addresses []netip.Addr
}

// hostAddresses is HostAddresses, or what takes its place in a test.
type hostAddresses func(model.Family) ([]netip.Prefix, error)

// prefixes are the host's addresses of the family on which node ports answer, sorted.
func (n NodePorts) prefixes(fam model.Family, host hostAddresses) ([]netip.Prefix, error) {
	if !n.All {
		prefixes := make([]netip.Prefix, 0, len(n.Addresses))
		for _, addr := range n.Addresses {
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		}
		return prefixes, nil
	}
	prefixes, err := host(fam)
	if err != nil {
		return nil, err
	}
	if !n.Loopback {
		prefixes = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes, nil
}

// HostAddresses are the addresses of the family that the host answers on: the
// kernel's local routing table, which is also what the rules' match "--dst-type
// LOCAL" asks. A loopback range is one prefix.
func HostAddresses(fam model.Family) ([]netip.Prefix, error) {
	family := netlink.FAMILY_V4
	if fam == model.IPv6 {
		family = netlink.FAMILY_V6
	}
	routes, err := netlink.RouteListFiltered(family,
		&netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("list %s local routes: %w", fam, err)
	}
	var prefixes []netip.Prefix
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(route.Dst.IP)
		if ones, _ := route.Dst.Mask.Size(); ok {
			prefixes = append(prefixes, netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	return prefixes, nil
}
