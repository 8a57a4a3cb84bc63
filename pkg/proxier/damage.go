package proxier

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Damage is what somebody else did to the tables.
type Damage struct {
	// Chains are those that may no longer hold what was written.
	Chains map[ruleset.ChainID]Edit
	// Jumps says that the built-in chains were touched, where the jump rules are.
	Jumps bool
	// By is who did it, empty if that is not known.
	By string
	// At is when it was noticed.
	At time.Time
}

// IsNone reports whether there is nothing to repair.
func (d Damage) IsNone() bool { return len(d.Chains) == 0 && !d.Jumps }

// Add adds later damage to d. The oldest time and the last author remain.
func (d *Damage) Add(later Damage) {
	if d.Chains == nil {
		d.Chains = map[ruleset.ChainID]Edit{}
	}
	for id, edit := range later.Chains {
		d.Chains[id] = d.Chains[id].and(edit)
	}
	if d.At.IsZero() {
		d.At = later.At
	}
	d.By = cmp.Or(later.By, d.By)
	d.Jumps = d.Jumps || later.Jumps
}

// damage collects what was reported since the last sync.
type damage struct {
	mu  sync.Mutex
	sum Damage
}

// report adds to what is to be repaired.
func (d *damage) report(r Damage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.Add(r)
}

// take returns what was reported.
func (d *damage) take() Damage {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := d.sum
	d.sum = Damage{}
	return taken
}

// Repair makes the next sync write chains again that somebody else has touched, and
// only those. It may be called by anybody, at any time.
func (p *Proxier) Repair(d Damage) { p.damage.report(d) }

// Repair is a chain that was written again, and why.
type Repair struct {
	ruleset.ChainID
	Kind Kind
}

// String returns such as "nat/KUBE-SERVICES flushed".
func (r Repair) String() string { return r.ChainID.String() + " " + string(r.Kind) }

// doubtChains forgets what the damaged chains held. It returns those of them that are
// to be written again, and the Service ports that have to be rendered for that. Chains
// that this process never wrote are not its to repair.
func (p *Proxier) doubtChains(edits map[ruleset.ChainID]Edit) (known []Repair, names []model.ServicePortName) {
	inDispatch := false
	for id, edit := range edits {
		last, written := p.ledger.last(id)
		if !written {
			continue
		}
		p.ledger.doubt(id)
		known = append(known, Repair{id, edit.kind(last.rules)})
		if last.owner != nil {
			names = append(names, last.owner.Name)
		} else {
			inDispatch = true
		}
	}
	if inDispatch {
		p.dispatcher.Refresh()
	}
	slices.SortFunc(known, func(a, b Repair) int { return a.ChainID.Compare(b.ChainID) })
	return known, names
}

// logRepair says what was repaired, who had broken it and how long that lasted.
func logRepair(ctx context.Context, d Damage, r Result) {
	if len(r.Repaired)+len(r.JumpsRepaired) == 0 {
		return
	}
	const shown = 5
	var first, jumps []string
	for _, repair := range r.Repaired[:min(len(r.Repaired), shown)] {
		first = append(first, repair.String())
	}
	for _, from := range r.JumpsRepaired {
		jumps = append(jumps, from.String())
	}
	fields := []any{"by", cmp.Or(d.By, "unknown"), "chains", len(r.Repaired), "first", first, "jumps", jumps}
	if !d.IsNone() { // else nobody noticed before the jump rules were looked after
		fields = append(fields, "after", time.Since(d.At).Round(time.Millisecond))
	}
	klog.FromContext(ctx).Info("Repaired chains that another program had changed", fields...)
}
