package render

import (
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Fixed renders the chains that do not depend on any Service.
func Fixed(opts Options) []ruleset.Chain {
	chains := []ruleset.Chain{forward(opts), markMasq(opts), postrouting(opts)}
	if opts.NodePorts.Loopback {
		chains = append([]ruleset.Chain{guardLoopback(opts)}, chains...)
	}
	for i := range chains {
		chains[i].Rules = opts.Lacks.uncomment(chains[i].Rules)
	}
	return chains
}

// LoopbackGuard is the chain that must be there, with its hooks, before the sysctl
// route_localnet is set.
func LoopbackGuard() ruleset.Chain { return guardLoopback(Options{Family: model.IPv4}) }

// guardLoopback closes what route_localnet opens: with it the kernel would accept a
// neighbour's packet to 127.0.0.1 from the wire (CVE-2020-8558). Answers, and what
// was rewritten from a node port, have such addresses rightly.
func guardLoopback(opts Options) ruleset.Chain {
	loopback := opts.Family.Loopback()
	return ruleset.Chain{ChainID: filterChain(FirewallChain), Rules: []ruleset.Rule{{
		Matches: []ruleset.Match{
			ruleset.Source{Prefix: loopback, Not: true},
			ruleset.Destination{Prefix: loopback},
			ruleset.Conntrack{States: ruleset.Related | ruleset.Established | ruleset.DNATed, Not: true},
		},
		Comment: "block incoming localnet connections",
		Action:  ruleset.Drop{},
	}}}
}

// forward accepts forwarded Service traffic even if FORWARD's policy is to drop,
// as Docker sets it.
func forward(opts Options) ruleset.Chain {
	var rules []ruleset.Rule
	if opts.DropInvalid {
		matches := []ruleset.Match{ruleset.Conntrack{States: ruleset.Invalid}}
		if opts.InvalidAccount != "" {
			matches = append(matches, ruleset.NFAcct{Name: opts.InvalidAccount})
		}
		rules = append(rules, ruleset.Rule{Matches: matches, Action: ruleset.Drop{}})
	}
	if !opts.Lacks.Masquerade {
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Mark{Value: opts.MasqueradeMark, Mask: opts.MasqueradeMark}},
			Comment: "kubernetes forwarding rules",
			Action:  ruleset.Accept{},
		})
	}
	// The mark is on a connection's first packet only; this is for the rest.
	if !opts.Lacks.Conntrack {
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Conntrack{States: ruleset.Related | ruleset.Established}},
			Comment: "kubernetes forwarding conntrack rule",
			Action:  ruleset.Accept{},
		})
	}
	return ruleset.Chain{ChainID: filterChain(forwardChain), Rules: rules}
}

// markMasq asks for masquerading. Without any it is empty: what jumps there goes on.
func markMasq(opts Options) ruleset.Chain {
	if opts.Lacks.Masquerade {
		return ruleset.Chain{ChainID: natChain(markMasqChain)}
	}
	set := ruleset.SetMark{Value: opts.MasqueradeMark, Mask: opts.MasqueradeMark}
	return ruleset.Chain{ChainID: natChain(markMasqChain), Rules: []ruleset.Rule{{Action: set}}}
}

// postrouting masquerades what was marked. The mark is cleared first: it would stay
// on a packet that goes on in a tunnel, whose outer packet would then be masqueraded
// too (kubernetes/kubernetes#88986).
func postrouting(opts Options) ruleset.Chain {
	if opts.Lacks.Masquerade {
		return ruleset.Chain{ChainID: natChain(postroutingChain)}
	}
	mark := opts.MasqueradeMark
	return ruleset.Chain{ChainID: natChain(postroutingChain), Rules: []ruleset.Rule{
		{Matches: []ruleset.Match{ruleset.Mark{Value: mark, Mask: mark, Not: true}}, Action: ruleset.Return{}},
		{Action: ruleset.SetMark{Value: mark}},
		{
			Comment: "kubernetes service traffic requiring SNAT",
			Action:  ruleset.Masquerade{RandomFully: opts.RandomFully},
		},
	}}
}

// Hooks lists the rules that lead from the built-in chains into ours, in the order
// in which they stand there. Install, check, repair and cleanup all walk this list.
//
// The filter table is asked about new connections only, so that refusing a Service
// that lost its endpoints leaves open connections alone.
func Hooks() []ruleset.Hook {
	fresh := []ruleset.Match{ruleset.Conntrack{States: ruleset.New}}
	const portals, external = "kubernetes service portals", "kubernetes externally-visible service portals"
	const firewall, health = "kubernetes load balancer firewall", "kubernetes health check service ports"
	return []ruleset.Hook{
		hook(ruleset.NAT, "PREROUTING", nil, portals, servicesChain),
		hook(ruleset.NAT, "OUTPUT", nil, portals, servicesChain),
		hook(ruleset.NAT, "POSTROUTING", nil, "kubernetes postrouting rules", postroutingChain),

		hook(ruleset.Filter, "INPUT", nil, "", FirewallChain),
		hook(ruleset.Filter, "INPUT", fresh, firewall, proxyFirewallChain),
		hook(ruleset.Filter, "INPUT", nil, health, nodePortsChain),
		hook(ruleset.Filter, "INPUT", fresh, external, externalServicesChain),

		hook(ruleset.Filter, "FORWARD", fresh, firewall, proxyFirewallChain),
		hook(ruleset.Filter, "FORWARD", nil, "kubernetes forwarding rules", forwardChain),
		hook(ruleset.Filter, "FORWARD", fresh, portals, servicesChain),
		hook(ruleset.Filter, "FORWARD", fresh, external, externalServicesChain),

		hook(ruleset.Filter, "OUTPUT", nil, "", FirewallChain),
		hook(ruleset.Filter, "OUTPUT", fresh, firewall, proxyFirewallChain),
		hook(ruleset.Filter, "OUTPUT", fresh, portals, servicesChain),
	}
}

func hook(table ruleset.Table, from string, matches []ruleset.Match, comment, to string) ruleset.Hook {
	return ruleset.Hook{
		From: ruleset.ChainID{Table: table, Name: from},
		Rule: ruleset.Rule{Matches: matches, Comment: comment, Action: ruleset.Jump{Chain: to}},
	}
}

// SharedChains are jumped to by hooks but belong to somebody else as well: they are
// created where they are missing, and otherwise left as they are unless a rule of
// ours has to be in them.
func SharedChains() []ruleset.ChainID { return []ruleset.ChainID{filterChain(FirewallChain)} }

// Shares reports whether a chain is one of SharedChains.
func Shares(id ruleset.ChainID) bool { return slices.Contains(SharedChains(), id) }

// IsHooked reports whether a jump rule of ours stands in a chain.
func IsHooked(id ruleset.ChainID) bool {
	return slices.ContainsFunc(Hooks(), func(h ruleset.Hook) bool { return h.From == id })
}
