package proxier

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// syncProxyRules renders what may have changed and writes what did, bottom-up: what
// others jump to, then what jumps to it, then what leads in, then the removal of
// what is no longer led to. It returns the Service ports that it looked at.
func (p *Proxier) syncProxyRules(ctx context.Context, w *writer, snapshot model.Snapshot, full bool) (names []model.ServicePortName, err error) {
	defer func() { err = cmp.Or(err, w.wait()) }() // whatever failed, nothing of it goes on
	opts, err := p.options(snapshot.Node)
	if err != nil {
		return nil, err
	}
	opts = opts.For(snapshot)
	dirty := p.unsynced.ServicePorts
	if full || !opts.Equal(p.opts) {
		dirty = merge(dirty, slices.Collect(maps.Keys(snapshot.Services)))
		p.setOptions(opts)
		w.expect(countChains(snapshot), opts.Bare)
	}

	jumpsInPlace := full && p.settings.JumpsFirst && p.jumpsComeFirst(ctx)
	for _, chain := range render.Fixed(opts) {
		w.write(chain, nil)
	}
	gone, err := p.writeUnits(ctx, w, snapshot, dirty, full)
	if err != nil {
		return dirty, err
	}
	dispatchGone, err := p.writeDispatch(ctx, w)
	if err != nil {
		return dirty, err
	}
	if err := w.removeAll(ctx, append(dispatchGone, p.unowned(gone)...)); err != nil {
		return dirty, err
	}
	if full && !jumpsInPlace || p.jumpsChecked.IsZero() {
		if err := p.ensureJumps(ctx); err != nil {
			return dirty, err
		}
	}
	if full || p.sweepDue {
		return dirty, p.sweep(ctx, w)
	}
	return dirty, nil
}

// countChains says about how many chains a snapshot makes.
func countChains(snapshot model.Snapshot) int {
	n := len(snapshot.Services)
	for _, endpoints := range snapshot.Endpoints {
		n += len(endpoints)
	}
	return n
}

// writeUnits writes the chains of the given Service ports. It returns the chains
// that they no longer have; those can go when nothing leads there any more.
func (p *Proxier) writeUnits(ctx context.Context, w *writer, snapshot model.Snapshot,
	names []model.ServicePortName, full bool) (gone []ruleset.ChainID, err error) {
	existing, err := p.chainsToKeep(ctx, full)
	if err != nil {
		return nil, err
	}
	write := func(name model.ServicePortName) {
		var current *unit
		if port, exists := snapshot.Services[name]; exists {
			rendered := render.ServicePort(port, snapshot.Endpoints[name], p.opts)
			if refusal, refused := p.quarantine[name]; refused {
				current = p.hold(refusal, rendered, existing)
			} else {
				current = p.writeUnit(w, rendered)
			}
		}
		gone = append(gone, p.replaceUnit(name, current)...)
	}
	pr := newProgress(len(names))
	for _, name := range names {
		write(name)
		pr.written++
		if !w.isFull() {
			continue
		}
		// Service ports lead to their own chains and to the fixed ones, which the first chunk
		// holds: several chunks of them may be under way.
		if err := w.flushBehind(ctx); err != nil {
			return nil, err
		}
		p.chunkWritten(ctx, pr)
		more := p.takeMore()
		if len(more) > 0 {
			// What is under way may hold what they were like before. If that were written last,
			// packets would go on to an endpoint that has left.
			if err := w.wait(); err != nil {
				return nil, err
			}
		}
		// However many these are, a whole chunk of the others follows before there can be
		// more of them.
		for _, name := range more {
			write(name)
			if err := w.flushIfFull(ctx); err != nil {
				return nil, err
			}
		}
	}
	return gone, nil
}

// unowned returns those of the chains that no unit has any more. One that had gone may
// be back by the end of a long sync.
func (p *Proxier) unowned(ids []ruleset.ChainID) []ruleset.ChainID {
	return slices.DeleteFunc(ids, func(id ruleset.ChainID) bool {
		last, _ := p.ledger.last(id)
		return last.owner != nil && last.owner == p.units.byName[last.owner.Name]
	})
}

