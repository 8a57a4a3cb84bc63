package trace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// mutant is a ruleset with one mistake in it.
type mutant struct {
	name string
	rs   ruleset.Ruleset
}

// mutants returns a ruleset with every small mistake that has a name here.
func mutants(rs ruleset.Ruleset) []mutant {
	var list []mutant
	add := func(c *ruleset.Chain, i int, what string, rules []ruleset.Rule) {
		changed := ruleset.Ruleset{}
		for id, chain := range rs {
			changed[id] = chain
		}
		changed[c.ChainID] = &ruleset.Chain{ChainID: c.ChainID, Policy: c.Policy, Rules: rules}
		list = append(list, mutant{fmt.Sprintf("%s %s[%d] %s", what, c.ChainID, i, c.Rules[i]), changed})
	}
	for _, table := range rs.Tables() {
		for _, c := range rs.Chains(table) {
			for i, r := range c.Rules {
				if isRedundant(rs, c, i) {
					continue
				}
				add(c, i, "without", slices.Delete(slices.Clone(c.Rules), i, i+1))
				for what, changed := range mistakes(r) {
					if what == "other states" && c.Name == "FORWARD" && i > 1 {
						continue // KUBE-FORWARD before it has taken all but new connections
					}
					add(c, i, what, slices.Concat(c.Rules[:i], []ruleset.Rule{changed}, c.Rules[i+1:]))
				}
			}
		}
	}
	return list
}

// mistakes returns versions of a rule that do something else.
func mistakes(r ruleset.Rule) map[string]ruleset.Rule {
	made := map[string]ruleset.Rule{}
	for i, m := range r.Matches {
		with := func(what string, changed ruleset.Match) {
			o := r
			o.Matches = slices.Clone(r.Matches)
			o.Matches[i] = changed
			made[what] = o
		}
		switch m := m.(type) {
		case ruleset.Random:
			with("other probability", ruleset.Random{Steps: m.Steps - m.Steps/100})
		case ruleset.Source:
			m.Not = !m.Not
			with("other side of source", m)
		case ruleset.DestinationPort:
			m.First, m.Last = m.First+1, m.Last+1
			with("other port", m)
		case ruleset.RecentCheck:
			m.Seconds /= 2
			with("other timeout", m)
		case ruleset.RecentSet:
			m.Name = "OTHER"
			with("other list", m)
		case ruleset.Conntrack:
			m.States ^= ruleset.Established
			with("other states", m)
		}
	}
	switch a := r.Action.(type) {
	case ruleset.DNAT:
		o := r
		o.Action = ruleset.DNAT{To: netip.AddrPortFrom(a.To.Addr(), a.To.Port()+1)}
		made["other target port"] = o
		o.Action = ruleset.DNAT{To: netip.AddrPortFrom(a.To.Addr().Next(), a.To.Port())}
		made["other target"] = o
	case ruleset.Reject:
		o := r
		o.Action = ruleset.Drop{}
		made["drops instead"] = o
	case ruleset.Drop:
		o := r
		o.Action = ruleset.Accept{}
		made["accepts instead"] = o
	}
	return made
}

// isRedundant reports whether a rule of kube-proxy's does nothing: it only counts,
// or only names a chain in which there is nothing.
func isRedundant(rs ruleset.Ruleset, c *ruleset.Chain, i int) bool {
	r := c.Rules[i]
	if r.Action == nil {
		return true
	}
	for _, m := range r.Matches {
		if _, ok := m.(ruleset.NFAcct); ok && c.Name == "KUBE-NODEPORTS" {
			return true // the next rule is the same without the counting
		}
	}
	switch {
	case c.Name == "OUTPUT" && r.Target() == "KUBE-FIREWALL":
		return true // INPUT drops the same packets when they come back from lo
	case c.Name == "INPUT" && r.Target() == "KUBE-PROXY-FIREWALL":
		return true // the load balancer's addresses are not the host's
	}
	target := rs[ruleset.ChainID{Table: c.Table, Name: r.Target()}]
	return target != nil && len(target.Rules) == 0
}

// TestCompareFindsMutants is the test of the tests: an oracle that is content with
// everything would let everything pass.
func TestCompareFindsMutants(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	for _, r := range results(t, "affinity-clientip", "dual-stack", "lb-local-0-endpoints", "config-detect-bridge") {
		t.Run(r.name, func(t *testing.T) {
			want := newTracer(t, r.rs, r.host)
			// Packets that are alike stand next to each other; in another order a
			// difference shows sooner.
			packets := trace.Packets(r.host, extra, r.rs)
			random := rand.New(rand.NewPCG(seed, 0))
			random.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
			for _, m := range mutants(r.rs) {
				differences, err := trace.Compare(newTracer(t, m.rs, r.host), want, packets)
				if err != nil {
					t.Fatal(err)
				}
				if len(differences) == 0 {
					t.Errorf("no difference: %s", m.name)
				}
			}
		})
	}
}
