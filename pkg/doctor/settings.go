package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// The descriptions of these settings are in the kernel's
// Documentation/networking/ip-sysctl.rst and nf_conntrack-sysctl.rst.

// Forwarding judges ip_forward: without it, no packet of a pod leaves the node, and
// none comes to one.
func Forwarding(value int) Finding {
	if value == 0 {
		return bad("ip_forward", "net.ipv4.ip_forward is 0: packets to and from pods are not forwarded", "sysctl -w net.ipv4.ip_forward=1")
	}
	return ok("ip_forward", "on")
}

// ForwardingIPv6 judges forwarding of IPv6, by whether Services have such addresses.
func ForwardingIPv6(value int, needed bool) Finding {
	const check = "ip_forward IPv6"
	switch {
	case value == 0 && needed:
		return bad(check, "net.ipv6.conf.all.forwarding is 0: packets to and from pods are not forwarded", "sysctl -w net.ipv6.conf.all.forwarding=1")
	case value == 0:
		return ok(check, "off, and no Service has an address of this family")
	}
	return ok(check, "on")
}

// RouteLocalnet judges route_localnet by whether node ports are to answer on
// 127.0.0.1.
func RouteLocalnet(isOn, wanted bool) Finding {
	const check = "route_localnet"
	switch {
	case wanted && !isOn:
		return warn(check, "net.ipv4.conf.all.route_localnet is 0: node ports do not answer on 127.0.0.1",
			"run miniproxy --init-only in a privileged init container, or set iptables.localhostNodePorts: false")
	case isOn && !wanted:
		return warn(check, "net.ipv4.conf.all.route_localnet is 1, and no rule of miniproxy guards 127.0.0.0/8: neighbours can reach what listens there",
			"sysctl -w net.ipv4.conf.all.route_localnet=0")
	case isOn:
		return ok(check, "on, as node ports on 127.0.0.1 need")
	}
	return ok(check, "off")
}

// ReversePath judges the source validation of interfaces, as values of rp_filter by
// interface, with "all" among them. The larger of an interface's own and of "all"
// holds. Strict validation drops a packet that comes in by another interface than
// an answer to it would leave by: the answers to masqueraded connections, where a node
// has several networks.
func ReversePath(values map[string]int) Finding {
	const check, strict = "rp_filter", 1
	var names []string
	for name, own := range values {
		if name != "all" && name != "default" && name != "lo" && max(own, values["all"]) == strict {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ok(check, "strict nowhere")
	}
	slices.Sort(names)
	return warn(check, "strict on "+count(names, 4)+": answers that come in by another interface than the route to their source are dropped",
		"nothing, on a node with one network; else sysctl -w net.ipv4.conf.all.rp_filter=2")
}

// Bridges judges whether packets between ports of a bridge are shown to iptables. A
// nil value is a setting that does not exist.
func Bridges(bridges []string, callIPTables *int) Finding {
	const check = "bridge-nf-call"
	const harm = ": a pod that reaches another one of its bridge through a Service gets answers past the rules, from an address that it did not ask"
	slices.Sort(bridges)
	switch {
	case len(bridges) == 0:
		return ok(check, "no bridge here")
	case callIPTables == nil:
		return warn(check, "br_netfilter is not loaded, and there is "+count(bridges, 4)+harm,
			"modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1, if pods are on these bridges")
	case *callIPTables == 0:
		return warn(check, "net.bridge.bridge-nf-call-iptables is 0, and there is "+count(bridges, 4)+harm,
			"sysctl -w net.bridge.bridge-nf-call-iptables=1, if pods are on these bridges")
	}
	return ok(check, "on for %s", count(bridges, 4))
}

// ConntrackSize judges how many connections the kernel may follow, by what the
// configuration asks for; 0 asks for nothing.
func ConntrackSize(have, want int) Finding {
	if have < want {
		return warn("nf_conntrack_max", fmt.Sprintf("%d, and the configuration asks for %d", have, want),
			fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d, or run miniproxy --init-only in a privileged init container", want))
	}
	return ok("nf_conntrack_max", "%d", have)
}

// How full the table of connections may be, in percent. When it is full, the kernel
// drops the first packet of every new connection.
const (
	conntrackBusy = 75
	conntrackFull = 95
)

// ConntrackFill judges how many of the connections that the kernel can follow there are.
func ConntrackFill(have, most int) Finding {
	const check = "conntrack fill"
	if most <= 0 {
		return ok(check, "%d connections, without a limit", have)
	}
	percent := have * 100 / most
	found := fmt.Sprintf("%d of %d connections, %d%%", have, most, percent)
	do := "raise conntrack.maxPerCore, and look who has so many: conntrack -L | awk '{print $5}' | sort | uniq -c | sort -n | tail"
	switch {
	case percent >= conntrackFull:
		return bad(check, found+": when it is full, new connections are dropped", do)
	case percent >= conntrackBusy:
		return warn(check, found, do)
	}
	return ok(check, "%s", found)
}

// BeLiberal judges whether connection tracking lets TCP packets outside of the window
// pass, by whether the configuration asks for that.
func BeLiberal(isOn, wanted bool) Finding {
	const check = "tcp_be_liberal"
	switch {
	case wanted && !isOn:
		return warn(check, "net.netfilter.nf_conntrack_tcp_be_liberal is 0, and the configuration asks for 1",
			"run miniproxy --init-only in a privileged init container")
	case isOn:
		return ok(check, "on: no rule drops packets of state INVALID")
	}
	return ok(check, "off: rules drop packets of state INVALID")
}

// Interfaces judges the interfaces of the network namespace by their names: one of
// kube-proxy in IPVS mode holds every Service address.
func Interfaces(names []string) Finding {
	const ipvs = "kube-ipvs0"
	if slices.Contains(names, ipvs) {
		return bad("IPVS", "interface "+ipvs+" has the Services' addresses, and the kernel takes packets to them for its own",
			"run kube-proxy --cleanup, or ip link del "+ipvs+" and ipvsadm -C")
	}
	return ok("IPVS", "nothing left of kube-proxy's IPVS mode")
}

// OtherTables judges the nft tables that iptables does not show, such as "inet
// firewalld".
func OtherTables(tables []string) Finding {
	const check = "nft tables"
	var others []string
	for _, table := range tables {
		switch _, name, _ := strings.Cut(table, " "); name {
		case "kube-proxy":
			return bad(check, table+" is of kube-proxy's nftables mode: packets are translated by both", "run kube-proxy --cleanup, or nft delete table "+table)
		default:
			others = append(others, table)
		}
	}
	if len(others) == 0 {
		return ok(check, "none but those of iptables")
	}
	return warn(check, "beside those of iptables: "+count(others, 4)+"; packets must pass their chains too, and a service that loads them may flush all tables when it is restarted",
		"see that they let Service traffic pass, and that /etc/nftables.conf has no flush ruleset")
}
