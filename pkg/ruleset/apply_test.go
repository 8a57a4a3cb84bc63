package ruleset

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// transaction is input for one iptables-restore --noflush as values. Each table commits
// on its own, in their order.
type transaction []tableChange

// tableChange is a transaction's part for one table.
type tableChange struct {
	table Table
	// write are the chains to create or empty, and then fill.
	write []Chain
	// remove names the chains to empty and remove, after all writes.
	remove []string
}

// input is the transaction as a Builder writes it.
func (t transaction) input() []byte {
	var tables []Table
	for _, change := range t {
		tables = append(tables, change.table)
	}
	b := NewBuilder(tables...)
	for _, change := range t {
		for _, c := range change.write {
			b.Write(c)
		}
		for _, name := range change.remove {
			b.Delete(ChainID{change.table, name})
		}
	}
	return bytes.Join(b.Take(), nil)
}

// apply changes the ruleset as iptables-restore --noflush would change a kernel
// that holds it: built-in chains keep their rules and get more behind them, other
// chains are replaced. Each table commits on its own: on the first error, which is
// one that the kernel would refuse a table for, that table and the ones after it
// are left as they were. A loop is refused where a packet can get into it.
func (rs Ruleset) apply(t transaction) error {
	for _, change := range t {
		next, err := rs.applyTable(change)
		if err != nil {
			return fmt.Errorf("table %s: %w", change.table, err)
		}
		for _, name := range change.remove {
			delete(rs, ChainID{change.table, name})
		}
		maps.Copy(rs, next)
	}
	return nil
}

// applyTable returns the table's chains as they are after the change.
func (rs Ruleset) applyTable(change tableChange) (map[ChainID]*Chain, error) {
	next := map[ChainID]*Chain{}
	for id, c := range rs {
		if id.Table == change.table {
			next[id] = c
		}
	}
	var errs []error
	for _, c := range change.write {
		id := ChainID{change.table, c.Name}
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
	for _, name := range change.remove {
		id := ChainID{change.table, name}
		if id.IsBuiltin() {
			errs = append(errs, fmt.Errorf("chain %s is built in and cannot be removed", id))
			continue
		}
		delete(next, id)
	}
	hooks := slices.DeleteFunc(sortedIDs(next), func(id ChainID) bool { return !id.IsBuiltin() })
	return next, errors.Join(append(errs, checkTargets(next), checkLoops(next, hooks))...)
}
