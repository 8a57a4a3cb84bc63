package proxier

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// mustFail runs a sync that must fail, and leave the rules that packets meet as they
// were.
func (h *host) mustFail() error {
	h.t.Helper()
	before := h.rules()
	err := h.proxier.Sync(h.context())
	if err == nil || !errors.Is(h.last.Err, err) {
		h.t.Fatalf("sync returned %v and reported %v, want a failure", err, h.last.Err)
	}
	after := h.rules()
	for id := range reach(before) {
		if now, then := chainText(after, id), chainText(before, id); now != then {
			h.t.Errorf("B-41 the failed sync changed %s to\n%sit was\n%s", id, now, then)
		}
	}
	return err
}

// lockHeld is what the programs say when nothing can be written at the moment.
const lockHeld = "Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock..."

func TestFailureLosesNothing(t *testing.T) {
	changes := map[string]func(h *host){
		"B-39 an endpoint goes":  func(h *host) { h.tracker.EndpointSliceChanged(nil, newSlice("s1")) },
		"B-40 an endpoint comes": func(h *host) { h.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.1.1", "10.244.2.1")) },
		"a Service goes":         func(h *host) { h.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil) },
		"a Service comes":        func(h *host) { h.tracker.ServiceChanged(nil, newService("t", "10.96.0.99")) },
		"the options change":     func(h *host) { h.options.MasqueradeAll = true },
		"a Service changes its name": func(h *host) {
			h.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil)
			h.tracker.ServiceChanged(nil, newService("t", "10.96.0.1"))
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.fill(4)
			h.sync()
			change(h)
			h.kernel.FailNext(4, lockHeld)
			h.kernel.FailNext(4, lockHeld)
			h.mustFail()
			if h.last.Full {
				t.Error("the first attempt was a full sync already")
			}
			h.mustFail()
			if !h.last.Full || h.last.Trigger != Failure {
				t.Errorf("B-40 after a failure: full %v because of %q, want a full sync because of the failure", h.last.Full, h.last.Trigger)
			}
			h.sync()
			if !h.last.Full {
				t.Error("the sync after the second failure was not full")
			}
			if len(h.last.Changes.ServicePorts) == 0 && name != "the options change" {
				t.Error("B-39 the changes of the failed syncs are not reported with the one that applied them")
			}
			h.takeInputs()
			h.sync()
			if inputs := h.takeInputs(); len(inputs) != 0 || h.last.Full || len(h.last.Changes.ServicePorts) != 0 {
				t.Errorf("after recovery: full %v, changes %v, wrote:\n%s", h.last.Full, h.last.Changes, inputs)
			}
		})
	}
}

// B-39: what happens while syncs fail is reported once, with the first that succeeds.
func TestChangesAddUpOverFailures(t *testing.T) {
	h := newHost(t)
	h.fill(4)
	h.sync()
	h.tracker.EndpointSliceChanged(nil, newSlice("s1"))
	h.kernel.FailNext(4, lockHeld)
	h.mustFail()
	h.tracker.EndpointSliceChanged(nil, newSlice("s2"))
	h.tracker.ServiceChanged(newService("s3", "10.96.0.3"), nil)
	h.kernel.FailNext(1, "iptables-restore: line 2 failed")
	h.mustFail()
	h.sync()
	var names []string
	for _, name := range h.last.Changes.ServicePorts {
		names = append(names, name.Name)
	}
	if want := []string{"s1", "s2", "s3"}; !slices.Equal(names, want) {
		t.Errorf("B-39 changes %v, want %v", names, want)
	}
}

// B-70: a family that fails for ever must not fill the memory.
func TestTriggersAreBounded(t *testing.T) {
	var changes tracker.Changes
	for range 20 {
		changes = join(changes, tracker.Changes{
			ServicePorts: []model.ServicePortName{service("s")},
			Triggers:     make([]time.Time, 1000),
		})
	}
	if len(changes.Triggers) != maxTriggers || len(changes.ServicePorts) != 1 {
		t.Errorf("%d triggers and %d names, want %d and 1", len(changes.Triggers), len(changes.ServicePorts), maxTriggers)
	}
}

