package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Change is what was done to the jumps in one built-in chain.
type Change struct {
	Chain             ruleset.ChainID
	Inserted, Removed int
}

// String returns such as "nat/PREROUTING: 1 inserted, 0 removed".
func (c Change) String() string {
	return fmt.Sprintf("%v: %d inserted, %d removed", c.Chain, c.Inserted, c.Removed)
}

// EnsureJumps makes each hook stand exactly once in its built-in chain, in the
// order given, in front of whatever ends that chain; planJumps says what else it
// touches. The chains that the hooks jump to must exist. It returns what it
// changed, which is nothing on most calls. A chain that could not be looked at is
// left as it is, and the error says so.
func (r *Runner) EnsureJumps(ctx context.Context, hooks []ruleset.Hook) ([]Change, error) {
	var changes []Change
	var errs []error
	for _, from := range builtinsOf(hooks) {
		change, err := r.ensureJumps(ctx, from, rulesIn(hooks, from))
		if err != nil {
			errs = append(errs, fmt.Errorf("ensure the %v jumps in %v: %w", r.family, from, err))
		}
		if change.Inserted+change.Removed > 0 {
			changes = append(changes, change)
		}
	}
	return changes, errors.Join(errs...)
}

// builtinsOf lists the chains that the hooks are in, in the order of the hooks.
func builtinsOf(hooks []ruleset.Hook) []ruleset.ChainID {
	var ids []ruleset.ChainID
	for _, h := range hooks {
		if !slices.Contains(ids, h.From) {
			ids = append(ids, h.From)
		}
	}
	return ids
}

// rulesIn lists the rules of the hooks that are in one chain.
func rulesIn(hooks []ruleset.Hook, from ruleset.ChainID) []ruleset.Rule {
	var rules []ruleset.Rule
	for _, h := range hooks {
		if h.From == from {
			rules = append(rules, h.Rule)
		}
	}
	return rules
}

func (r *Runner) ensureJumps(ctx context.Context, from ruleset.ChainID, want []ruleset.Rule) (Change, error) {
	change := Change{Chain: from}
	if err := ctx.Err(); err != nil {
		return change, err
	}
	lines, err := r.seams.Chains.List(string(from.Table), from.Name)
	if status := exitStatus(err); status == exitNotFound || status == exitUnsupported {
		// A built-in chain cannot be missing. iptables-nft cannot print one that holds a
		// native nft rule, or one of a newer iptables, but can still insert ours.
		change.Inserted, err = r.insertUnlisted(from, want)
		return change, err
	}
	if err != nil {
		return change, err
	}
	plan := planJumps(want, readRules(from, lines, func(name string) bool { return targets(want, name) }))
	if len(plan.remove) > 0 {
		// Rules are deleted by what they are, since a position could by now be that of
		// a foreign rule, and deleted and inserted in one transaction, so that no
		// packet finds the chain without them.
		if err := r.Restore(ctx, jumpInput(from, plan)); err != nil {
			return change, err
		}
		change.Inserted, change.Removed = len(plan.insert), len(plan.remove)
		return change, nil
	}
	for _, in := range plan.insert {
		if err := r.seams.Chains.Insert(string(from.Table), from.Name, in.at, in.rule.Args()...); err != nil {
			return change, err
		}
		change.Inserted++
	}
	return change, nil
}

// insertUnlisted puts at the head of a chain what is certainly not in it, or not
// before a rule that iptables cannot read: there the search ends, with the status of
// an unsupported table. A second jump behind such a rule changes nothing for a packet.
func (r *Runner) insertUnlisted(from ruleset.ChainID, want []ruleset.Rule) (inserted int, err error) {
	for _, rule := range slices.Backward(want) {
		found, err := r.seams.Chains.Exists(string(from.Table), from.Name, rule.Args()...)
		if err != nil && exitStatus(err) != exitUnsupported {
			return inserted, err
		}
		if found {
			continue
		}
		if err := r.seams.Chains.Insert(string(from.Table), from.Name, 1, rule.Args()...); err != nil {
			return inserted, err
		}
		inserted++
	}
	return inserted, nil
}

// removeRules removes from a built-in chain all rules that match says, in one
// transaction, or does nothing if there is none.
func (r *Runner) removeRules(ctx context.Context, from ruleset.ChainID, isChain func(string) bool, match func(ruleset.Rule) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lines, err := r.seams.Chains.List(string(from.Table), from.Name)
	if err != nil {
		return err
	}
	var plan jumpPlan
	for _, found := range readRules(from, lines, isChain) {
		if match(found.rule) {
			plan.remove = append(plan.remove, found.spec)
		}
	}
	if len(plan.remove) == 0 {
		return nil
	}
	return r.Restore(ctx, jumpInput(from, plan))
}

// jumpInput writes a plan as restore input.
func jumpInput(from ruleset.ChainID, plan jumpPlan) []byte {
	b := fmt.Appendf(nil, "*%s\n", from.Table)
	for _, spec := range plan.remove {
		b = fmt.Appendf(b, "-D %s %s\n", from.Name, spec)
	}
	for _, in := range plan.insert {
		b = fmt.Appendf(b, "-I %s %d %s\n", from.Name, in.at, in.rule)
	}
	return append(b, "COMMIT\n"...)
}