// chainsToKeep lists the chains that the kernel holds before a full sync, if there
// are Service ports that may have to live with what they have.
func (p *Proxier) chainsToKeep(ctx context.Context, full bool) (map[ruleset.ChainID]bool, error) {
	if !full || len(p.quarantine) == 0 {
		return nil, nil
	}
	names, err := p.kernel.ChainNames(ctx, ruleset.NAT)
	if err != nil {
		return nil, fmt.Errorf("list the chains of table nat: %w", err)
	}
	existing := make(map[ruleset.ChainID]bool, len(names))
	for _, name := range names {
		existing[ruleset.ChainID{Table: ruleset.NAT, Name: name}] = true
	}
	return existing, nil
}

// writeUnit writes what differs of a unit's chains, and returns what is to be
// remembered of it, nil if it has no rules at all.
func (p *Proxier) writeUnit(w *writer, rendered render.Unit) *unit {
	if len(rendered.Entries) == 0 {
		return nil
	}
	u := remember(rendered)
	for _, chain := range rendered.Chains {
		w.write(chain, u)
	}
	return u
}

// replaceUnit takes a unit, or that a Service port has none any more, into account. It
// returns the chains that the Service port no longer has.
func (p *Proxier) replaceUnit(name model.ServicePortName, current *unit) (gone []ruleset.ChainID) {
	old := p.units.replace(name, current)
	p.dispatcher.Replace(old.rendered(), current.rendered())
	return old.without(current)
}

// setOptions takes options into account that concern every dispatch chain.
func (p *Proxier) setOptions(opts render.Options) {
	p.opts = opts
	p.dispatcher.SetOptions(opts)
}

// writeDispatch writes the chains that lead packets into those of the units. It
// returns those that nothing leads to any more.
func (p *Proxier) writeDispatch(ctx context.Context, w *writer) (gone []ruleset.ChainID, err error) {
	chains, gone := p.dispatcher.Chains()
	for _, chain := range chains {
		w.write(chain, nil)
		if err := w.flushIfFull(ctx); err != nil {
			return nil, err
		}
	}
	conflicts := p.dispatcher.Conflicts()
	if slices.Equal(conflicts, p.conflicts) {
		return gone, nil
	}
	p.conflicts = conflicts
	for _, c := range conflicts {
		klog.FromContext(ctx).Info("Several Services claim one address and port; the oldest has it",
			"frontend", c.Frontend.String(), "servedBy", c.Winner.String(), "notServed", c.Loser.String())
	}
	return gone, nil
}

// sweep removes chains that the kernel has from a former life of the agent, or from
// a kube-proxy, and that nobody claims now. No rule of ours leads there any more; if
// one of somebody else's does, the kernel keeps them, which harms no packet. Nor does it
// that they are still there, so what could not be removed for now is left to the next sync.
func (p *Proxier) sweep(ctx context.Context, w *writer) error {
	stale, err := p.staleChains(ctx)
	if err != nil {
		return err
	}
	// They jump to each other in ways that only their former owner knew.
	for _, id := range stale {
		w.write(ruleset.Chain{ChainID: id}, nil)
		if err := w.flushIfFull(ctx); err != nil {
			return err
		}
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	used, err := w.removeUnused(ctx, stale)
	if p.sweepDue = err != nil; p.sweepDue {
		for _, id := range stale {
			p.ledger.forget(id) // or nobody would look for it again
		}
		klog.FromContext(ctx).Error(err, "Could not remove chains left over from before; trying again with the next sync")
	} else if len(used) > 0 {
		klog.FromContext(ctx).Error(nil, "Chains left over from before stay: rules of others lead to them, and none of ours",
			"chains", len(used), "first", used[:min(len(used), 5)])
	}
	return nil
}

// staleChains lists the kernel's chains for Services that nobody claims.
func (p *Proxier) staleChains(ctx context.Context) ([]ruleset.ChainID, error) {
	var stale []ruleset.ChainID
	for _, table := range render.Tables() {
		names, err := p.kernel.ChainNames(ctx, table)
		if err != nil {
			return nil, fmt.Errorf("list the chains of table %s: %w", table, err)
		}
		for _, name := range names {
			id := ruleset.ChainID{Table: table, Name: name}
			if _, claimed := p.ledger.last(id); !claimed && render.IsPerService(id) {
				stale = append(stale, id)
			}
		}
	}
	return stale, nil
}
