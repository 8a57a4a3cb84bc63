package proxier

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ErrUnsettled says that the kernel could not be compared with what was written, because
// rules were being written meanwhile, or everything is about to be.
var ErrUnsettled = errors.New("the rules are being written")

// ChainReader looks at single chains, as the nft backend allows it.
type ChainReader interface {
	Chain(ctx context.Context, id ruleset.ChainID) (iptables.ChainState, error)
}

// TableReader reads whole tables, which is all that the legacy backend allows.
type TableReader interface {
	ReadChains(ctx context.Context, table ruleset.Table, wanted func(ruleset.ChainID) bool, each func(iptables.SavedChain) error) error
	ChainNames(ctx context.Context, table ruleset.Table) ([]string, error)
}

// Syncs wait for a look at chains, so that it pauses after each turn, for as long.
const turn = 5 * time.Millisecond

// InspectChains looks at all chains that were written, one by one, and returns those
// that somebody else has changed, and for how long it worked. The first look at a chain
// after it was written can only tell by the number of the rules and by whether they were
// made in a row; later ones see any change. If a chain is gone, what was seen for the first
// time is not believed: the kernel's notice of a rename does not say what the old name was,
// and rules that led to the chain lead to its new name.
func (p *Proxier) InspectChains(ctx context.Context, look ChainReader) (found Damage, worked time.Duration, err error) {
	found = Damage{Chains: map[ruleset.ChainID]Edit{}, At: time.Now()}
	if !p.mu.TryLock() {
		return Damage{}, 0, ErrUnsettled // not worth waiting for, since it changes everything
	}
	defer p.mu.Unlock()
	sights := firstSights{scattered: map[ruleset.ChainID]uint64{}}
	ledger, began := p.ledger, time.Now()
	for table, chains := range ledger.chains {
		for name := range chains {
			if time.Since(began) > turn {
				worked += time.Since(began)
				if err := p.stepAside(ctx); err != nil {
					return Damage{}, worked, err
				}
				began = time.Now()
			}
			if p.ledger != ledger || p.doubt.isRaised() {
				return Damage{}, worked, ErrUnsettled
			}
			if err := p.inspectChain(ctx, look, ruleset.ChainID{Table: table, Name: name}, found, &sights); err != nil {
				return Damage{}, worked, err
			}
		}
	}
	p.judge(sights, found)
	return found, worked + time.Since(began), nil
}

// stepAside lets a sync work.
func (p *Proxier) stepAside(ctx context.Context) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	if !sleep(ctx, turn) {
		return ctx.Err()
	}
	return nil
}

// firstSights are chains that nobody had looked at since they were written.
type firstSights struct {
	// scattered are those whose rules were not made in a row, with what they look like.
	scattered map[ruleset.ChainID]uint64
	// good are the others, as far as that can be told.
	good []ruleset.ChainID
	// gone says that a chain was missing.
	gone bool
}

// inspectChain looks at one chain, and adds it to what was found if it is damaged, or to
// sights if it may be. It remembers what a good one looks like.
func (p *Proxier) inspectChain(ctx context.Context, look ChainReader, id ruleset.ChainID, found Damage, sights *firstSights) error {
	last, known := p.ledger.last(id)
	if !known || last.hash == 0 { // removed meanwhile, or not known what it should hold
		return nil
	}
	now, err := look.Chain(ctx, id)
	switch {
	case err != nil:
		return err
	case !now.Exists:
		found.Chains[id] = Edit{Gone: true}
		sights.gone = true
	case now.Rules != last.rules || last.seen != 0 && last.seen != now.Hash:
		found.Chains[id] = editOf(last.rules, now.Rules)
	case last.seen == 0 && !now.InARow:
		sights.scattered[id] = now.Hash
	case last.seen == 0:
		if now.Rules > 1 { // one alone proves nothing
			p.rows++
		}
		p.ledger.see(id, now.Hash)
		if now.Rules > 0 {
			sights.good = append(sights.good, id)
		}
	}
	return nil
}

// judge decides about the chains that were seen for the first time. One transaction gives a
// chain's rules consecutive handles. Rules with gaps are therefore somebody else's, unless
// most chains here have gaps: then this kernel numbers otherwise, and gaps prove nothing. If
// a chain is gone, none of those that were seen for the first time is believed.
func (p *Proxier) judge(sights firstSights, found Damage) {
	for id, hash := range sights.scattered {
		last, known := p.ledger.last(id)
		switch {
		case !known || last.hash == 0 || last.seen != 0:
		case sights.gone || p.rows > len(sights.scattered):
			found.Chains[id] = editOf(last.rules, last.rules)
		default:
			p.ledger.see(id, hash)
		}
	}
	if !sights.gone {
		return
	}
	for _, id := range sights.good {
		if last, known := p.ledger.last(id); known && last.hash != 0 && last.seen != 0 {
			found.Chains[id] = editOf(last.rules, last.rules)
		}
	}
}

