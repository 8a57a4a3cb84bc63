package iptables

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ownWrites remembers what the agent is writing, so that it can tell its own
// transactions from those of others when the kernel tells of them.
//
// The process id does not help: inside a container the agent and the kernel count
// differently. So a transaction is the agent's own if a program of that name is
// running on its behalf, or has just ended, and was to touch these chains. Each
// program makes one transaction for each table; once it has been heard of, another
// one like it is somebody else's.
type ownWrites struct {
	mu     sync.Mutex
	writes []*ownWrite
}

// ownWrite is a program that the agent runs, and the chains in its transactions that
// have not been heard of.
type ownWrite struct {
	process string
	chains  map[ruleset.ChainID]bool
	ended   time.Time // zero while the program runs
}

// keepOwn is how long after a program's end a notification may still be about it.
const keepOwn = 5 * time.Second

// maxProcessName is how many bytes of a program's name the kernel keeps.
const maxProcessName = 15

// begin takes note of a program that is about to touch chains. The function that it
// returns is to be called when the program has ended, and told whether the program may
// have written: who waits for the notice of a transaction that never was takes somebody
// else's for it.
func (o *ownWrites) begin(program string, chains map[ruleset.ChainID]bool) (end func(wrote bool)) {
	name := filepath.Base(program)
	w := &ownWrite{process: name[:min(len(name), maxProcessName)], chains: chains}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	o.writes = append(o.writes, w)
	return func(wrote bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		w.ended = time.Now()
		if !wrote {
			clear(w.chains)
		}
	}
}

// forget drops what nothing can be heard of any more.
func (o *ownWrites) forget() {
	recent := o.writes[:0]
	for _, w := range o.writes {
		if w.ended.IsZero() || time.Since(w.ended) < keepOwn {
			recent = append(recent, w)
		}
	}
	clear(o.writes[len(recent):])
	o.writes = recent
}

// forgetEnded drops the programs that have ended: nobody listened when the kernel told of
// their transactions, and what is heard from now on is somebody else's.
func (o *ownWrites) forgetEnded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes = slices.DeleteFunc(o.writes, func(w *ownWrite) bool { return !w.ended.IsZero() })
}

// isOurs reports whether a transaction is one of the agent's own. It answers yes once
// for each.
func (o *ownWrites) isOurs(e Edit) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	for _, w := range o.writes {
		if w.process == e.Process && w.holds(e.Chains) {
			table := e.Chains[0].Table
			maps.DeleteFunc(w.chains, func(id ruleset.ChainID, _ bool) bool { return id.Table == table })
			return true
		}
	}
	return false
}

// holds reports whether chains are of one table and all among those to be touched.
func (w *ownWrite) holds(edits []ChainEdit) bool {
	for _, edit := range edits {
		if edit.Table != edits[0].Table || !w.chains[edit.ChainID] {
			return false
		}
	}
	return true
}

// touchedBy lists the chains that restore input may change: those that it declares,
// and those that it adds to.
func touchedBy(input []byte) map[ruleset.ChainID]bool {
	chains := map[ruleset.ChainID]bool{}
	var table ruleset.Table
	for line := range bytes.Lines(input) {
		var name []byte
		switch {
		case line[0] == '*':
			table = ruleset.Table(bytes.TrimSpace(line[1:]))
			continue
		case line[0] == ':':
			name, _, _ = bytes.Cut(line[1:], []byte(" "))
		case bytes.HasPrefix(line, []byte("-I ")), bytes.HasPrefix(line, []byte("-D ")):
			name, _, _ = bytes.Cut(line[3:], []byte(" "))
		default:
			continue // a rule for, or the removal of, a chain that was declared
		}
		chains[ruleset.ChainID{Table: table, Name: string(name)}] = true
	}
	return chains
}

// notedChains tells ownWrites of what go-iptables writes.
type notedChains struct {
	Chains
	own     *ownWrites
	program string
}

// write takes note of a program that changes one chain. It either does or fails; that a
// chain is there already is a failure of NewChain.
func (c notedChains) write(table, chain string, do func() error) error {
	id := ruleset.ChainID{Table: ruleset.Table(table), Name: chain}
	end := c.own.begin(c.program, map[ruleset.ChainID]bool{id: true})
	err := do()
	end(exitStatus(err) < 1) // killed programs have none
	return err
}

// NewChain implements Chains.
func (c notedChains) NewChain(table, chain string) error {
	return c.write(table, chain, func() error { return c.Chains.NewChain(table, chain) })
}

// Insert implements Chains.
func (c notedChains) Insert(table, chain string, position int, rule ...string) error {
	return c.write(table, chain, func() error { return c.Chains.Insert(table, chain, position, rule...) })
}
