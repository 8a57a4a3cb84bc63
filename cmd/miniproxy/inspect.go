package main

import (
	"context"
	"errors"
	"time"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// nftInspector implements canary.Inspector for the nft backend: the number of the
// ruleset's generation tells that nothing at all has changed.
type nftInspector struct {
	drift *drift
	// clean is the generation that was looked at last, if known.
	clean uint32
	known bool
}

// Glance implements canary.Inspector.
func (n *nftInspector) Glance(context.Context) (canary.Verdict, error) {
	n.drift.tick()
	look, err := n.drift.family.kernel.LookNFT()
	if err != nil {
		return canary.Unsure, err
	}
	defer look.Close()
	now, err := look.Generation()
	if err != nil || !n.known || now != n.clean {
		return canary.Unsure, err
	}
	return canary.Unchanged, nil
}

// Look implements canary.Inspector.
func (n *nftInspector) Look(ctx context.Context, _ bool) (canary.Outcome, error) {
	look, err := n.drift.family.kernel.LookNFT()
	if err != nil {
		return canary.Outcome{}, err
	}
	defer look.Close()
	before, err := look.Generation()
	if err != nil {
		return canary.Outcome{}, err
	}
	found, worked, err := n.drift.family.proxier.InspectChains(ctx, look)
	if err != nil {
		return canary.Outcome{Cost: worked}, unlessUnsettled(err)
	}
	if n.drift.missed.Swap(false) {
		// The jump rules and the canaries may have been hit as well. They are looked after
		// where that is done anyway.
		found.Jumps = true
		n.drift.canary.Poke()
	}
	n.drift.damaged(found)
	n.clean, n.known = before, true
	n.drift.looked(ctx, worked)
	return canary.Outcome{Complete: true, Cost: worked}, nil
}

// unlessUnsettled drops an error that only says that it is not the time to look.
func unlessUnsettled(err error) error {
	if errors.Is(err, proxier.ErrUnsettled) {
		return nil
	}
	return err
}

// legacyInspector implements canary.Inspector for the legacy backend, where the size of
// each table is all that the kernel tells at once.
type legacyInspector struct {
	drift *drift
	// marks are what the tables were like when nothing was wrong with them. One that has
	// none is looked at again: what is being repaired may be damaged once more.
	marks map[ruleset.Table]mark
	moved []ruleset.Table
}

// mark is a table's fingerprint, and what of it is the agent's own.
type mark struct {
	print   iptables.Fingerprint
	entries int
	writes  uint64
}

// Glance implements canary.Inspector.
func (l *legacyInspector) Glance(context.Context) (canary.Verdict, error) {
	l.drift.tick()
	l.moved = nil
	for _, table := range render.Tables() {
		now, settled, err := l.mark(table)
		if err != nil {
			return canary.Unsure, err
		}
		if !settled {
			continue
		}
		if last, known := l.marks[table]; !known || now.movedSince(last) {
			l.moved = append(l.moved, table)
		}
	}
	if len(l.moved) > 0 {
		return canary.Moved, nil
	}
	return canary.Unsure, nil
}

// movedSince reports whether somebody else has changed the table's size. The agent's own
// writes are known by their number of rules, not by their bytes.
func (m mark) movedSince(last mark) bool {
	if m.writes == last.writes {
		return m.print != last.print
	}
	return int(m.print.Entries)-m.entries != int(last.print.Entries)-last.entries
}

// mark reads a table's, unless it is being written.
func (l *legacyInspector) mark(table ruleset.Table) (now mark, settled bool, err error) {
	entries, writes, settled := l.drift.family.proxier.Written(table)
	if !settled {
		return mark{}, false, nil
	}
	print, err := l.drift.family.kernel.Fingerprint(table)
	if err != nil {
		return mark{}, false, err
	}
	_, after, settled := l.drift.family.proxier.Written(table)
	return mark{print, entries, writes}, settled && after == writes, nil
}

// Look implements canary.Inspector.
func (l *legacyInspector) Look(ctx context.Context, everything bool) (canary.Outcome, error) {
	start, tables := time.Now(), l.moved
	if everything {
		tables = render.Tables()
	}
	for _, table := range tables {
		now, settled, err := l.mark(table)
		if err != nil || !settled {
			return canary.Outcome{Cost: time.Since(start)}, err
		}
		found, err := l.drift.family.proxier.InspectTable(ctx, l.drift.family.kernel, table)
		if err != nil {
			return canary.Outcome{Cost: time.Since(start)}, unlessUnsettled(err)
		}
		l.drift.damaged(found)
		delete(l.marks, table)
		if found.IsNone() {
			l.marks[table] = now
		}
	}
	worked := time.Since(start)
	l.drift.looked(ctx, worked)
	return canary.Outcome{Complete: true, Cost: worked}, nil
}
