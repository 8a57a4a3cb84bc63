package proxier

import (
	"context"
	"fmt"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// chunkChains is how many chains go into one transaction. The nft backend's time
// grows with the square of it: 10,000 Services with 10 endpoints each took 570 s in
// one transaction and 13 s in chunks of 100 Services, or 1,200 chains.
const chunkChains = 1200

// writer collects chains and hands them to the kernel in transactions that are
// small enough. Chains must be added in an order in which each one refers only to
// chains that were there or were added before, so that no packet can meet a chain
// that is half written wherever the chunks happen to end.
type writer struct {
	kernel Kernel
	ledger *ledger
	// chunk is how many chains go into one transaction.
	chunk int

	writes  map[ruleset.Table][]ruleset.Chain
	deletes map[ruleset.Table][]string
	pending int
	buffer  []byte

	// What was written in all, for the report.
	chains int
	rules  map[ruleset.Table]int
}

func newWriter(kernel Kernel, ledger *ledger, chunk int) *writer {
	return &writer{
		kernel:  kernel,
		ledger:  ledger,
		chunk:   chunk,
		writes:  map[ruleset.Table][]ruleset.Chain{},
		deletes: map[ruleset.Table][]string{},
		rules:   map[ruleset.Table]int{},
	}
}

// write adds a chain if it differs from what the kernel holds.
func (w *writer) write(chain ruleset.Chain) {
	if !w.ledger.differs(chain) {
		return
	}
	w.writes[chain.Table] = append(w.writes[chain.Table], chain)
	w.ledger.note(chain)
	w.pending++
	w.chains++
	w.rules[chain.Table] += len(chain.Rules)
}

// removeAll hands over everything that was collected and removes chains that
// nothing refers to then, but one that comes later in the list.
func (w *writer) removeAll(ctx context.Context, ids []ruleset.ChainID) error {
	for _, id := range ids {
		w.deletes[id.Table] = append(w.deletes[id.Table], id.Name)
		w.ledger.forget(id)
		w.pending++
		if err := w.flushIfFull(ctx); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}

// flushIfFull hands over what was collected once it is enough for a chunk. To be
// called only where nothing collected still waits for a chain to be added.
func (w *writer) flushIfFull(ctx context.Context) error {
	if w.pending < w.chunk {
		return nil
	}
	return w.flush(ctx)
}

// flush hands over everything that was collected. The filter table comes first: a
// packet that is no longer to be refused may pass unrewritten for a moment, but none
// is rewritten towards an endpoint that is no longer there.
func (w *writer) flush(ctx context.Context) error {
	if w.pending == 0 {
		return nil
	}
	var tx ruleset.Transaction
	for _, table := range []ruleset.Table{ruleset.Filter, ruleset.NAT} {
		tx.Tables = append(tx.Tables, ruleset.TableChange{Table: table, Write: w.writes[table], Delete: w.deletes[table]})
	}
	w.buffer = tx.Append(w.buffer[:0])
	clear(w.writes)
	clear(w.deletes)
	w.pending = 0
	// A transaction that has begun is not cut off half way when the agent is told to
	// stop; the next one does not begin.
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.kernel.Restore(context.WithoutCancel(ctx), w.buffer); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	return nil
}
