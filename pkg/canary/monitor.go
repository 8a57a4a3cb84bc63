// Package canary decides when to look for what others did to the node's netfilter
// tables, and when to repair it. A Monitor keeps a chain that nothing refers to in each
// table, with one rule, and looks whether both are still there, which they are not after
// a flush. A Patrol has everything compared from time to time. A Pacer puts repairs off
// that are undone again and again. The package runs nothing itself and repairs nothing
// but its own chains.
package canary

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ChainName is the name of the canary chain in each table.
const ChainName = "KUBE-PROXY-CANARY"

// tables are the tables that have a canary. A firewall's reload can empty one and
// leave the others.
var tables = [...]ruleset.Table{ruleset.Mangle, ruleset.NAT, ruleset.Filter}

// Chains looks at and makes chains of one IP family.
type Chains interface {
	// HasRule reports whether the chain exists and holds the rule. It must give an
	// error, not false, if it could not look.
	HasRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) (bool, error)
	// EnsureRule makes the chain with the rule if it does not exist.
	EnsureRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) error
}

// canary is the rule in each canary chain. iptables -F takes rules and leaves chains,
// -X takes chains: either way the rule is gone.
func canary() ruleset.Rule {
	return ruleset.Rule{Comment: "if this rule is gone, the table was flushed", Action: ruleset.Return{}}
}

// All returns the canary chains as a Monitor keeps them.
func All() []ruleset.Chain {
	var chains []ruleset.Chain
	for _, table := range tables {
		id := ruleset.ChainID{Table: table, Name: ChainName}
		chains = append(chains, ruleset.Chain{ChainID: id, Rules: []ruleset.Rule{canary()}})
	}
	return chains
}

// Cause is what a Monitor noticed.
type Cause string

const (
	// Flushed says that the canary was gone, and so, likely, is all that was written.
	Flushed Cause = "flushed"
	// Unwatched says that a table had no canary until now, so that a flush in the
	// meantime would not have been noticed.
	Unwatched Cause = "unwatched"
)

// Report says which tables may no longer hold what was written to them.
type Report struct {
	Cause  Cause
	Tables []ruleset.Table
}

// String returns such as "flushed: [nat filter]".
func (r Report) String() string { return fmt.Sprintf("%s: %v", r.Cause, r.Tables) }

// Monitor watches the canaries of one IP family.
type Monitor struct {
	chains    Chains
	period    time.Duration
	onTouched func(Report)
	// wake asks for a look, and wanted says that what it finds is to be reported.
	wake   chan struct{}
	wanted atomic.Bool

	// missing are the tables without a canary, each with what is to be reported
	// once it has one: nothing for a table that was never tried.
	missing map[ruleset.Table]Cause
	// failures are the polls in a row that could not look, or not make a canary.
	failures streak
}

// A look takes at most one part in pollShare of the time, and comes after mostPeriods at
// the latest: on the legacy backend each copies the whole table, which takes a second
// where it is large.
const (
	pollShare   = 100
	mostPeriods = 10
)

// New returns a Monitor that looks every period, less often where a look is dear, and
// calls onTouched, from Run's goroutine, when what was written to some tables must be
// written again. onTouched must not block.
func New(chains Chains, period time.Duration, onTouched func(Report)) *Monitor {
	m := &Monitor{
		chains:    chains,
		period:    period,
		onTouched: onTouched,
		wake:      make(chan struct{}, 1),
		missing:   map[ruleset.Table]Cause{},
		failures: streak{
			lasts: "Canary chains cannot be watched: a flush would go unnoticed",
			ends:  "Canary chains are watched again",
			once:  "Canary chains could not be watched this time",
		},
	}
	for _, table := range tables {
		m.missing[table] = ""
	}
	return m
}

// Run makes the canaries and watches them until ctx is done.
func (m *Monitor) Run(ctx context.Context) {
	m.wanted.Store(true)
	for {
		start := time.Now()
		m.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(m.period, min(pollShare*time.Since(start), mostPeriods*m.period))):
			m.wanted.Store(true)
		case <-m.wake:
		}
	}
}

// Poke makes Run look at once, without waiting for the period to end. It never
// blocks.
func (m *Monitor) Poke() {
	m.wanted.Store(true)
	m.Restore()
}

// Restore makes Run put back at once what is missing, without reporting it: the
// caller knows what was lost. Together with a Poke it is reported, since whoever
// poked does not know.
func (m *Monitor) Restore() {
	select {
	case m.wake <- struct{}{}:
	default: // it is about to look anyway
	}
}

// poll looks once, puts back what is missing, and reports what it noticed if that is
// wanted.
//
// A loss is reported when the canary is back, not before: one that came back after
// the repair would not notice a flush between the two. While it cannot be made, the
// tables cannot be written either.
func (m *Monitor) poll(ctx context.Context) {
	wanted := m.wanted.Swap(false)
	lookErr := m.look(ctx)
	made, makeErr := m.make(ctx)
	if ctx.Err() != nil {
		return
	}
	m.failures.log(ctx, errors.Join(lookErr, makeErr))
	// Who pokes during a look that Restore asked for must hear of what this one puts
	// back, and of what the next one finds.
	if !wanted && !m.wanted.Load() {
		return
	}
	for _, cause := range [...]Cause{Flushed, Unwatched} {
		if tables := made[cause]; len(tables) > 0 {
			klog.FromContext(ctx).Info("Netfilter tables may have lost rules", "cause", cause, "tables", tables)
			m.onTouched(Report{Cause: cause, Tables: tables})
		}
	}
}

// look notes which canaries are gone. A canary that could not be looked at stays
// what it was.
func (m *Monitor) look(ctx context.Context) error {
	var errs []error
	for _, table := range tables {
		if _, ok := m.missing[table]; ok {
			continue
		}
		found, err := m.chains.HasRule(ctx, ruleset.ChainID{Table: table, Name: ChainName}, canary())
		switch {
		case err != nil:
			errs = append(errs, err)
		case !found:
			m.missing[table] = Flushed
		}
	}
	return errors.Join(errs...)
}

// make makes the missing canaries, and returns the tables that have one again, by
// what is to be reported of them.
func (m *Monitor) make(ctx context.Context) (made map[Cause][]ruleset.Table, err error) {
	made = map[Cause][]ruleset.Table{}
	var errs []error
	for _, table := range tables {
		cause, ok := m.missing[table]
		if !ok {
			continue
		}
		if err := m.chains.EnsureRule(ctx, ruleset.ChainID{Table: table, Name: ChainName}, canary()); err != nil {
			errs = append(errs, err)
			m.missing[table] = cmp.Or(cause, Unwatched)
			continue
		}
		delete(m.missing, table)
		made[cause] = append(made[cause], table)
	}
	return made, errors.Join(errs...)
}