// InspectTable reads a table and returns what somebody else has changed of what was
// written to it, and whether jump rules are not where they should be.
func (p *Proxier) InspectTable(ctx context.Context, read TableReader, table ruleset.Table) (Damage, error) {
	i, settled := p.beginInspection(table)
	if !settled {
		return Damage{}, ErrUnsettled
	}
	wanted := func(id ruleset.ChainID) bool { return render.Owns(id) || render.Shares(id) || render.IsHooked(id) }
	if err := read.ReadChains(ctx, table, wanted, i.see); err != nil {
		return Damage{}, err
	}
	if complete, err := i.isComplete(); complete || err != nil {
		return i.found, err
	}
	names, err := read.ChainNames(ctx, table)
	if err != nil {
		return Damage{}, err
	}
	return i.found, i.findMissing(names)
}

// inspection is a look at a whole table. A sync that writes meanwhile makes it worthless.
type inspection struct {
	p      *Proxier
	table  ruleset.Table
	writes uint64
	// hooks are the jump rules that should be there, as this kernel takes them.
	hooks []ruleset.Hook
	// seen counts the chains that were written and are there.
	seen  int
	found Damage
}

func (p *Proxier) beginInspection(table ruleset.Table) (*inspection, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := &inspection{p: p, table: table, writes: p.counted.writes.Load(), hooks: p.opts.Lacks.Hooks()}
	i.found = Damage{Chains: map[ruleset.ChainID]Edit{}, At: time.Now()}
	return i, !p.doubt.isRaised()
}

// see takes a chain into account. It is decoded only if its text is not that which it
// had when it was right.
func (i *inspection) see(chain iptables.SavedChain) error {
	if render.IsHooked(chain.ChainID) {
		i.found.Jumps = i.found.Jumps || !iptables.JumpsInPlace(i.hooks, chain.Decode())
		return nil
	}
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if !i.isCurrent() {
		return ErrUnsettled
	}
	last, known := i.p.ledger.last(chain.ChainID)
	switch {
	case !known:
		return nil
	case last.hash == 0 || last.seen == chain.Text:
	case chain.Says(last.hash):
		i.p.ledger.see(chain.ChainID, chain.Text)
	default:
		i.found.Chains[chain.ChainID] = editOf(last.rules, chain.Rules)
	}
	i.seen++
	return nil
}

// isComplete reports whether all chains were seen.
func (i *inspection) isComplete() (bool, error) {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if !i.isCurrent() {
		return false, ErrUnsettled
	}
	return i.seen == len(i.p.ledger.chains[i.table]), nil
}

// findMissing adds the chains that are not among those that there are.
func (i *inspection) findMissing(names []string) error {
	exists := make(map[string]bool, len(names))
	for _, name := range names {
		exists[name] = true
	}
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if !i.isCurrent() {
		return ErrUnsettled
	}
	for name, last := range i.p.ledger.chains[i.table] {
		if last.hash != 0 && !exists[name] {
			i.found.Chains[ruleset.ChainID{Table: i.table, Name: name}] = Edit{Gone: true}
		}
	}
	return nil
}

func (i *inspection) isCurrent() bool {
	return i.p.counted.writes.Load() == i.writes && !i.p.doubt.isRaised()
}

// Written is what a table should hold of what was written, as a number of entries by
// which the legacy backend counts, and how often anything was written: together with
// the kernel's own count they tell whether somebody else has written. It is false if
// that cannot be said now because a sync is under way, or has to write everything.
func (p *Proxier) Written(table ruleset.Table) (entries int, writes uint64, settled bool) {
	if !p.mu.TryLock() {
		return 0, 0, false
	}
	defer p.mu.Unlock()
	// A chain has its name and its end for entries beside its rules.
	return p.ledger.rules[table] + 2*len(p.ledger.chains[table]), p.counted.writes.Load(), !p.doubt.isRaised()
}

// countedKernel counts what was written.
type countedKernel struct {
	Kernel
	writes atomic.Uint64
}

// Restore implements Kernel.
func (k *countedKernel) Restore(ctx context.Context, input []byte) error {
	k.writes.Add(1)
	return k.Kernel.Restore(ctx, input)
}

// EnsureChain implements Kernel.
func (k *countedKernel) EnsureChain(ctx context.Context, id ruleset.ChainID) (created bool, err error) {
	created, err = k.Kernel.EnsureChain(ctx, id)
	if created || err != nil {
		k.writes.Add(1)
	}
	return created, err
}

// EnsureJumps implements Kernel.
func (k *countedKernel) EnsureJumps(ctx context.Context, hooks []ruleset.Hook) ([]iptables.Change, error) {
	changes, err := k.Kernel.EnsureJumps(ctx, hooks)
	if len(changes) > 0 || err != nil {
		k.writes.Add(1)
	}
	return changes, err
}
