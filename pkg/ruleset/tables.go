package ruleset

import (
	"cmp"
	"maps"
	"slices"
)

// builtins are the chains that the kernel makes, by table, in the order in which
// iptables-save prints them.
var builtins = map[Table][]string{
	"raw":      {"PREROUTING", "OUTPUT"},
	Mangle:     {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	NAT:        {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	Filter:     {"INPUT", "FORWARD", "OUTPUT"},
	"security": {"INPUT", "FORWARD", "OUTPUT"},
}

// IsBuiltin reports whether the kernel makes the chain itself and calls it from a
// hook.
func (id ChainID) IsBuiltin() bool { return slices.Contains(builtins[id.Table], id.Name) }

// Tables returns the tables that have chains in the ruleset: mangle, nat and
// filter, then others by name.
func (rs Ruleset) Tables() []Table {
	seen := map[Table]bool{}
	for id := range rs {
		seen[id.Table] = true
	}
	rank := func(t Table) int {
		if i := slices.Index([]Table{Mangle, NAT, Filter}, t); i >= 0 {
			return i
		}
		return 3
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b Table) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}

// Chains returns the chains of a table: built-in ones in the order of the hooks,
// then the others by name.
func (rs Ruleset) Chains(table Table) []*Chain {
	var chains []*Chain
	for id, c := range rs {
		if id.Table == table {
			chains = append(chains, c)
		}
	}
	rank := func(c *Chain) int {
		if i := slices.Index(builtins[table], c.Name); i >= 0 {
			return i
		}
		return len(builtins[table])
	}
	slices.SortFunc(chains, func(a, b *Chain) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return chains
}

// Target returns the chain that the rule jumps or goes to, "" when it does neither.
func (r Rule) Target() string {
	switch a := r.Action.(type) {
	case Jump:
		return a.Chain
	case Goto:
		return a.Chain
	}
	return ""
}
