package proxier

import (
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// record is what is remembered of a chain in the kernel: enough to see that a fresh
// rendering says the same, without keeping the text.
type record struct {
	hash  uint64
	rules int
	// owner is the unit that the chain belongs to, nil for one of no Service.
	owner *unit
	// seen is what was last seen of the chain since it was written, 0 for nothing.
	seen uint64
}

// ledger is what the kernel holds of ours, as far as this process wrote it.
type ledger struct {
	chains map[ruleset.Table]map[string]record
	rules  map[ruleset.Table]int
}

func newLedger() *ledger {
	return &ledger{
		chains: map[ruleset.Table]map[string]record{ruleset.Filter: {}, ruleset.NAT: {}},
		rules:  map[ruleset.Table]int{},
	}
}

// last returns what is remembered of a chain, and whether anything is.
func (l *ledger) last(id ruleset.ChainID) (record, bool) {
	last, known := l.chains[id.Table][id.Name]
	return last, known
}

// note remembers a chain as written, and reports whether that is news.
func (l *ledger) note(chain ruleset.Chain, owner *unit) bool {
	now := record{hash: chain.Hash(), rules: len(chain.Rules), owner: owner}
	last, known := l.last(chain.ChainID)
	same := known && last.hash == now.hash && last.rules == now.rules
	if same {
		now.seen = last.seen
	}
	l.chains[chain.Table][chain.Name] = now
	l.rules[chain.Table] += now.rules - last.rules
	return !same
}

// see remembers what was seen of a chain.
func (l *ledger) see(id ruleset.ChainID, seen uint64) {
	last := l.chains[id.Table][id.Name]
	last.seen = seen
	l.chains[id.Table][id.Name] = last
}

// unsee forgets what was seen of a chain, which is about to be written again: rules that
// say the same look new afterwards.
func (l *ledger) unsee(id ruleset.ChainID) {
	if last, known := l.last(id); known {
		last.seen = 0
		l.chains[id.Table][id.Name] = last
	}
}

// claim remembers that a chain in the kernel belongs to a unit. If nothing was known of
// the chain, nobody knows what it says.
func (l *ledger) claim(id ruleset.ChainID, owner *unit) {
	last, _ := l.last(id)
	last.owner = owner
	l.chains[id.Table][id.Name] = last
}

// doubt forgets what a chain holds.
func (l *ledger) doubt(id ruleset.ChainID) {
	last := l.chains[id.Table][id.Name]
	last.hash = 0
	l.chains[id.Table][id.Name] = last
}

// forget remembers a chain as gone.
func (l *ledger) forget(id ruleset.ChainID) {
	last, _ := l.last(id)
	l.rules[id.Table] -= last.rules
	delete(l.chains[id.Table], id.Name)
}
