package proxier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

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
	period := p.settings.JumpPeriod
	if time.Since(p.jumpsChecked) < max(period, min(jumpShare*p.jumpsCost, mostJumpPeriods*period)) {
		return false
	}
	missing, err := p.ensureJumps(ctx)
	if err != nil {
		// Not to have looked says nothing about the rules.
		klog.FromContext(ctx).Error(err, "Could not look after the jump rules; trying again with the next sync")
	}
	return missing || err != nil && p.jumpsLeadNowhere(ctx)
}

// jumpsLeadNowhere reports whether a chain that a jump rule leads to is gone. Then
// none can be put in place before everything is written again.
func (p *Proxier) jumpsLeadNowhere(ctx context.Context) bool {
	for _, table := range render.Tables() {
		names, err := p.kernel.ChainNames(ctx, table)
		if err != nil {
			return false
		}
		for _, hook := range render.Hooks() {
			if hook.From.Table == table && !slices.Contains(names, hook.Rule.Target()) {
				return true
			}
		}
	}
	return false
}

// jumpsComeFirst puts jump rules in place before the chains that they lead to are filled,
// and reports whether that was possible. On the legacy backend each command copies the
// table, which is small only until then: with 10,000 Services it takes 4 s afterwards.
// Where nothing is missing the chains are there, and stay as they are.
func (p *Proxier) jumpsComeFirst(ctx context.Context, w *writer) bool {
	missing, err := p.ensureJumps(ctx)
	if err != nil {
		if err := p.ensureTargets(ctx); err != nil {
			return false
		}
		missing, err = p.ensureJumps(ctx)
	}
	w.jumpsMissing = missing
	return err == nil
}

// ensureTargets makes the chains that jump rules lead to, where they are missing.
func (p *Proxier) ensureTargets(ctx context.Context) error {
	made := map[ruleset.ChainID]bool{}
	for _, hook := range p.opts.Lacks.Hooks() {
		id := ruleset.ChainID{Table: hook.From.Table, Name: hook.Rule.Target()}
		if made[id] {
			continue
		}
		if _, err := p.kernel.EnsureChain(ctx, id); err != nil {
			return fmt.Errorf("make sure of chain %s: %w", id, err)
		}
		made[id] = true
	}
	return nil
}

// ensureJumps makes sure that packets find their way into the chains, and reports
// whether some could not before. Where this comes after the first full write, it is the
// moment from which the rules count.
func (p *Proxier) ensureJumps(ctx context.Context) (missing bool, err error) {
	start := time.Now()
	for _, id := range render.SharedChains() {
		if _, err := p.kernel.EnsureChain(ctx, id); err != nil {
			return false, fmt.Errorf("make sure of chain %s: %w", id, err)
		}
	}
	changes, err := p.kernel.EnsureJumps(ctx, p.opts.Lacks.Hooks())
	for _, change := range changes {
		missing = missing || change.Bypassed
		klog.FromContext(ctx).Info("Put jump rules in place", "chain", change.Chain.String(), "inserted", change.Inserted, "removed", change.Removed)
	}
	if err != nil {
		return missing, fmt.Errorf("make sure of the jump rules: %w", err)
	}
	p.jumpsChecked, p.jumpsCost = time.Now(), time.Since(start)
	return missing, nil
}
