package render

import (
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Lacks says which matches and targets the kernel, or its iptables, has not got. Rules
// do without them, since one unknown word makes a whole transaction fail. Each field
// says which packets fare otherwise for it. The zero value lacks nothing.
type Lacks struct {
	// Comment: no packet does, but people do not find their Service in the rules.
	Comment bool
	// Conntrack: the filter table is asked about every packet, not about a connection's
	// first one only; KUBE-FORWARD neither accepts what belongs to a connection nor
	// drops what is INVALID; and node ports do not answer on loopback addresses.
	Conntrack bool
	// Masquerade (the mark match, and the targets MARK and MASQUERADE): every packet
	// keeps its source. Answers to what should have been masqueraded go astray.
	Masquerade bool
	// Recent: there is no session affinity.
	Recent bool
	// Statistic: a Service port has no endpoint but the first one.
	Statistic bool
	// AddrType: node ports answer on the addresses that the node had at the last sync,
	// and do not refuse where there is no endpoint; the node itself counts as any client
	// where the external policy is Local.
	AddrType bool
	// Reject: what should be refused is dropped, and its client waits.
	Reject bool
	// SCTP: SCTP ports are left out.
	SCTP bool
}

// Without returns the options for a kernel that lacks something, on a host with some
// addresses.
func (o Options) Without(l Lacks, addresses []netip.Addr) Options {
	o.Lacks = l
	if l.Conntrack {
		// Nothing could guard the loopback addresses against neighbours, see guardLoopback.
		o.NodePorts.Loopback, o.LocalhostAccount = false, ""
		o.DropInvalid = false
	}
	if l.AddrType && o.NodePorts.All {
		o.NodePorts.All = false
		o.NodePorts.Addresses = slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !o.Family.Has(a) })
		slices.SortFunc(o.NodePorts.Addresses, netip.Addr.Compare)
		o.NodePorts.Addresses = slices.Compact(o.NodePorts.Addresses) // two interfaces can have one
	}
	return o
}

// Hooks lists the hooks as the kernel takes them.
func (l Lacks) Hooks() []ruleset.Hook {
	hooks := Hooks()
	for i := range hooks {
		rule := &hooks[i].Rule
		if l.Conntrack {
			rule.Matches = nil // being new is all that they ask
		}
		if l.Comment {
			rule.Comment = ""
		}
	}
	return hooks
}

// uncomment takes the comments off rules if the kernel has none.
func (l Lacks) uncomment(rules []ruleset.Rule) []ruleset.Rule {
	if l.Comment {
		return withoutComments(rules)
	}
	return rules
}

// reachable narrows what may be used down to what the rules can choose from.
func (l Lacks) reachable(use model.Reachable) model.Reachable {
	if !l.Statistic {
		return use
	}
	use.Cluster = use.Cluster[:min(len(use.Cluster), 1)]
	use.Local = use.Local[:min(len(use.Local), 1)]
	chosen := slices.Concat(use.Cluster, use.Local)
	use.All = slices.DeleteFunc(slices.Clone(use.All), func(e model.Endpoint) bool {
		return !slices.ContainsFunc(chosen, func(c model.Endpoint) bool { return c.Addr == e.Addr })
	})
	return use
}
