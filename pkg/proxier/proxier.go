// Package proxier keeps one family's rules in the kernel equal to what the cluster
// says. It decides what to write, when, and in which order; what rules say is
// pkg/render's business, and how they get into the kernel pkg/iptables'.
package proxier

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// Kernel is what the proxier needs of the kernel's tables of one family.
type Kernel interface {
	// Restore applies iptables-restore input without flushing anything that is not in
	// it; each table in it is applied whole or not at all.
	Restore(ctx context.Context, input []byte) error
	// ChainNames lists the chains of a table.
	ChainNames(ctx context.Context, table ruleset.Table) ([]string, error)
	// HasChain reports whether a chain exists. An error leaves that open.
	HasChain(ctx context.Context, id ruleset.ChainID) (bool, error)
	// EnsureChain creates a chain if it does not exist.
	EnsureChain(ctx context.Context, id ruleset.ChainID) (created bool, err error)
	// EnsureJumps makes each hook stand once in its chain, in this order, and says
	// what it had to do for that.
	EnsureJumps(ctx context.Context, hooks []ruleset.Hook) ([]iptables.Change, error)
}

// Tracker is where the proxier learns what the cluster says. A call of Take brings the
// maps of earlier snapshots up to date, too: a long sync calls it between its chunks.
type Tracker interface {
	Take() (model.Snapshot, tracker.Changes)
}

// Observer hears of every sync. It is called from the sync loop, which waits for it.
type Observer interface {
	Synced(ctx context.Context, result Result)
	// Writing tells, after each chunk, for how many of the Service ports that a sync
	// looks at everything was handed to the kernel but what leads there. The last chunks
	// may still be under way.
	Writing(servicePorts, of int)
}

// Result says what a sync did.
type Result struct {
	Family model.Family
	// Err is why the sync failed; nil if the kernel now holds what the cluster says.
	Err error
	// Trigger is what made the sync happen. Full says that everything was written anew,
	// nothing being known of the kernel.
	Trigger  Trigger
	Full     bool
	Duration time.Duration
	// Repaired are the chains that were written again because somebody else had touched
	// them, and JumpsRepaired the built-in ones that got their jump rules again. A sync that
	// was to write everything from the first has none: nobody knew what was damaged.
	Repaired      []Repair
	JumpsRepaired []ruleset.ChainID
	// Outage says that packets did not meet all of the rules for a time, or may not
	// have: in a full sync, and where chains or jump rules had been taken away.
	// Connections that began then may not lead where they should.
	Outage bool
	// Options is what was rendered with.
	Options render.Options
	// Snapshot is what the rules were made from, valid until the next sync.
	Snapshot model.Snapshot
	// Changes is what was new in it. After failed syncs it holds their changes too.
	Changes tracker.Changes
	// Total and Written count the rules that the kernel holds, and that were written
	// by this sync, by table.
	Total, Written map[ruleset.Table]int
	// NoLocalInternal and NoLocalExternal count Service ports whose traffic of policy
	// Local is dropped here although there are endpoints elsewhere.
	NoLocalInternal, NoLocalExternal int
	// Conflicts are the frontends that more than one Service claims.
	Conflicts []render.Conflict
	// Refusals are the Service ports that were left out.
	Refusals []Refusal
}

// Proxier keeps the rules of one family. Sync is for one goroutine, and what inspects the
// kernel for another one; ForceFull and Repair are for anybody.
type Proxier struct {
	family   model.Family
	tracker  Tracker
	kernel   Kernel
	counted  *countedKernel
	settings Settings
	options  func(model.NodeFacts) (render.Options, error)
	observer Observer

	// doubt says that the kernel may hold anything: write all of it.
	doubt doubt
	// damage is what somebody else did to single chains.
	damage damage
	// jumpsChecked is when the jump rules were last looked at, and jumpsCost how long that
	// took. jumpChanges is what the last sync did to them.
	jumpsChecked time.Time
	jumpsCost    time.Duration
	jumpChanges  []iptables.Change
	// sweepDue says that chains of a former life could not be removed.
	sweepDue bool

	opts       render.Options
	units      *units
	dispatcher *render.Dispatcher
	ledger     *ledger
	conflicts  []render.Conflict
	quarantine map[model.ServicePortName]*Refusal
	// unsynced are the changes since the last sync that succeeded.
	unsynced tracker.Changes

	// mu is held by a sync, and while the ledger is compared with the kernel.
	mu sync.Mutex
	// rows counts chains whose rules were found to be made in a row.
	rows int
}

