package proxier

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// errCrash is what a sync fails with whose process has ended.
var errCrash = errors.New("the process has ended")

// crashingKernel is a kernel whose agent ends after some transactions.
type crashingKernel struct {
	*host
	left atomic.Int64
}

func (k *crashingKernel) Restore(ctx context.Context, input []byte) error {
	if k.left.Add(-1) < 0 {
		return errCrash
	}
	return k.host.Restore(ctx, input)
}

func (k *crashingKernel) EnsureJumps(ctx context.Context, hooks []ruleset.Hook) ([]iptables.Change, error) {
	if k.left.Load() <= 0 {
		return nil, errCrash
	}
	return k.host.EnsureJumps(ctx, hooks)
}

// TestCrashBetweenChunks ends the agent after each chunk that it writes, in the first
// sync, in one that changes much, and in one that writes everything again. No chain
// that a packet can reach is ever half written, and an agent that starts anew brings
// the kernel to where it should be.
func TestCrashBetweenChunks(t *testing.T) {
	const services, chunk = 40, 8
	change := func(h *host) {
		for i := range services {
			switch name := fmt.Sprintf("s%d", i); i % 4 {
			case 0:
				h.tracker.EndpointSliceChanged(nil, newSlice(name, "10.244.3.1", "10.244.3.2"))
			case 1:
				h.tracker.ServiceChanged(newService(name, fmt.Sprintf("10.96.0.%d", i)), nil)
			case 2:
				h.tracker.ServiceChanged(nil, newService(name, fmt.Sprintf("10.97.0.%d", i), nodePort(int32(30000+i))))
			}
		}
	}
	tests := []struct {
		name string
		// before says whether a full sync has gone before, and all whether the one that is
		// cut off writes everything.
		before, all bool
		parallel    int
	}{
		{"first sync", false, true, 1},
		{"first sync, three at a time", false, true, 3},
		{"many changes", true, false, 1},
		{"everything again, with many changes", true, true, 1},
		{"everything again, with many changes, three at a time", true, true, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for crashAfter := int64(0); ; crashAfter++ {
				h := newHost(t)
				h.options.FlatDispatch = 10
				h.proxier.settings.Chunk, h.proxier.settings.Parallel = chunk, test.parallel
				h.fill(services)
				if test.before {
					h.sync()
					change(h)
				}
				before := h.rules()
				k := &crashingKernel{host: h}
				k.left.Store(crashAfter)
				h.proxier.kernel = k
				if test.all {
					h.proxier.ForceFull("a test")
				}
				var states []ruleset.Ruleset
				h.afterRestore = func() { states = append(states, h.rules()) }
				err := h.proxier.Sync(h.context())
				if err != nil && !errors.Is(err, errCrash) {
					t.Fatal(err)
				}

				h.restart()
				h.fill(services)
				if test.before {
					change(h)
				}
				h.sync()
				c := cluster{host: h}
				c.mustNotTear(before, states)
				if t.Failed() {
					t.Fatalf("the agent had ended after %d transactions", crashAfter)
				}
				if err == nil {
					if crashAfter < 5 {
						t.Errorf("only %d transactions, so that nothing was tested", crashAfter)
					}
					return
				}
			}
		})
	}
}

// TestChangesBetweenChunks is about what happens in the cluster while many Services are
// written: it is in one of the next chunks, not behind all of them.
func TestChangesBetweenChunks(t *testing.T) {
	const services, chunk = 60, 10
	h := newHost(t)
	h.proxier.settings.Chunk = chunk
	h.fill(services)
	h.sync()
	h.proxier.ForceFull("a test")
	h.takeInputs()
	h.written = nil
	restores := 0
	h.afterRestore = func() {
		restores++
		switch restores {
		case 1: // of one that was written already, and of one that was not
			h.tracker.EndpointSliceChanged(nil, newSlice("s0", "10.244.3.1"))
			h.tracker.EndpointSliceChanged(nil, newSlice("s9", "10.244.3.9"))
		case 2:
			if !h.holds("10.244.3.1:8080") || !h.holds("10.244.3.9:8080") {
				t.Error("the changes are not in the chunk that came next")
			}
			// The endpoint that has just gone is back, and a Service is gone.
			h.tracker.EndpointSliceChanged(nil, newSlice("s0", "10.244.1.0"))
			h.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil)
			h.tracker.ServiceChanged(nil, newService("new", "10.96.7.7"))
		}
	}
	h.sync()
	if len(h.last.Changes.ServicePorts) != 4 {
		t.Errorf("changes %v, want those of 4 Service ports", h.last.Changes.ServicePorts)
	}
	if got := h.chainsOf("s1"); len(got) > 0 {
		t.Errorf("a Service that went during the sync has chains left: %v", got)
	}
	if !slices.IsSorted(h.written) || len(h.written) < services/chunk {
		t.Errorf("told of progress: %v", h.written)
	}
	h.takeInputs()
	h.afterRestore = nil
	h.sync()
	if inputs := h.takeInputs(); len(inputs) > 0 {
		t.Errorf("the sync after it wrote\n%s", inputs)
	}
}

// TestChangesWhileChunksAreUnderWay: a Service changes while its rules are under way in a
// transaction that takes long. The older ones do not come out on top.
func TestChangesWhileChunksAreUnderWay(t *testing.T) {
	const services, chunk = 60, 10
	h := newHost(t)
	h.proxier.settings.Chunk, h.proxier.settings.Parallel = chunk, 3
	h.fill(services)
	h.sync()
	h.proxier.ForceFull("a test")
	slow := &slowSecondKernel{host: h, changed: make(chan struct{})}
	changed := false
	h.afterRestore = func() {
		if names := slow.underWay(); len(names) > 0 && !changed {
			changed = true
			defer close(slow.changed)
			h.tracker.EndpointSliceChanged(nil, newSlice(names[0], "10.244.3.1"))
		}
	}
	h.proxier.kernel = slow
	if err := h.proxier.Sync(h.context()); err != nil {
		t.Fatal(err)
	}
	h.mustEqualFresh()
	if changed && !h.holds("10.244.3.1:8080") {
		t.Error("the change is not there")
	}
	if !changed {
		t.Error("no transaction ended while the second one was under way, so that nothing was tested")
	}
}

// slowSecondKernel is a kernel where the second transaction takes until something has
// changed, and so long after it that newer rules could come first.
type slowSecondKernel struct {
	*host
	restores atomic.Int64
	second   atomic.Pointer[[]byte]
	changed  chan struct{}
}

func (k *slowSecondKernel) Restore(ctx context.Context, input []byte) error {
	if k.restores.Add(1) == 2 {
		k.second.Store(&input)
		select {
		case <-k.changed:
			time.Sleep(50 * time.Millisecond)
		case <-time.After(20 * time.Second):
		}
		k.second.Store(nil)
	}
	return k.host.Restore(ctx, input)
}

// underWay are the names of Services in the second transaction, while it takes.
func (k *slowSecondKernel) underWay() (names []string) {
	input := k.second.Load()
	if input == nil {
		return nil
	}
	for _, m := range regexp.MustCompile(`ns1/(s[0-9]+):`).FindAllSubmatch(*input, -1) {
		names = append(names, string(m[1]))
	}
	return names
}
