package proxier

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestJumpsFirst: where that is asked for, the jump rules are in place before the one
// large transaction, which makes them lead somewhere. A restart finds them there.
func TestJumpsFirst(t *testing.T) {
	h := newHost(t)
	h.proxier.settings.JumpsFirst, h.proxier.settings.Chunk = true, ChunkLegacy
	h.fill(3)
	begin := func(when string) {
		t.Helper()
		h.afterRestore = func() {
			for _, hook := range render.Hooks() {
				if n := countJumps(h.rules(), hook); n != 1 {
					t.Errorf("%s: %d jump rules %s after the first transaction, want 1", when, n, hook.Rule)
				}
			}
		}
		h.sync()
		if n := len(h.takeInputs()); n != 1 {
			t.Errorf("%s: %d restores of chains, want 1", when, n)
		}
	}
	begin("on an empty kernel")
	h.restart()
	h.fill(3)
	begin("after a restart")
	h.kernel.Flush(ruleset.NAT)
	h.proxier.ForceFull("a test")
	begin("after a flush")
}

// A jump rule that somebody removed is put back within the period, and what else may
// be missing with it.
func TestJumpsAreLookedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.fill(3)
		h.sync()
		if len(h.last.JumpsRepaired) > 0 {
			t.Errorf("the first jump rules count as a repair of those in %v", h.last.JumpsRepaired)
		}
		const jump = `PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`
		h.write("*nat\n-D " + jump + "\nCOMMIT\n")
		h.write("*nat\n-F KUBE-SERVICES\nCOMMIT\n")
		h.tracker.ServiceChanged(nil, newService("t", "10.96.0.99"))
		if err := h.proxier.Sync(h.context()); err != nil {
			t.Fatal(err)
		}
		if h.last.Full {
			t.Fatal("looked before it was time")
		}
		time.Sleep(jumpPeriod)
		h.sync()
		if !h.last.Full || h.last.Trigger != Touched || len(h.last.JumpsRepaired) != 1 {
			t.Errorf("full %v because of %q, with the jump rules of %v", h.last.Full, h.last.Trigger, h.last.JumpsRepaired)
		}
		time.Sleep(jumpPeriod)
		h.kernel.SetLocked(true)
		if err := h.proxier.Sync(h.context()); err != nil {
			t.Errorf("B-43 not to have looked is taken for a failure: %v", err)
		}
		h.kernel.SetLocked(false)
		h.takeInputs()
		h.sync()
		if inputs := h.takeInputs(); len(inputs) != 0 || h.last.Full {
			t.Errorf("B-43 not to have looked is taken for a change; wrote:\n%s", inputs)
		}
	})
}

// A jump rule cannot be put back while the chain that it leads to is gone: that chain
// is written again first, with all others.
func TestJumpsAreLookedAfterWithoutTheirChains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.fill(3)
		h.sync()
		h.write("*nat\n-F POSTROUTING\n:KUBE-POSTROUTING - [0:0]\n-X KUBE-POSTROUTING\nCOMMIT\n")
		time.Sleep(jumpPeriod)
		h.sync()
		if !h.last.Full || h.last.Trigger != Touched {
			t.Errorf("full %v because of %q, want all to be written because it was touched", h.last.Full, h.last.Trigger)
		}
	})
}
