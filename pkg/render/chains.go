package render

import (
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// addEndpoints adds the chain of every endpoint that is used from this node.
func (b *unitBuilder) addEndpoints() {
	protocol := b.port.Name.Protocol.Lower()
	for _, ep := range b.use.All {
		name := endpointChain(b.port.Name, ep.Addr)
		rewrite := []ruleset.Match{ruleset.Protocol{Name: protocol}}
		if b.sticks() {
			rewrite = append(rewrite, ruleset.RecentSet{Name: name, Mask: b.wholeAddress()})
		}
		b.addChain(name, []ruleset.Rule{
			// A pod that is sent back to itself must see another source than its own, or
			// it answers itself past conntrack and its connection never opens.
			{Matches: []ruleset.Match{ruleset.Source{Prefix: single(ep.Addr.Addr())}}, Comment: b.comment, Action: masquerade()},
			{Matches: rewrite, Comment: b.comment, Action: ruleset.DNAT{To: ep.Addr}},
		})
	}
}

// wholeAddress is the mask under which recent lists keep clients apart: all bits.
func (b *unitBuilder) wholeAddress() netip.Addr {
	if b.opts.Family == model.IPv6 {
		return netip.AddrFrom16([16]byte(slices.Repeat([]byte{0xff}, 16)))
	}
	return netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// addPolicies adds the chains that choose an endpoint, one per traffic policy in use.
func (b *unitBuilder) addPolicies() {
	if len(b.use.Cluster) > 0 {
		b.addPolicy(b.clusterChain(), b.use.Cluster)
	}
	if len(b.use.Local) > 0 {
		b.addPolicy(b.localChain(), b.use.Local)
	}
}

func (b *unitBuilder) addPolicy(chain string, endpoints []model.Endpoint) {
	var rules []ruleset.Rule
	if internal, _ := b.internal(); internal == chain {
		rules = append(rules, b.masqueradeForeign()...)
	}
	rules = append(rules, b.stick(endpoints)...)
	if len(endpoints) > b.opts.flatBalance() {
		rules = append(rules, b.balanceGroups(chain, endpoints)...)
	} else {
		rules = append(rules, b.balance(endpoints)...)
	}
	b.addChain(chain, rules)
}

// masqueradeForeign masks the source of cluster IP traffic that no pod sent. Such a
// packet was routed to this node to be let into the Service network, and the answer
// has to come back the same way to be translated back.
func (b *unitBuilder) masqueradeForeign() []ruleset.Rule {
	matches := b.to(b.port.ClusterIP, b.port.Port)
	if !b.opts.MasqueradeAll {
		foreign, ok := b.opts.Local.match(true)
		if !ok {
			return nil
		}
		matches = b.toFrom(foreign)
	}
	return []ruleset.Rule{{Matches: matches, Comment: b.comment + " cluster IP", Action: masquerade()}}
}

// toFrom matches cluster IP traffic of some origin. Matches stand in the order of
// iptables-save: source address, destination address, interface, protocol.
func (b *unitBuilder) toFrom(origin ruleset.Match) []ruleset.Match {
	if _, bySource := origin.(ruleset.Source); bySource {
		return b.to(b.port.ClusterIP, b.port.Port, origin)
	}
	return slices.Insert(b.to(b.port.ClusterIP, b.port.Port), 1, origin)
}

// sticks reports whether clients stay with their endpoint.
func (b *unitBuilder) sticks() bool { return b.port.AffinityTimeout > 0 && !b.opts.Lacks.Recent }

// stick sends a client to the endpoint that it was given before, if that was less
// than the affinity timeout ago.
func (b *unitBuilder) stick(endpoints []model.Endpoint) []ruleset.Rule {
	if !b.sticks() {
		return nil
	}
	rules := make([]ruleset.Rule, 0, len(endpoints))
	for _, ep := range endpoints {
		name := endpointChain(b.port.Name, ep.Addr)
		check := ruleset.RecentCheck{
			Name:    name,
			Seconds: uint32(b.port.AffinityTimeout.Seconds()),
			Reap:    true,
			Mask:    b.wholeAddress(),
		}
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{check},
			Comment: b.arrow(ep),
			Action:  ruleset.Jump{Chain: name},
		})
	}
	return rules
}

// addExternal adds the chain through which all traffic to other addresses than the
// cluster IP goes.
func (b *unitBuilder) addExternal() {
	if !b.use.Anywhere || !b.port.IsExternal() {
		return
	}
	var rules []ruleset.Rule
	if b.port.ExternalLocal {
		rules = b.shortCircuit()
	} else {
		// The endpoint may be on another node, which would answer the client directly.
		rules = append(rules, ruleset.Rule{
			Comment: "masquerade traffic for " + b.comment + " external destinations",
			Action:  masquerade(),
		})
	}
	if chain, endpoints := b.external(); len(endpoints) > 0 {
		rules = append(rules, ruleset.Rule{Action: ruleset.Jump{Chain: chain}})
	}
	b.addChain(b.externalChain(), rules)
}

// shortCircuit lets pods and the node itself use every endpoint although the
// external policy is Local: their traffic did not come from outside, and must not
// be lost because the endpoints are elsewhere.
func (b *unitBuilder) shortCircuit() []ruleset.Rule {
	var rules []ruleset.Rule
	toAll := ruleset.Jump{Chain: b.clusterChain()}
	if pods, ok := b.opts.Local.match(false); ok {
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{pods},
			Comment: "pod traffic for " + b.comment + " external destinations",
			Action:  toAll,
		})
	}
	if b.opts.Lacks.AddrType {
		return rules
	}
	fromNode := []ruleset.Match{ruleset.AddrType{Source: "LOCAL"}}
	return append(rules,
		// The node may have chosen the load balancer IP, or 127.0.0.1, as its source;
		// no answer finds its way back to that from another node.
		ruleset.Rule{
			Matches: fromNode,
			Comment: "masquerade LOCAL traffic for " + b.comment + " external destinations",
			Action:  masquerade(),
		},
		ruleset.Rule{
			Matches: fromNode,
			Comment: "route LOCAL traffic for " + b.comment + " external destinations",
			Action:  toAll,
		})
}

// addFirewall adds the chain that holds load balancer traffic against the source
// ranges. What reaches its end is not rewritten, and is dropped in the filter table.
func (b *unitBuilder) addFirewall() {
	if !b.hasFirewall() {
		return
	}
	var rules []ruleset.Rule
	let := func(from netip.Prefix) {
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Source{Prefix: from}},
			Comment: b.comment + " loadbalancer IP",
			Action:  ruleset.Jump{Chain: b.externalChain()},
		})
	}
	nodeMayEnter := false
	for _, r := range b.port.SourceRanges {
		let(r)
		nodeMayEnter = nodeMayEnter || r.Contains(b.opts.Node.Primary())
	}
	if nodeMayEnter {
		// Where a load balancer IP is an address of the node, what the node sends to it
		// has that address as its source.
		for _, vip := range b.port.LoadBalancerVIPs {
			let(single(vip))
		}
	}
	rules = append(rules, ruleset.Rule{
		Comment: "other traffic to " + b.comment + " will be dropped by KUBE-PROXY-FIREWALL",
	})
	b.addChain(b.firewallChain(), rules)
}

// masquerade marks a packet for masquerading when it leaves. The decision is made
// where the connection is known; the address can only be chosen in POSTROUTING.
func masquerade() ruleset.Action { return ruleset.Jump{Chain: markMasqChain} }
