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

// differs reports whether writing the chain would change the kernel.
func (l *ledger) differs(chain ruleset.Chain) bool {
	last, known := l.chains[chain.ChainID]
	return !known || last.hash != chain.Hash()
}

// note remembers a chain as written.
func (l *ledger) note(chain ruleset.Chain) {
	l.forget(chain.ChainID)
	l.chains[chain.ChainID] = record{hash: chain.Hash(), rules: len(chain.Rules)}
	l.rules[chain.Table] += len(chain.Rules)
}

// forget remembers a chain as gone.
func (l *ledger) forget(id ruleset.ChainID) {
	l.rules[id.Table] -= l.chains[id].rules
	delete(l.chains, id)
}
