package proxier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// To look after the jump rules takes at most one part in jumpShare of the time, and is put
// off for mostJumpPeriods at the most: on the legacy backend each look copies the whole
// table. The canary, which looks by the same commands, keeps to the same.
const (
	jumpShare       = 100
	mostJumpPeriods = 10
)

// jumpsWereMissing looks after the jump rules from time to time, and reports whether
// some had been removed.
func (p *Proxier) jumpsWereMissing(ctx context.Context) bool {
	if p.settings.JumpsAwait != nil && p.settings.JumpsAwait() {
		return false // what is known to be missing is no reason to write everything
	}
	period := p.settings.JumpPeriod
	if time.Since(p.jumpsChecked) < max(period, min(jumpShare*p.jumpsCost, mostJumpPeriods*period)) {
		return false
	}
	err := p.ensureJumps(ctx)
	if err != nil {
		// Not to have looked says nothing about the rules.
		klog.FromContext(ctx).Error(err, "Could not look after the jump rules; trying again with the next sync")
	}
	return bypassed(p.jumpChanges) || err != nil && p.jumpsLeadNowhere(ctx)
}

// jumpsLeadNowhere reports whether a chain that a jump rule leads to is gone. Then
// none can be put in place before everything is written again.
func (p *Proxier) jumpsLeadNowhere(ctx context.Context) bool {
	for _, id := range p.jumpTargets() {
		if found, err := p.kernel.HasChain(ctx, id); !found || err != nil {
			return err == nil
		}
	}
	return false
}

// jumpsComeFirst puts jump rules in place before the chains that they lead to are filled,
// and reports whether that was possible. On the legacy backend each command copies the
// table, which is small only until then: with 10,000 Services it takes 4 s afterwards.
// Where nothing is missing the chains are there, and stay as they are.
func (p *Proxier) jumpsComeFirst(ctx context.Context) bool {
	if p.ensureJumps(ctx) == nil {
		return true
	}
	return p.ensureTargets(ctx) == nil && p.ensureJumps(ctx) == nil
}

// ensureTargets makes the chains that jump rules lead to, where they are missing.
func (p *Proxier) ensureTargets(ctx context.Context) error {
	for _, id := range p.jumpTargets() {
		if _, err := p.kernel.EnsureChain(ctx, id); err != nil {
			return fmt.Errorf("make sure of chain %s: %w", id, err)
		}
	}
	return nil
}

// jumpTargets lists the chains that jump rules lead to, each once.
func (p *Proxier) jumpTargets() []ruleset.ChainID {
	var ids []ruleset.ChainID
	for _, hook := range p.opts.Lacks.Hooks() {
		ids = append(ids, ruleset.ChainID{Table: hook.From.Table, Name: hook.Rule.Target()})
	}
	return distinct(ids)
}

// ensureJumps makes sure that packets find their way into the chains, and takes note of
// what it had to do for that. Where this comes after the first full write, it is the
// moment from which the rules count.
func (p *Proxier) ensureJumps(ctx context.Context) error {
	start := time.Now()
	for _, id := range render.SharedChains() {
		if _, err := p.kernel.EnsureChain(ctx, id); err != nil {
			return fmt.Errorf("make sure of chain %s: %w", id, err)
		}
	}
	changes, err := p.kernel.EnsureJumps(ctx, p.opts.Lacks.Hooks())
	p.jumpChanges = append(p.jumpChanges, changes...)
	for _, change := range changes {
		klog.FromContext(ctx).Info("Put jump rules in place", "chain", change.Chain.String(), "inserted", change.Inserted, "removed", change.Removed)
	}
	if err != nil {
		return fmt.Errorf("make sure of the jump rules: %w", err)
	}
	p.jumpsChecked, p.jumpsCost = time.Now(), time.Since(start)
	return nil
}

// bypassed reports whether packets could not find their way before the changes.
func bypassed(changes []iptables.Change) bool {
	return slices.ContainsFunc(changes, func(c iptables.Change) bool { return c.Bypassed })
}

// changedChains lists the built-in chains whose jump rules were changed, each once.
func changedChains(changes []iptables.Change) []ruleset.ChainID {
	var ids []ruleset.ChainID
	for _, change := range changes {
		ids = append(ids, change.Chain)
	}
	return distinct(ids)
}

// distinct returns the chains in order, each once.
func distinct(ids []ruleset.ChainID) []ruleset.ChainID {
	slices.SortFunc(ids, ruleset.ChainID.Compare)
	return slices.Compact(ids)
}
