package lab

import (
	"net/netip"
	"slices"
)

// Plan says which addresses the machines of a cluster have. Lists of addresses hold
// one of each family.
type Plan struct {
	Nodes []NodePlan
	// Client is a machine outside of the cluster, in a range of its own.
	Client []netip.Prefix
	// Gateway is the address that the network between the machines has itself: where
	// packets to nobody go, to be answered with "unreachable".
	Gateway []netip.Prefix
	// Virtual are the ranges that no machine has: cluster IPs, load balancer VIPs and
	// external IPs. Nodes route them to the gateway, the client routes them to the
	// first node, as a router outside of a cluster would.
	Virtual []netip.Prefix
}

// NodePlan is one node of a Plan.
type NodePlan struct {
	Name string
	// Addrs are the node's addresses with the range of the network between the nodes.
	Addrs []netip.Prefix
	// PodCIDRs are the ranges of the node's pods. The first address of each is the
	// node's own, the pods' gateway.
	PodCIDRs []netip.Prefix
}

// DefaultPlan is two nodes and a client, both families:
//
//	n1      10.0.0.1  fd00::1   pods 10.244.1.0/24  fd00:244:1::/64
//	n2      10.0.0.2  fd00::2   pods 10.244.2.0/24  fd00:244:2::/64
//	client  10.9.9.9  fd00:9::9
//	cluster IPs 10.96.0.0/16 fd00:96::/112, VIPs 10.50.0.0/16 fd00:50::/32,
//	external IPs 10.60.0.0/16 fd00:60::/32
func DefaultPlan() Plan {
	return Plan{
		Nodes: []NodePlan{
			{Name: "n1", Addrs: prefixes("10.0.0.1/24", "fd00::1/64"), PodCIDRs: prefixes("10.244.1.0/24", "fd00:244:1::/64")},
			{Name: "n2", Addrs: prefixes("10.0.0.2/24", "fd00::2/64"), PodCIDRs: prefixes("10.244.2.0/24", "fd00:244:2::/64")},
		},
		Client:  prefixes("10.9.9.9/16", "fd00:9::9/32"),
		Gateway: prefixes("10.0.0.254/24", "fd00::fe/64"),
		Virtual: prefixes("10.96.0.0/16", "10.50.0.0/16", "10.60.0.0/16",
			"fd00:96::/112", "fd00:50::/32", "fd00:60::/32"),
	}
}

// IPv4Only is the plan without its IPv6 addresses, for a kernel without IPv6.
func (p Plan) IPv4Only() Plan {
	v4 := func(list []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(slices.Clone(list), func(a netip.Prefix) bool { return a.Addr().Is6() })
	}
	nodes := slices.Clone(p.Nodes)
	for i := range nodes {
		nodes[i].Addrs, nodes[i].PodCIDRs = v4(nodes[i].Addrs), v4(nodes[i].PodCIDRs)
	}
	return Plan{Nodes: nodes, Client: v4(p.Client), Gateway: v4(p.Gateway), Virtual: v4(p.Virtual)}
}

// PodAddrs are the addresses of pod number of the node, the number in the same
// digits in both families: pod 11 has 10.244.1.11 and fd00:244:1::11. Numbers from
// 2 to 254 are pods; 1 is the gateway.
func (n NodePlan) PodAddrs(number int) []netip.Addr {
	addrs := make([]netip.Addr, len(n.PodCIDRs))
	for i, cidr := range n.PodCIDRs {
		addrs[i] = numbered(cidr.Addr(), number)
	}
	return addrs
}

// numbered replaces the last part of a range's address by number.
func numbered(base netip.Addr, number int) netip.Addr {
	if base.Is4() {
		b := base.As4()
		b[3] = byte(number)
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	// Decimal digits written as hexadecimal ones: 11 becomes 0x11.
	b[14] = byte(number / 100)
	b[15] = byte(number/10%10<<4 | number%10)
	return netip.AddrFrom16(b)
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}
