package ruleset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Apply changes the ruleset as iptables-restore --noflush would change a kernel
// that holds it: built-in chains keep their rules and get more behind them, other
// chains are replaced. Each table commits on its own: on the first error, which is
// one that the kernel would refuse a table for, that table and the ones after it
// are left as they were. A loop is refused where a packet can get into it.
func (rs Ruleset) Apply(t Transaction) error {
	for _, change := range t.Tables {
		next, err := rs.applyTable(change)
		if err != nil {
			return fmt.Errorf("table %s: %w", change.Table, err)
		}
		for _, name := range change.Delete {
			delete(rs, ChainID{change.Table, name})
		}
		maps.Copy(rs, next)
	}
	return nil
}

// applyTable returns the table's chains as they are after the change.
func (rs Ruleset) applyTable(change TableChange) (map[ChainID]*Chain, error) {
	next := map[ChainID]*Chain{}
	for id, c := range rs {
		if id.Table == change.Table {
			next[id] = c
		}
	}
	var errs []error
	for _, c := range change.Write {
		id := ChainID{change.Table, c.Name}
		if err := checkChainName(c.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		policy, rules := c.Policy, c.Rules
		if old := next[id]; old != nil && id.IsBuiltin() {
			policy, rules = cmp.Or(policy, old.Policy), slices.Concat(old.Rules, rules)
		}
		next[id] = &Chain{ChainID: id, Policy: policy, Rules: rules}
	}
	for _, name := range change.Delete {
		id := ChainID{change.Table, name}
		if id.IsBuiltin() {
			errs = append(errs, fmt.Errorf("chain %s is built in and cannot be removed", id))
			continue
		}
		delete(next, id)
	}
	hooks := slices.DeleteFunc(sortedIDs(next), func(id ChainID) bool { return !id.IsBuiltin() })
	return next, errors.Join(append(errs, checkTargets(next), checkLoops(next, hooks))...)
}
