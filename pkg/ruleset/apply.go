package ruleset

import (
	"errors"
	"fmt"
	"maps"
)

// Apply changes the ruleset as iptables-restore --noflush would change a kernel
// that holds it. Each table commits on its own: on the first error, which is one
// that the kernel would refuse a table for, that table and the ones after it are
// left as they were.
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
		if old := next[id]; c.Policy == "" && old != nil {
			c.Policy = old.Policy
		}
		next[id] = &Chain{ChainID: id, Policy: c.Policy, Rules: c.Rules}
	}
	for _, name := range change.Delete {
		id := ChainID{change.Table, name}
		if id.IsBuiltin() {
			errs = append(errs, fmt.Errorf("chain %s is built in and cannot be removed", id))
		}
		delete(next, id)
	}
	return next, errors.Join(append(errs, checkTargets(next), checkLoops(next))...)
}
