package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
)

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
