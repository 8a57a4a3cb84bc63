package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Change is what was done to the jumps in one built-in chain.
type Change struct {
	Chain             ruleset.ChainID
	Inserted, Removed int
	// Bypassed says that packets had got past a chain that a jump was to lead them to.
	Bypassed bool
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
	plans := map[ruleset.Table][]jumpPlan{}
	for _, from := range ruleset.HookedChains(hooks) {
		plan, inserted, err := r.planJumps(ctx, from, ruleset.HooksIn(hooks, from))
		if err != nil {
			errs = append(errs, jumpError(r.family, from, err))
		}
		if inserted > 0 {
			changes = append(changes, Change{Chain: from, Inserted: inserted, Bypassed: true})
		}
		if len(plan.insert)+len(plan.remove) > 0 {
			plans[from.Table] = append(plans[from.Table], plan)
		}
	}
	for _, table := range slices.Sorted(maps.Keys(plans)) {
		done, err := r.applyJumps(ctx, plans[table])
		changes, errs = append(changes, done...), append(errs, err)
	}
	return changes, errors.Join(errs...)
}

func jumpError(family model.Family, from ruleset.ChainID, err error) error {
	return fmt.Errorf("ensure the %v jumps in %v: %w", family, from, err)
}

// planJumps looks at a built-in chain and says what is to be done to it. Into one that
// cannot be listed it inserts at once, and says how many rules.
func (r *Runner) planJumps(ctx context.Context, from ruleset.ChainID, want []ruleset.Rule) (plan jumpPlan, inserted int, err error) {
	if err := ctx.Err(); err != nil {
		return jumpPlan{}, 0, err
	}
	lines, err := r.seams.Chains.List(string(from.Table), from.Name)
	if status := exitStatus(err); status == exitNotFound || status == exitUnsupported {
		// A built-in chain cannot be missing. iptables-nft cannot print one that holds a
		// native nft rule, or one of a newer iptables, but can still insert ours.
		inserted, err = r.insertUnlisted(from, want)
		return jumpPlan{}, inserted, err
	}
	if err != nil {
		return jumpPlan{}, 0, err
	}
	plan = planJumps(want, readRules(from, lines, func(name string) bool { return targets(want, name) }))
	plan.from = from
	return plan, 0, nil
}

// applyJumps carries out the plans for the chains of one table, all in one transaction:
// on the legacy backend each of them copies the whole table. One that is refused is
// tried chain by chain, so that what can be put in place is.
func (r *Runner) applyJumps(ctx context.Context, plans []jumpPlan) (changes []Change, err error) {
	// Rules are deleted by what they are, since a position could by now be that of a
	// foreign rule, and deleted and inserted in one transaction, so that no packet finds
	// the chain without them.
	err = r.Restore(ctx, jumpInput(plans...))
	switch {
	case err == nil:
		for _, p := range plans {
			changes = append(changes, Change{Chain: p.from, Inserted: len(p.insert), Removed: len(p.remove), Bypassed: p.bypassed})
		}
		return changes, nil
	case len(plans) == 1:
		return nil, jumpError(r.family, plans[0].from, err)
	}
	var errs []error
	for _, p := range plans {
		done, err := r.applyJumps(ctx, []jumpPlan{p})
		changes, errs = append(changes, done...), append(errs, err)
	}
	return changes, errors.Join(errs...)
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
	plan := jumpPlan{from: from}
	for _, found := range readRules(from, lines, isChain) {
		if match(found.rule) {
			plan.remove = append(plan.remove, found.spec)
		}
	}
	if len(plan.remove) == 0 {
		return nil
	}
	return r.Restore(ctx, jumpInput(plan))
}

// jumpInput writes plans for chains of one table as restore input.
func jumpInput(plans ...jumpPlan) []byte {
	b := fmt.Appendf(nil, "*%s\n", plans[0].from.Table)
	for _, p := range plans {
		for _, spec := range p.remove {
			b = fmt.Appendf(b, "-D %s %s\n", p.from.Name, spec)
		}
		for _, in := range p.insert {
			b = fmt.Appendf(b, "-I %s %d %s\n", p.from.Name, in.at, in.rule)
		}
	}
	return append(b, "COMMIT\n"...)
}
