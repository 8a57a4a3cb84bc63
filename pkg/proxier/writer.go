package proxier

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// How many chains go into one transaction at most. The nft backend's time grows
// with the square of it: 10,000 Services with 10 endpoints each took 570 s in one
// transaction and 13 s in chunks of 100 Services, or about 1,200 chains; 1,000 Services took
// 0.76 s in chunks of 100, and 0.60 s in chunks of 50. On the legacy backend the kernel
// swaps the whole table for each transaction, however small: there, fewer are better.
const (
	ChunkNFT    = 600
	ChunkLegacy = math.MaxInt
)

// ParallelNFT is how many transactions may be under way on the nft backend: while the
// kernel, which takes one at a time, works on the one, a program reads the other. If the
// kernel's rules have changed meanwhile, the program begins anew by itself. 1,000 Services
// took 0.36 s so, and 0.60 s one after the other.
const ParallelNFT = 2

// writer collects chains and hands them to the kernel in transactions that are
// small enough. Chains must be added in an order in which each one refers only to
// chains that were there or were added before, so that no packet can meet a chain
// that is half written wherever the chunks happen to end.
type writer struct {
	kernel Kernel
	chunk  int
	ledger *ledger
	// behind has the transactions that are under way while more is collected.
	behind *behind
	// flushed says that a first transaction was made, with the chains that all Service ports
	// lead to.
	flushed bool
	// builder collects what the next transaction writes and removes. The filter table
	// comes first: a packet that is no longer to be refused may pass unrewritten for a
	// moment, but where the last endpoint goes, refusal is there before the rewriting
	// ends, so that none passes unrewritten to somebody who does not know the address.
	builder *ruleset.Builder

	// rules counts what was written in all, for the report.
	rules map[ruleset.Table]int
}

func newWriter(kernel Kernel, settings Settings, ledger *ledger) *writer {
	return &writer{
		kernel:  kernel,
		chunk:   settings.Chunk,
		ledger:  ledger,
		behind:  newBehind(max(settings.Parallel, 1)),
		builder: ruleset.NewBuilder(render.Tables()...),
		rules:   map[ruleset.Table]int{},
	}
}

// How long the rules of a chain are as text, in bytes: the averages of a cluster whose
// names are of the usual length, 380 and without comments 190, and a quarter more.
const (
	textPerChain = 464
	barePerChain = 240
)

// expect says how many chains may be added, most of them in table nat, with comments or
// bare.
func (w *writer) expect(chains int, bare bool) {
	each := textPerChain
	if bare {
		each = barePerChain
	}
	w.builder.Grow(ruleset.NAT, min(chains, w.chunk), each)
}

// write adds a chain if it differs from what the kernel holds. Owner is the unit that
// it belongs to, nil for none.
func (w *writer) write(chain ruleset.Chain, owner *unit) {
	if !w.ledger.note(chain, owner) {
		return
	}
	w.builder.Write(chain)
	w.rules[chain.Table] += len(chain.Rules)
}

// removeAll hands over everything that was collected and removes chains that
// nothing refers to then, but one that comes later in the list.
func (w *writer) removeAll(ctx context.Context, ids []ruleset.ChainID) error {
	for _, id := range ids {
		if _, known := w.ledger.last(id); !known {
			continue // it stands in the list twice
		}
		w.builder.Delete(id)
		w.ledger.forget(id)
		if err := w.flushIfFull(ctx); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}

// removeUnused removes those of some empty chains that no rule leads to, and returns the
// others.
func (w *writer) removeUnused(ctx context.Context, ids []ruleset.ChainID) (used []ruleset.ChainID, err error) {
	for len(ids) > 0 {
		n := min(len(ids), w.chunk)
		more, err := w.removeByHalves(ctx, ids[:n])
		used = append(used, more...)
		if err != nil {
			return used, err
		}
		ids = ids[n:]
	}
	return used, nil
}

func (w *writer) removeByHalves(ctx context.Context, ids []ruleset.ChainID) (used []ruleset.ChainID, err error) {
	for _, id := range ids {
		w.builder.Delete(id)
	}
	switch err := w.flush(ctx); {
	case err == nil:
		for _, id := range ids {
			w.ledger.forget(id)
		}
		return nil, nil
	case !iptables.IsRefused(err):
		return ids, err
	case len(ids) == 1:
		return ids, nil
	}
	for _, half := range [][]ruleset.ChainID{ids[:len(ids)/2], ids[len(ids)/2:]} {
		more, err := w.removeByHalves(ctx, half)
		used = append(used, more...)
		if err != nil {
			return used, err
		}
	}
	return used, nil
}

// flushIfFull hands over what was collected once it is enough for a chunk. To be
// called only where nothing collected still waits for a chain to be added.
func (w *writer) flushIfFull(ctx context.Context) error {
	if !w.isFull() {
		return nil
	}
	return w.flush(ctx)
}

func (w *writer) isFull() bool { return w.builder.Len() >= w.chunk }

// flush hands over everything that was collected, and waits until all of it is written.
func (w *writer) flush(ctx context.Context) error {
	if err := w.wait(); err != nil || w.builder.Len() == 0 {
		return err
	}
	w.flushed = true
	return w.restore(ctx, inputs(w.builder))
}

// flushBehind hands over everything that was collected, and waits until it is its turn.
// It is only for chunks that lead to nothing in each other: the kernel refuses a jump to a
// chain that is not there yet. What all of them lead to was collected first, and is written
// before anything else begins.
func (w *writer) flushBehind(ctx context.Context) error {
	if !w.flushed || w.behind.limit == 1 {
		return w.flush(ctx)
	}
	input := bytes.Join(w.builder.Take(), nil) // a copy: more is collected meanwhile
	return w.behind.start(func() error { return w.restore(ctx, [][]byte{input}) })
}

// wait waits for what is under way.
func (w *writer) wait() error { return w.behind.wait() }

// restore makes the transactions of some input, unless the agent was told to stop before.
func (w *writer) restore(ctx context.Context, input [][]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, done := outlive(ctx, lastWords)
	defer done()
	for _, part := range input {
		if err := w.kernel.Restore(ctx, part); err != nil {
			return fmt.Errorf("write the rules: %w", err)
		}
	}
	return nil
}

// maxJoined is how much text is put together for one program, in bytes. To copy more
// takes more memory than another program takes time.
const maxJoined = 4 << 20

// inputs takes what a builder has: one input, or if that is large, one for each table.
func inputs(b *ruleset.Builder) [][]byte {
	parts := b.Take()
	total := 0
	for _, part := range parts {
		total += len(part)
	}
	if len(parts) > 1 && total <= maxJoined {
		return [][]byte{bytes.Join(parts, nil)}
	}
	return parts
}

// lastWords is how long a transaction may go on after the agent was told to stop; the
// next one does not begin. It is less than the grace that deploy/daemonset.yaml gives,
// so that a program that hangs does not keep the agent from ending by itself.
const lastWords = 10 * time.Second

// outlive returns a context that ends some time after ctx, or when done is called.
func outlive(ctx context.Context, by time.Duration) (longer context.Context, done context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(by):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}
