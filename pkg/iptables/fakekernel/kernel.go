// Package fakekernel simulates the kernel's netfilter tables of one IP family, at
// the seam where iptables programs are run: restore text goes in, save text comes
// out. It refuses what the kernel refuses, applies table by table, and can be told
// to fail, so that tests need no kernel and no privileges. It knows no rule of
// ours.
package fakekernel

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Kernel is a simulated kernel for one IP family. Its methods may be called from
// several goroutines.
type Kernel struct {
	family  model.Family
	backend iptables.Backend

	mu     sync.Mutex
	tables map[string]*table
	locked bool
	fail   []refusal
	before func()
	stats  Stats
}

// Stats counts what was asked of a Kernel through its Runner.
type Stats struct {
	// Restores counts the runs of iptables-restore, failed ones too; Bytes is the
	// size of their input.
	Restores, Bytes int
	// Edits counts single chains and rules that were made or removed otherwise.
	Edits int
}

// New returns a kernel without any table, that fails as the backend's programs do.
func New(fam model.Family, backend iptables.Backend) *Kernel {
	return &Kernel{family: fam, backend: backend, tables: map[string]*table{}}
}

// Runner returns a Runner that works on the kernel.
func (k *Kernel) Runner() *iptables.Runner {
	return iptables.NewWith(k.family, k.backend, iptables.Seams{
		Run:        k.run,
		Save:       "iptables-save",
		Restore:    "iptables-restore",
		Chains:     chains{k},
		ChainNames: k.chainNames,
		Version:    "1.8.9",
		LockWait:   5,
	})
}

// SetLocked makes every program find the lock held from now on, or free.
func (k *Kernel) SetLocked(locked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.locked = locked
}

// FailNext makes one restore fail with the exit status and the text on stderr,
// without an effect. Several calls make as many restores fail, in order.
func (k *Kernel) FailNext(status int, stderr string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = append(k.fail, refusal{status, stderr})
}

// BeforeRestore has f called before every restore that a Runner runs, nil for
// none. Being another process, f may write to the kernel.
func (k *Kernel) BeforeRestore(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.before = f
}

// Write applies restore input as another process would: it is not counted, and no
// failure that was asked for hits it.
func (k *Kernel) Write(input string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apply(input, nil)
}

// Flush does what "iptables -t TABLE -F" and "-X" do, for each of the tables.
func (k *Kernel) Flush(tables ...ruleset.Table) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range tables {
		flushed := newTable(string(name))
		if old := k.tables[string(name)]; old != nil {
			for _, b := range builtins[string(name)] {
				flushed.chains[b].policy = old.chains[b].policy
			}
		}
		k.tables[string(name)] = flushed
	}
}

// Save returns all tables as iptables-save prints them.
func (k *Kernel) Save() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b []byte
	for _, name := range []string{"mangle", "nat", "filter"} {
		if t := k.tables[name]; t != nil {
			b = t.appendSave(b)
		}
	}
	return b
}

// Stats returns what was counted since the last call.
func (k *Kernel) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	stats := k.stats
	k.stats = Stats{}
	return stats
}

// run is the seam of a Runner: iptables-restore and iptables-save.
func (k *Kernel) run(ctx context.Context, input []byte, program string, args ...string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if program == "iptables-restore" {
		k.callBefore()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	command := append([]string{program}, args...)
	if program == "iptables-save" {
		t := k.tables[args[len(args)-1]]
		if t == nil {
			return nil, nil
		}
		return t.appendSave(nil), nil
	}
	k.stats.Restores++
	k.stats.Bytes += len(input)
	if k.locked {
		return nil, lockHeld(command)
	}
	if len(k.fail) > 0 {
		refused := k.fail[0]
		k.fail = k.fail[1:]
		return nil, commandError(command, refused)
	}
	return nil, k.apply(string(input), command)
}

func (k *Kernel) callBefore() {
	k.mu.Lock()
	before := k.before
	k.mu.Unlock()
	if before != nil {
		before()
	}
}

// apply runs a restore on the tables. The lock of the Kernel is held.
func (k *Kernel) apply(input string, command []string) error {
	r := restore{backend: k.backend, tables: k.tables}
	if refused := r.run(input); refused != nil {
		return commandError(command, *refused)
	}
	return nil
}

func (k *Kernel) chainNames(_ context.Context, name ruleset.Table) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	command := []string{"list the chains of", string(name)}
	if k.locked {
		return nil, lockHeld(command)
	}
	if t := k.tables[string(name)]; t != nil {
		return t.names(), nil
	}
	return nil, nil
}

func commandError(command []string, refused refusal) error {
	return &iptables.CommandError{
		Command: strings.Join(command, " "),
		Status:  refused.status,
		Stderr:  refused.stderr,
		Err:     fmt.Errorf("exit status %d", refused.status),
	}
}

func lockHeld(command []string) error {
	return commandError(command, refusal{4, "Another app is currently holding the xtables lock. Stopped waiting after 5s."})
}