// Settings are what a proxier keeps to.
type Settings struct {
	// Chunk is how many chains go into one transaction at most: ChunkNFT or ChunkLegacy.
	Chunk int
	// Parallel is how many transactions may be under way at a time: more than one only where
	// they are small and no lock makes one wait for the other, as on nft.
	Parallel int
	// JumpsFirst says that a full sync begins with the jump rules, and does not end with them.
	JumpsFirst bool
	// JumpPeriod is how long the jump rules are trusted to stand where they were put, longer
	// where it is dear to look.
	JumpPeriod time.Duration
	// JumpsAwait says whether it is known that jump rules are to be repaired, and that this is
	// put off, because somebody undoes it again and again: until then they are not looked
	// at. Nil says that nothing is ever put off.
	JumpsAwait func() bool
}

// New returns a proxier that has not looked at anything yet. The function options
// says how the node's facts and the configuration make up the rendering options at
// this moment.
func New(family model.Family, source Tracker, kernel Kernel, settings Settings,
	options func(model.NodeFacts) (render.Options, error), observer Observer) *Proxier {
	counted := &countedKernel{Kernel: kernel}
	p := &Proxier{
		family:   family,
		tracker:  source,
		kernel:   counted,
		counted:  counted,
		settings: settings,
		options:  options,
		observer: observer,
		ledger:   newLedger(),
		units:    newUnits(),

		dispatcher: render.NewDispatcher(),
		quarantine: map[model.ServicePortName]*Refusal{},
	}
	p.doubt.raise(Start, "")
	return p
}

// ForceFull makes the next sync write everything, because somebody else may have
// changed what was written. It may be called by anybody, at any time.
func (p *Proxier) ForceFull(reason string) { p.doubt.raise(Touched, reason) }

// Sync brings the kernel in line with the cluster. A sync that fails loses nothing:
// the next one writes everything anew.
func (p *Proxier) Sync(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	trigger, detail := p.doubt.settle()
	full := trigger != Change
	repairing := !full // else nobody knows what was damaged
	damage := p.damage.take()
	p.jumpChanges = nil
	var repaired []Repair
	var damaged []model.ServicePortName
	if repairing {
		repaired, damaged = p.doubtChains(damage.Chains)
		p.loseRefused(damaged)
		if damage.Jumps {
			// They are put in place after the chains that they lead to.
			p.jumpsChecked = time.Time{}
		} else if p.jumpsWereMissing(ctx) {
			// Who took them will hardly have stopped at that, and nobody saw what else it was.
			trigger, detail, full = Touched, "jump rules were missing", true
		}
	}
	snapshot, changes := p.tracker.Take()
	p.unsynced = join(p.unsynced, changes)
	p.unsynced.ServicePorts = merge(p.unsynced.ServicePorts, merge(damaged, p.release(ctx, snapshot)))

	w, full, err := p.write(ctx, snapshot, full)
	if err != nil {
		p.doubt.raise(Failure, "")
	}
	var jumpsRepaired []ruleset.ChainID
	if repairing {
		jumpsRepaired = changedChains(p.jumpChanges)
	}
	if len(repaired)+len(jumpsRepaired) > 0 {
		trigger = Touched
	}

	result := Result{
		Family:        p.family,
		Err:           err,
		Trigger:       trigger,
		Full:          full,
		Duration:      time.Since(start),
		Repaired:      repaired,
		JumpsRepaired: jumpsRepaired,
		Outage:        full || len(repaired) > 0 || bypassed(p.jumpChanges),
		Options:       p.opts,
		Snapshot:      snapshot,
		Changes:       p.unsynced,
		Total:         maps.Clone(p.ledger.rules),
		Written:       w.rules,
		Conflicts:     p.conflicts,
		Refusals:      p.refusals(),

		NoLocalInternal: p.units.noLocalInternal,
		NoLocalExternal: p.units.noLocalExternal,
	}
	if err == nil {
		p.unsynced = tracker.Changes{}
		logResult(klog.FromContext(ctx), result, detail)
		logRepair(ctx, damage, result)
	}
	p.observer.Synced(ctx, result)
	return err
}

