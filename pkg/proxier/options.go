package proxier

import (
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
)

// Host is what the host the agent runs on has to offer.
type Host struct {
	// Addresses are the addresses of all its interfaces.
	Addresses []netip.Addr
	// RandomFully says that MASQUERADE knows --random-fully.
	RandomFully bool
	// TCPBeLiberal says that conntrack takes TCP packets outside the window as valid,
	// so that dropping INVALID packets would protect nobody.
	TCPBeLiberal bool
	// InvalidAccount and LocalhostAccount name nfacct objects, where there are any.
	InvalidAccount, LocalhostAccount string
}

// Options says what the configuration means for one family on a node and host as
// they are now.
func Options(c *config.Config, family model.Family, node model.NodeFacts, host Host) render.Options {
	if addr := c.BindAddress; family.Has(addr) && !addr.IsUnspecified() {
		node.Addresses = append([]netip.Addr{addr}, node.Addresses...)
	}
	opts := render.Options{
		Family:         family,
		Node:           node,
		MasqueradeMark: c.MasqueradeMark,
		MasqueradeAll:  c.MasqueradeAll,
		RandomFully:    host.RandomFully,
		Local:          localTraffic(c.LocalDetector, family, node),
		NodePorts:      nodePortAddresses(c, family, node, host.Addresses),
		DropInvalid:    !host.TCPBeLiberal,
		InvalidAccount: host.InvalidAccount,
	}
	if opts.NodePorts.Loopback {
		opts.LocalhostAccount = host.LocalhostAccount
	}
	return opts
}

// localTraffic is how pods' traffic is recognised in one family.
func localTraffic(d config.LocalDetector, family model.Family, node model.NodeFacts) render.LocalTraffic {
	ranges := d.ClusterCIDRs
	switch d.Mode {
	case config.LocalModeBridgeInterface:
		return render.LocalTraffic{Interface: d.Interface}
	case config.LocalModeInterfaceNamePrefix:
		return render.LocalTraffic{Interface: d.Interface + "+"}
	case config.LocalModeNodeCIDR:
		ranges = node.PodCIDRs
	}
	for _, r := range ranges {
		// A range that holds everybody tells nobody apart, and iptables refuses to
		// negate it.
		if family.Has(r.Addr()) && r.Bits() > 0 {
			return render.LocalTraffic{Range: r}
		}
	}
	return render.LocalTraffic{}
}

// nodePortAddresses are the host's addresses of one family that the configuration
// selects. A family that it does not mention serves node ports on all of them; one
// of which it asks for addresses that the host has not serves them nowhere.
func nodePortAddresses(c *config.Config, family model.Family, node model.NodeFacts, host []netip.Addr) render.NodePortAddresses {
	ranges := selectedRanges(c.NodePortAddresses, family, node)
	loopback := family.Loopback()
	unmentioned := len(ranges) == 0 && !c.NodePortAddresses.Primary
	all := c.NodePortAddresses.All || unmentioned ||
		slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() == 0 })
	selected := render.NodePortAddresses{
		All: all,
		// Only IPv4 has something like route_localnet.
		Loopback: family == model.IPv4 && c.LocalhostNodePorts &&
			(all || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Overlaps(loopback) })),
	}
	if all {
		return selected
	}
	for _, addr := range host {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) }) {
			selected.Addresses = append(selected.Addresses, addr)
		}
	}
	slices.SortFunc(selected.Addresses, netip.Addr.Compare)
	selected.Addresses = slices.Compact(selected.Addresses)
	return selected
}

// selectedRanges spells what the configuration selects as ranges of one family.
func selectedRanges(a config.NodePortAddresses, family model.Family, node model.NodeFacts) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range a.CIDRs {
		if family.Has(r.Addr()) {
			ranges = append(ranges, r)
		}
	}
	if a.Localhost {
		ranges = append(ranges, family.Loopback())
	}
	if primary := node.Primary(); a.Primary && primary.IsValid() {
		ranges = append(ranges, netip.PrefixFrom(primary, primary.BitLen()))
	}
	return ranges
}
