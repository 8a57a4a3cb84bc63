package proxier

import (
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// record is what is remembered of a chain in the kernel: enough to see that a fresh
// rendering says the same, without keeping the text.
type record struct {
	hash  uint64
	rules int
}

// ledger is what the kernel holds of ours, as far as this process wrote it.
type ledger struct {
	chains map[ruleset.ChainID]record
	rules  map[ruleset.Table]int
}

func newLedger() *ledger {
	return &ledger{chains: map[ruleset.ChainID]record{}, rules: map[ruleset.Table]int{}}
}

// note remembers a chain as written, and reports whether that is news.
func (l *ledger) note(chain ruleset.Chain) bool {
	now := record{hash: chain.Hash(), rules: len(chain.Rules)}
	last, known := l.chains[chain.ChainID]
	if known && last == now {
		return false
	}
	l.chains[chain.ChainID] = now
	l.rules[chain.Table] += now.rules - last.rules
	return true
}

// claim remembers that a chain is in the kernel that is ours and that nobody knows
// the contents of.
func (l *ledger) claim(id ruleset.ChainID) { l.chains[id] = record{} }

// forget remembers a chain as gone.
func (l *ledger) forget(id ruleset.ChainID) {
	l.rules[id.Table] -= l.chains[id].rules
	delete(l.chains, id)
}
