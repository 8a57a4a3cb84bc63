package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// drift notices what somebody else does to one family's tables, and has it repaired.
type drift struct {
	family *familyAgent
	canary *canary.Monitor
	patrol *canary.Patrol
	pacer  *canary.Pacer

	// missed says that notices were missed since the last look.
	missed atomic.Bool

	mu sync.Mutex
	// found is what waits for being repaired.
	found proxier.Damage
	// rival counts the edits that look like those of another proxy, the last one of which
	// was at rivalAt.
	rival   int
	rivalAt time.Time
	// told is when an event was last written of each reason.
	told map[string]time.Time
}

// How often the rules are looked at. On nft the kernel tells of changes as they happen,
// and a look is for what it may have failed to tell. On legacy a glance is a system call
// for each table, and its interval is how long it takes to see a change.
const (
	glanceNFT    = 10 * time.Second
	glanceLegacy = time.Second
)

func newDrift(f *familyAgent) *drift {
	d := &drift{family: f, told: map[string]time.Time{}}
	d.pacer = canary.NewPacer(d.repair, d.reportFight)
	// Half as often as the canaries and the jump rules, which cost less and tell of more.
	lookPeriod := 2 * f.config.SyncPeriod
	if f.kernel.Backend() == iptables.NFT {
		d.patrol = canary.NewPatrol(&nftInspector{drift: d}, min(glanceNFT, lookPeriod), lookPeriod)
	} else {
		d.patrol = canary.NewPatrol(&legacyInspector{drift: d, marks: map[ruleset.Table]mark{}}, glanceLegacy, lookPeriod)
	}
	return d
}

// run watches until the context ends.
func (d *drift) run(ctx context.Context, watch *canary.Monitor) {
	d.canary = watch
	defer d.pacer.Stop()
	var parts sync.WaitGroup
	parts.Go(func() { d.patrol.Run(ctx) })
	d.listen(ctx)
	parts.Wait()
}

// listenAgain is how long to wait before the kernel is asked once more to tell of changes.
const listenAgain = 10 * time.Second

// listen hears the kernel's notices, where there are any.
func (d *drift) listen(ctx context.Context) {
	for d.family.kernel.Backend() == iptables.NFT {
		err := d.family.kernel.Watch(ctx, func(edit iptables.Edit) { d.noticed(ctx, edit) })
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Other programs' changes of the tables are noticed late until the kernel tells of them again")
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenAgain):
		}
	}
}

// noticed decides what an edit means for the rules.
func (d *drift) noticed(ctx context.Context, edit iptables.Edit) {
	found, canaries := sortOut(edit)
	switch {
	case edit.Missed:
		d.missed.Store(true)
		d.patrol.Doubt()
		return
	case canaries:
		d.canary.Restore()
	}
	if isProxy(edit) {
		d.reportRival(ctx, found.By)
	}
	d.damaged(found)
}

// damaged has damage repaired, now or later.
func (d *drift) damaged(found proxier.Damage) {
	if found.IsNone() {
		return
	}
	d.mu.Lock()
	d.found.Add(found)
	d.mu.Unlock()
	d.pacer.Damaged(found.By)
}

// repair has the next sync mend what was found.
func (d *drift) repair() {
	d.mu.Lock()
	found := d.found
	d.found = proxier.Damage{}
	d.mu.Unlock()
	d.family.proxier.Repair(found)
	d.family.queue()
}

// jumpsAwait reports whether jump rules wait for their repair.
func (d *drift) jumpsAwait() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.found.Jumps
}

// synced is told of every sync that succeeded.
func (d *drift) synced(r proxier.Result) {
	if len(r.Repaired)+len(r.JumpsRepaired) > 0 {
		d.pacer.Repaired()
	}
	if r.Full {
		// So much was written that notices of others' edits may have been lost in those
		// of one's own.
		d.patrol.Doubt()
	}
	d.count(r)
	d.tick()
}

// count counts a repair once for each table and word.
func (d *drift) count(r proxier.Result) {
	type damage struct {
		table ruleset.Table
		word  string
	}
	seen := map[damage]bool{}
	for _, repair := range r.Repaired {
		seen[damage{repair.Table, string(repair.Kind)}] = true
	}
	for _, from := range r.JumpsRepaired {
		seen[damage{from.Table, "jumps"}] = true
	}
	for each := range seen {
		d.family.metrics.CanaryRepaired(d.family.family, string(each.table), each.word)
	}
}

// tick keeps the metric of the wait true.
func (d *drift) tick() { d.family.metrics.RepairWait(d.family.family, d.pacer.Wait()) }

// looked takes note of a look at the rules that got to its end.
func (d *drift) looked(ctx context.Context, worked time.Duration) {
	d.family.metrics.Inspected(d.family.family, worked)
	klog.FromContext(ctx).V(2).Info("Compared the rules in the kernel with what was written", "elapsed", worked)
}

// sortOut says what of an edit concerns the rules, and whether canary chains are
// among it.
func sortOut(edit iptables.Edit) (found proxier.Damage, canaries bool) {
	found = proxier.Damage{Chains: map[ruleset.ChainID]proxier.Edit{}, At: time.Now()}
	found.By = fmt.Sprintf("%s (pid %d)", edit.Process, edit.PID)
	for _, c := range edit.Chains {
		switch {
		case c.Name == canary.ChainName:
			canaries = true
		case render.Owns(c.ChainID), render.Shares(c.ChainID):
			found.Chains[c.ChainID] = proxier.Edit{Gone: c.Gone, Added: c.Added, Removed: c.Removed, Balance: c.Balance}
		case render.IsHooked(c.ChainID):
			found.Jumps = true
		}
	}
	return found, canaries
}