func TestFirstSyncFails(t *testing.T) {
	h := newHost(t)
	h.fill(3)
	h.kernel.FailNext(3, "iptables-restore: can't initialize iptables table `nat'")
	h.mustFail()
	h.sync()
	if h.last.Trigger != Failure {
		t.Errorf("trigger %q, want %q", h.last.Trigger, Failure)
	}
}

// B-43: while the lock is held nothing happens, and nothing is concluded.
func TestLockHeld(t *testing.T) {
	h := newHost(t)
	h.kernel.SetLocked(true)
	h.fill(3)
	for range 3 {
		if err := h.mustFail(); !iptables.IsBusy(err) {
			t.Errorf("B-43 %v is not known as contention", err)
		}
	}
	h.kernel.SetLocked(false)
	h.sync()
	h.tracker.EndpointSliceChanged(nil, newSlice("s1"))
	h.kernel.SetLocked(true)
	h.mustFail()
	h.kernel.SetLocked(false)
	h.sync()
}

// A failure half way through a plan of several transactions leaves rules that work,
// and the next sync writes all of it.
func TestFailureBetweenChunks(t *testing.T) {
	for failing := range 8 {
		h := newHost(t)
		h.proxier.settings.Chunk = 4
		h.fill(6)
		h.sync()
		h.tracker.ServiceChanged(newService("s0", "10.96.0.0"), nil)
		for _, s := range []string{"s1", "s2", "s3", "s4"} {
			h.tracker.EndpointSliceChanged(nil, newSlice(s, "10.244.1.100", "10.244.2.100"))
		}
		count := 0
		h.kernel.BeforeRestore(func() {
			if count == failing {
				h.kernel.FailNext(4, lockHeld)
			}
			count++
		})
		err := h.proxier.Sync(h.context())
		h.kernel.BeforeRestore(nil)
		if count > failing != (err != nil) {
			t.Errorf("restore %d of %d was to fail, sync returned %v", failing+1, count, err)
		}
		if left := ruleset.Check(h.withoutOrphans()); left != nil {
			t.Errorf("after restore %d failed: %v", failing+1, left)
		}
		h.sync()
	}
}

// withoutOrphans are the kernel's rules without the chains that no rule refers to:
// after a failure there may be some that were written too early or not yet removed.
func (h *host) withoutOrphans() ruleset.Ruleset {
	rules := h.rules()
	reachable := reach(rules)
	for id := range rules {
		if !reachable[id] {
			delete(rules, id)
		}
	}
	return rules
}

// reach finds the chains that a packet can come to from a built-in chain.
func reach(rules ruleset.Ruleset) map[ruleset.ChainID]bool {
	found := map[ruleset.ChainID]bool{}
	var visit func(id ruleset.ChainID)
	visit = func(id ruleset.ChainID) {
		if found[id] || rules[id] == nil {
			return
		}
		found[id] = true
		for _, rule := range rules[id].Rules {
			if to := rule.Target(); to != "" {
				visit(ruleset.ChainID{Table: id.Table, Name: to})
			}
		}
	}
	for id := range rules {
		if id.IsBuiltin() {
			visit(id)
		}
	}
	return found
}

