package proxier

import (
	"cmp"
	"context"
	"maps"
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
	Chains []ruleset.ChainID
	// Jumps says that the built-in chains were touched, where the jump rules are.
	Jumps bool
	// By is who did it, empty if that is not known.
	By string
	// At is when it was noticed.
	At time.Time
}

// damage collects what was reported since the last sync.
type damage struct {
	mu     sync.Mutex
	chains map[ruleset.ChainID]bool
	last   Damage
}

// report adds to what is to be repaired.
func (d *damage) report(r Damage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.chains == nil {
		d.chains = map[ruleset.ChainID]bool{}
	}
	for _, id := range r.Chains {
		d.chains[id] = true
	}
	if d.last.At.IsZero() {
		d.last.At = r.At
	}
	d.last.By = cmp.Or(r.By, d.last.By)
	d.last.Jumps = d.last.Jumps || r.Jumps
}

// take returns what was reported, the oldest time and the last author.
func (d *damage) take() Damage {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := d.last
	taken.Chains = slices.Collect(maps.Keys(d.chains))
	d.chains, d.last = nil, Damage{}
	return taken
}

// Repair makes the next sync write chains again that somebody else has touched, and
// only those. It may be called by anybody, at any time.
func (p *Proxier) Repair(d Damage) { p.damage.report(d) }

// doubtChains forgets what the damaged chains held. It returns those of them that are
// to be written again, and the Service ports that have to be rendered for that. Chains
// that this process never wrote are not its to repair.
func (p *Proxier) doubtChains(ids []ruleset.ChainID) (known []ruleset.ChainID, names []model.ServicePortName) {
	for _, id := range ids {
		last, written := p.ledger.last(id)
		if !written {
			continue
		}
		p.ledger.doubt(id)
		known = append(known, id)
		if last.owner != nil {
			names = append(names, last.owner.Name)
		}
	}
	if len(known) > 0 {
		p.dispatcher.Refresh()
	}
	return known, names
}

// logRepair says what was repaired, who had broken it and how long that lasted.
func logRepair(ctx context.Context, d Damage, chains []ruleset.ChainID) {
	if len(chains) == 0 {
		return
	}
	const shown = 5
	var names []string
	for _, id := range chains[:min(len(chains), shown)] {
		names = append(names, id.String())
	}
	klog.FromContext(ctx).Info("Repaired chains that another program had changed",
		"by", d.By, "chains", len(chains), "first", names, "after", time.Since(d.At).Round(time.Millisecond))
}
