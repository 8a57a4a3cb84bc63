package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// How often somebody else's changes are undone at once. Two programs that undo each
// other's work would otherwise keep the node busy with nothing else.
const (
	repairBurst = 50
	repairEvery = 5 * time.Second
)

// drift notices what somebody else does to one family's tables while it happens.
type drift struct {
	family *familyAgent
	canary *canary.Monitor
	limit  *rate.Limiter
}

func newDrift(f *familyAgent, watch *canary.Monitor) *drift {
	return &drift{family: f, canary: watch, limit: rate.NewLimiter(rate.Every(repairEvery), repairBurst)}
}

// run watches until the context ends. Without the kernel's notifications, as on the
// legacy backend, the canary and the jump rules are all there is to look at.
func (d *drift) run(ctx context.Context) {
	err := d.family.kernel.Watch(ctx, func(edit iptables.Edit) { d.noticed(ctx, edit) })
	if err != nil {
		klog.FromContext(ctx).Error(err, "Other programs' changes of the tables are noticed late from now on")
	}
}

// noticed decides what an edit means for the rules.
func (d *drift) noticed(ctx context.Context, edit iptables.Edit) {
	found, canaries := sortOut(edit)
	switch {
	case edit.Missed:
		d.canary.Poke()
	case canaries:
		d.canary.Restore()
	}
	if len(found.Chains) == 0 && !found.Jumps {
		return
	}
	found.By, found.At = author(edit), time.Now()
	if !d.limit.Allow() {
		klog.FromContext(ctx).Info("Another program keeps changing the rules; waiting before they are repaired again",
			"by", found.By, "wait", repairEvery)
		time.AfterFunc(repairEvery, func() { d.repair(found) })
		return
	}
	d.repair(found)
}

// author says who made an edit, nothing where that is not known.
func author(edit iptables.Edit) string {
	if edit.Missed {
		return ""
	}
	return fmt.Sprintf("%s (pid %d)", edit.Process, edit.PID)
}

// repair has the next sync mend what was found, and counts it once for each table.
func (d *drift) repair(found proxier.Damage) {
	tables := map[ruleset.Table]bool{}
	for _, id := range found.Chains {
		if !tables[id.Table] {
			tables[id.Table] = true
			d.family.metrics.CanaryRepaired(d.family.family, string(id.Table), "edited")
		}
	}
	d.family.proxier.Repair(found)
	d.family.queue()
}

// sortOut says what of an edit concerns the rules, and whether canary chains are
// among it.
func sortOut(edit iptables.Edit) (found proxier.Damage, canaries bool) {
	found.Jumps = edit.Missed
	for _, id := range edit.Chains {
		switch {
		case id.Name == canary.ChainName:
			canaries = true
		case render.Owns(id), render.Shares(id):
			found.Chains = append(found.Chains, id)
		case render.IsHooked(id):
			found.Jumps = true
		}
	}
	return found, canaries
}
