// Package conntrack removes from the kernel's connection table what the rules no
// longer allow.
//
// The nat table decides once for a flow; then its entry in the connection table
// does. So after the rules are written, entries that lead to one of our frontends
// and from there to where they should not are deleted, and the next packet meets the
// rules.
//
// UDP (Cleaner). A flow has no end that the kernel could see: as long as its sender
// goes on, the entry lives and leads to where the endpoint was. Entries that lead to
// anything but an endpoint that serves are deleted. This compares states and needs
// no events: what was missed while the agent was down is found as well (B-24).
//
// TCP (Failover). A connection that is established is left alone: its ends notice,
// and a graceful shutdown needs it. One that still waits for the SYN-ACK of an
// endpoint that has left is deleted, so that the client's next SYN goes to one that
// is there (B-26).
//
// SCTP is left alone. Its first retransmission takes three times as long, and its
// ends fail over between their own addresses.
//
// How the agent uses it. It has one Cleaner and one Failover for each family, and
// calls them after a sync whose rules are in the kernel, never before and never after
// one that failed: an entry deleted earlier would be made again by the old rules.
// After a time without all of the rules (start, repair, a sync after one that failed)
// it calls Failover.AfterOutage and Cleaner.Clean, else CleanIfChanged; and
// Failover.Clean in any case, with the snapshot that was applied. What fails is kept
// and done by the next call (B-39); the error is for the log, not a reason to fail the
// sync.
package conntrack

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// Table is a connection table; Kernel is the real one.
type Table interface {
	Dump(ctx context.Context, fam model.Family, filter Filter, each func(Entry) error) error
	Delete(ctx context.Context, entries []Entry) (deleted int, err error)
}

// Recorder is told of each removal that ran: how many entries it deleted and how
// long it took.
type Recorder interface {
	ConntrackReconciled(fam model.Family, deleted int, took time.Duration)
}

// Cleaner removes stale UDP flows of one family. It is not for concurrent use.
type Cleaner struct {
	fam   model.Family
	table Table
	rec   Recorder
	host  hostAddresses

	// known are the frontends whose flows may still have to be looked at: those of the
	// last call, and while calls fail those of all calls since the last good one.
	known desired
	// done says that the last call succeeded, so that known is what the table agrees
	// with.
	done bool
}

// New returns a Cleaner that has done nothing yet.
func New(fam model.Family, table Table, rec Recorder) *Cleaner {
	return &Cleaner{fam: fam, table: table, rec: rec, host: HostAddresses, known: newDesired()}
}

// Clean removes every stale UDP flow.
func (c *Cleaner) Clean(ctx context.Context, snap model.Snapshot, nodePorts NodePorts) error {
	return c.clean(ctx, snap, nodePorts, func(desired) bool { return true })
}

// CleanIfChanged is Clean if UDP Services, their endpoints or the node port
// addresses are not as the last good call saw them; otherwise it does nothing. It
// misses flows that were made by somebody's damage to the rules.
func (c *Cleaner) CleanIfChanged(ctx context.Context, snap model.Snapshot, nodePorts NodePorts) error {
	return c.clean(ctx, snap, nodePorts, func(want desired) bool { return !c.done || !want.equal(c.known) })
}

func (c *Cleaner) clean(ctx context.Context, snap model.Snapshot, nodePorts NodePorts, needed func(desired) bool) error {
	want := wanted(snap)
	all := want.with(c.known)
	if len(all.nodePorts) > 0 {
		addresses, err := nodePorts.prefixes(c.fam, c.host)
		if err != nil {
			c.known, c.done = all, false
			return fmt.Errorf("find addresses of node ports: %w", err)
		}
		all.addresses = addresses
		if len(want.nodePorts) > 0 {
			want.addresses = addresses
		}
	}
	if !needed(want) {
		return nil
	}
	if err := c.remove(ctx, all); err != nil {
		c.known, c.done = all, false
		return fmt.Errorf("remove stale %s UDP flows: %w", c.fam, err)
	}
	c.known, c.done = want, true
	return nil
}

// remove deletes the entries that are stale.
func (c *Cleaner) remove(ctx context.Context, d desired) error {
	if d.isEmpty() {
		return nil
	}
	logger := klog.FromContext(ctx)
	start := time.Now()
	seen := 0
	stale := batch{table: c.table}
	err := c.table.Dump(ctx, c.fam, Filter{Protocol: unix.IPPROTO_UDP}, func(e Entry) error {
		seen++
		if !d.stale(e) {
			return nil
		}
		logger.V(4).Info("Stale UDP flow", "source", e.Source, "frontend", e.Destination, "leadsTo", e.ReplySource)
		return stale.add(ctx, e)
	})
	// What was found before a dump broke off is stale all the same.
	err = cmp.Or(err, stale.flush(ctx))
	took := time.Since(start)
	c.rec.ConntrackReconciled(c.fam, stale.deleted, took)
	verbosity := 4
	if stale.deleted > 0 {
		verbosity = 2
	}
	logger.V(verbosity).Info("Looked for stale UDP flows", "family", c.fam, "seen", seen, "deleted", stale.deleted, "took", took)
	return err
}
