// Package audit holds what the kernel has against what it should have: chain by
// chain, and for the jump rules in the built-in chains. It reads and changes nothing.
package audit

import (
	"context"
	"fmt"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Want is what one family's tables should hold.
type Want struct {
	// Chains are the chains with their rules. Of those that are Shared, others may
	// have rules in them too.
	Chains []ruleset.Chain
	// Canaries are the chains that tell of a flush.
	Canaries []ruleset.Chain
	// Hooks are the jump rules in the built-in chains.
	Hooks []ruleset.Hook
	// Owns says which chains should not be there unless they are in Chains or Canaries.
	Owns func(ruleset.ChainID) bool
	// Shared are chains that must exist, and belong to others as well.
	Shared []ruleset.ChainID
}

// Kernel reads the tables of one family.
type Kernel interface {
	// Contents reads the chains of a table that wanted says yes to.
	Contents(ctx context.Context, table ruleset.Table, wanted func(name string) bool) (iptables.Contents, error)
	// ChainNames lists the chains of a table, none if it does not exist.
	ChainNames(ctx context.Context, table ruleset.Table) ([]string, error)
	// Rules reads a chain that exists, or says that it wraps iptables.ErrUnreadable.
	Rules(ctx context.Context, id ruleset.ChainID) ([]ruleset.Rule, error)
	// HasRule asks for one rule of a chain. An error leaves open whether it is there.
	HasRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) (bool, error)
}

// tables are the tables that are looked at, in this order.
var tables = [...]ruleset.Table{ruleset.Filter, ruleset.NAT, ruleset.Mangle}

// Look reads what the kernel has and compares it with what it should have. The error
// says that the kernel could not be looked at, which says nothing about the rules.
func Look(ctx context.Context, kernel Kernel, want Want) ([]Difference, error) {
	have := iptables.Contents{Chains: ruleset.Ruleset{}}
	for _, table := range tables {
		found, err := kernel.Contents(ctx, table, func(name string) bool {
			return want.concerns(ruleset.ChainID{Table: table, Name: name})
		})
		if err != nil {
			return nil, err
		}
		for id, chain := range found.Chains {
			have.Chains[id] = chain
		}
		have.Unreadable = append(have.Unreadable, found.Unreadable...)
	}
	if err := readJumps(ctx, kernel, &have, want.Hooks); err != nil {
		return nil, err
	}
	return Compare(have, want), nil
}

// Jumps compares only the jump rules, which is quick however large the tables are.
func Jumps(ctx context.Context, kernel Kernel, hooks []ruleset.Hook) ([]Difference, error) {
	have := iptables.Contents{Chains: ruleset.Ruleset{}}
	for _, from := range ruleset.HookedChains(hooks) {
		names, err := kernel.ChainNames(ctx, from.Table)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, from.Name) {
			continue
		}
		rules, err := kernel.Rules(ctx, from)
		if err != nil && !isUnreadable(err) {
			return nil, err
		}
		if err != nil {
			have.Unreadable = append(have.Unreadable, from)
			continue
		}
		have.Chains[from] = &ruleset.Chain{ChainID: from, Rules: rules}
	}
	if err := readJumps(ctx, kernel, &have, hooks); err != nil {
		return nil, err
	}
	return compareJumps(have.Chains, hooks), nil
}

// readJumps finds the jump rules of built-in chains that cannot be read as a whole,
// as far as packets get to them before the rule that cannot be read.
func readJumps(ctx context.Context, kernel Kernel, have *iptables.Contents, hooks []ruleset.Hook) error {
	for _, hook := range hooks {
		if !slices.Contains(have.Unreadable, hook.From) {
			continue
		}
		found, err := kernel.HasRule(ctx, hook.From, hook.Rule)
		if iptables.IsBusy(err) {
			return fmt.Errorf("look for a jump rule: %w", err)
		}
		// Any other error is the rule that cannot be read: the search ended there.
		if err != nil || !found {
			continue
		}
		chain := have.Chains[hook.From]
		if chain == nil {
			chain = &ruleset.Chain{ChainID: hook.From}
			have.Chains[hook.From] = chain
		}
		chain.Rules = append(chain.Rules, hook.Rule)
	}
	return nil
}

// concerns reports whether a chain is looked at.
func (w Want) concerns(id ruleset.ChainID) bool {
	return w.Owns(id) || slices.Contains(w.Shared, id) ||
		slices.ContainsFunc(w.Hooks, func(h ruleset.Hook) bool { return h.From == id }) ||
		slices.ContainsFunc(w.Canaries, func(c ruleset.Chain) bool { return c.ChainID == id })
}
