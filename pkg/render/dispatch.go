package render

import (
	"cmp"
	"maps"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Conflict is a frontend that several Services claim. The loser gets none of the
// frontend's traffic until the winner gives it up.
type Conflict struct {
	Frontend      Frontend
	Winner, Loser model.ServicePortName
}

// Dispatch renders the entries of all units into the dispatch chains. Of several
// Services that claim one frontend the oldest has it, then the first by name; the
// others are reported.
func Dispatch(units map[model.ServicePortName]*Unit, opts Options) ([]ruleset.Chain, []Conflict) {
	var rules [indexCount][]ruleset.Rule
	owners, conflicts := settle(units)
	for _, name := range slices.SortedFunc(maps.Keys(units), model.ServicePortName.Compare) {
		for _, e := range units[name].Entries {
			if owners[e.claim()] == name {
				rules[e.Index] = append(rules[e.Index], e.Rules...)
			}
		}
	}
	rules[NATServices] = append(rules[NATServices], toNodePorts(opts)...)

	// The filter table commits first and nat last; within a table the order is free.
	order := [...]Index{FilterServices, FilterExternal, FilterFirewall, FilterNodePorts, NATNodePorts, NATServices}
	chains := make([]ruleset.Chain, 0, len(order))
	for _, index := range order {
		chains = append(chains, ruleset.Chain{ChainID: index.chain(), Rules: rules[index]})
	}
	return chains, conflicts
}

// claim is what two units cannot both have: a frontend, where health check ports
// are a space of their own, since nothing is rewritten there.
type claim struct {
	frontend    Frontend
	healthCheck bool
}

func (e Entry) claim() claim {
	return claim{frontend: e.Frontend, healthCheck: e.Index == FilterNodePorts}
}

// settle decides who owns each frontend. A frontend goes to one unit in all indexes
// alike: a Service that has no endpoints and is the owner refuses, although a
// younger one would have some.
func settle(units map[model.ServicePortName]*Unit) (map[claim]model.ServicePortName, []Conflict) {
	owners := make(map[claim]model.ServicePortName, 2*len(units))
	var conflicts []Conflict
	for _, u := range slices.SortedFunc(maps.Values(units), byAge) {
		for _, e := range u.Entries {
			owner, taken := owners[e.claim()]
			switch {
			case !taken:
				owners[e.claim()] = u.Name
			case owner == u.Name, owner.ServiceName == u.Name.ServiceName:
				// Its own, or the health check port that all ports of a Service share.
			default:
				conflicts = append(conflicts, Conflict{Frontend: e.Frontend, Winner: owner, Loser: u.Name})
			}
		}
	}
	return owners, slices.Compact(conflicts)
}

func byAge(a, b *Unit) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
}

// toNodePorts is the end of KUBE-SERVICES: what no Service address matched goes to
// the node ports if it is for this node.
func toNodePorts(opts Options) []ruleset.Rule {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	jump := ruleset.Jump{Chain: nodePortsChain}
	if opts.NodePorts.All {
		var matches []ruleset.Match
		if !opts.NodePorts.Loopback {
			matches = append(matches, ruleset.Destination{Prefix: opts.Family.Loopback(), Not: true})
		}
		matches = append(matches, ruleset.AddrType{Destination: "LOCAL"})
		return []ruleset.Rule{{Matches: matches, Comment: comment, Action: jump}}
	}
	var rules []ruleset.Rule
	for _, addr := range opts.NodePorts.Addresses {
		if addr.IsLoopback() && !opts.NodePorts.Loopback {
			continue
		}
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Destination{Prefix: single(addr)}},
			Comment: comment,
			Action:  jump,
		})
	}
	return rules
}