// TestNoChainIsSeenHalfWritten looks at the kernel after every transaction of a big
// plan. A chain that a packet can come to says either what it said before or what it
// says in the end.
func TestNoChainIsSeenHalfWritten(t *testing.T) {
	plans := map[string]func(h *host){
		"every Service changes": func(h *host) { h.options.MasqueradeAll = true },
		"all endpoints move": func(h *host) {
			for i := range 30 {
				h.tracker.EndpointSliceChanged(nil, newSlice(name(i), "10.244.9.1", "10.244.9.2"))
			}
		},
		"all endpoints go": func(h *host) {
			for i := range 30 {
				h.tracker.EndpointSliceChanged(nil, newSlice(name(i)))
			}
		},
		"most Services go": func(h *host) {
			for i := range 25 {
				h.tracker.ServiceChanged(newService(name(i), "10.96.0.0"), nil)
			}
		},
		"many Services come":  func(h *host) { h.fill(60) },
		"chains become trees": func(h *host) { h.options.FlatDispatch, h.options.FlatBalance = 3, 1 },
		"another agent starts": func(h *host) {
			h.restart()
			h.options.MasqueradeAll = true
			h.fill(20)
		},
		"the kernel is in doubt": func(h *host) { h.proxier.ForceFull("a test") },
	}
	for what, plan := range plans {
		t.Run(what, func(t *testing.T) {
			for _, chunk := range []int{1, 5, 40} {
				h := newHost(t)
				h.proxier.settings.Chunk = chunk
				h.fill(30)
				h.sync()
				before := h.rules()
				var states []ruleset.Ruleset
				h.afterRestore = func() { states = append(states, h.rules()) }
				plan(h)
				h.sync()
				after := h.rules()
				for i, state := range states {
					for id := range reach(state) {
						if text := chainText(state, id); text != chainText(before, id) && text != chainText(after, id) {
							t.Errorf("after restore %d of %d, chunks of %d: %s is reachable and says\n%s\nbefore:\n%s\nin the end:\n%s",
								i+1, len(states), chunk, id, text, chainText(before, id), chainText(after, id))
						}
					}
				}
				mustKeepLeading(t, before, after, states)
				if chunk == 1 && what != "chains become trees" && len(states) < 5 {
					t.Errorf("%d restores, the plan was not cut into chunks", len(states))
				}
			}
		})
	}
}

// mustKeepLeading checks that in every state packets for a cluster IP are led to where
// they were led before or to where they are led in the end.
func mustKeepLeading(t *testing.T, before, after ruleset.Ruleset, states []ruleset.Ruleset) {
	t.Helper()
	for i := range 60 {
		clusterIP := netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
		was, will := leads(before, servicesInNAT, clusterIP), leads(after, servicesInNAT, clusterIP)
		for n, state := range states {
			if got := leads(state, servicesInNAT, clusterIP); got != was && got != will {
				t.Errorf("after restore %d of %d packets for %s are led to %q, before to %q, in the end to %q", n+1, len(states), clusterIP, got, was, will)
			}
		}
	}
}

var servicesInNAT = ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-SERVICES"}

// leads returns the chain of a Service to which a dispatch chain leads what is for an
// address, "" for none.
func leads(rules ruleset.Ruleset, from ruleset.ChainID, to netip.Addr) string {
	for _, rule := range rules[from].Rules {
		destination, ok := first(rule.Matches).(ruleset.Destination)
		if !ok || !destination.Prefix.Contains(to) {
			continue
		}
		if destination.Prefix.IsSingleIP() {
			return rule.Target()
		}
		if chain := leads(rules, ruleset.ChainID{Table: from.Table, Name: rule.Target()}, to); chain != "" {
			return chain
		}
	}
	return ""
}

func first(matches []ruleset.Match) ruleset.Match {
	if len(matches) == 0 {
		return nil
	}
	return matches[0]
}

func name(i int) string { return fmt.Sprintf("s%d", i) }

// chainText is what a chain says, or that there is none.
func chainText(rules ruleset.Ruleset, id ruleset.ChainID) string {
	chain := rules[id]
	switch {
	case chain == nil && id.IsBuiltin():
		return "" // its table is not there yet
	case chain == nil:
		return "(no chain)"
	}
	var b strings.Builder
	for _, rule := range chain.Rules {
		b.WriteString(rule.String() + "\n")
	}
	return b.String()
}