// write writes what the kernel lacks. If it refuses some of it, everything is written
// once more without the Service ports that were the cause: those that the refusal
// blames, and if that was not all, everyone that is found. The writer is for the
// report, as is whether everything was written.
func (p *Proxier) write(ctx context.Context, snapshot model.Snapshot, full bool) (*writer, bool, error) {
	good := p.units
	w := p.newWriter(full)
	names, err := p.syncProxyRules(ctx, w, snapshot, full)
	undo := func() {
		good.restore()
		names = merge(names, p.unsynced.ServicePorts) // with those that came meanwhile
	}
	cutShort := false // whether the search for who is refused was
	for suspects := p.blamed(err); iptables.IsRefused(err); suspects = nil {
		undo()
		found, stopped := p.contain(ctx, snapshot, good, suspects, names)
		if !found {
			cutShort = stopped != nil
			break
		}
		full = true
		w = p.newWriter(full)
		names, err = p.syncProxyRules(ctx, w, snapshot, full)
	}
	if err != nil {
		undo()
		// After a search that was cut short the kernel still leads to the old rules, which who
		// is found next time may keep. Else nobody knows which of these it holds.
		if !cutShort {
			for _, name := range names {
				good.replace(name, nil)
			}
		}
		p.units = good
	}
	p.units.settle()
	return w, full, err
}

// newWriter returns a writer; for a full sync, one that knows nothing of the kernel.
func (p *Proxier) newWriter(full bool) *writer {
	if full {
		p.ledger = newLedger()
		p.units = newUnits()
		p.dispatcher = render.NewDispatcher()
	}
	return newWriter(p.kernel, p.settings, p.ledger)
}

// maxTriggers bounds what is remembered of changes while no sync succeeds, which can
// be for as long as the process lives where a kernel lacks one of the families.
const maxTriggers = 10_000

// join adds later changes to earlier ones.
func join(earlier, later tracker.Changes) tracker.Changes {
	triggers := slices.Concat(earlier.Triggers, later.Triggers)
	return tracker.Changes{
		ServicePorts: merge(earlier.ServicePorts, later.ServicePorts),
		Triggers:     triggers[:min(len(triggers), maxTriggers)],
	}
}

// merge returns the names that are in a or b, sorted.
func merge(a, b []model.ServicePortName) []model.ServicePortName {
	names := slices.Concat(a, b)
	slices.SortFunc(names, model.ServicePortName.Compare)
	return slices.Compact(names)
}

// logResult writes one line for a sync that succeeded. One that failed is logged by
// whoever asked for it.
func logResult(logger klog.Logger, r Result, detail string) {
	fields := []any{
		"elapsed", r.Duration,
		"numServices", len(r.Snapshot.Services),
		"changed", len(r.Changes.ServicePorts),
		"numFilterRules", r.Total[ruleset.Filter],
		"numNATRules", r.Total[ruleset.NAT],
		"writtenFilterRules", r.Written[ruleset.Filter],
		"writtenNATRules", r.Written[ruleset.NAT],
	}
	if r.Full {
		logger.Info("Wrote all rules", append(fields, "trigger", r.Trigger, "detail", detail)...)
		return
	}
	logger.V(2).Info("Synced the rules", fields...)
}
