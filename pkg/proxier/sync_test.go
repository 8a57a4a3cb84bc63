package proxier

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func TestFirstSync(t *testing.T) {
	h := newHost(t)
	h.fill(3)
	jumps := 0
	h.afterRestore = func() {
		for _, hook := range render.Hooks() {
			jumps += countJumps(h.rules(), hook)
		}
	}
	h.sync()
	if jumps != 0 {
		t.Errorf("%d jumps stood before the rules were complete", jumps)
	}
	if !h.last.Full || h.last.Trigger != Start {
		t.Errorf("full %v because of %q, want a full sync because of the start", h.last.Full, h.last.Trigger)
	}
	if n := len(h.inputs); n != 1 {
		t.Errorf("%d restores, want 1", n)
	}
	h.takeInputs()
	h.sync()
	if inputs := h.takeInputs(); len(inputs) != 0 || h.last.Full {
		t.Errorf("with nothing new: full %v, wrote:\n%s", h.last.Full, inputs)
	}
}

func TestChangeWritesItsOwnChains(t *testing.T) {
	h := newHost(t)
	h.fill(20)
	h.sync()
	h.takeInputs()

	t.Run("one endpoint more", func(t *testing.T) {
		h.tracker.EndpointSliceChanged(nil, newSlice("s7", "10.244.1.7", "10.244.2.7"))
		h.sync()
		inputs := h.takeInputs()
		if len(inputs) != 1 {
			t.Fatalf("%d restores, want 1", len(inputs))
		}
		// The Service's chain and that of the new endpoint; the chain of the other one,
		// with its counters, stays as it is.
		if got := declared(inputs); len(got) != 2 {
			t.Errorf("wrote %v, want the Service's chain and one endpoint's", got)
		}
		if strings.Contains(inputs[0], "ns1/s7:http cluster IP") && strings.Contains(inputs[0], "KUBE-SERVICES") {
			t.Errorf("wrote KUBE-SERVICES:\n%s", inputs[0])
		}
		if h.last.Full || h.last.Written[ruleset.NAT] != 5 || h.last.Written[ruleset.Filter] != 0 {
			t.Errorf("full %v, wrote %v rules, want 5 in nat", h.last.Full, h.last.Written)
		}
	})
	t.Run("B-14 the last endpoint goes", func(t *testing.T) {
		before := h.chainsOf("s7")
		h.tracker.EndpointSliceChanged(nil, newSlice("s7"))
		h.sync()
		want := append(before, "nat/KUBE-SERVICES", "filter/KUBE-SERVICES")
		got := declared(h.takeInputs())
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("wrote or deleted %v, want %v", got, want)
		}
		if left := h.chainsOf("s7"); len(left) != 0 {
			t.Errorf("chains %v are left", left)
		}
		if !h.holds(`-d 10.96.0.7/32 -p tcp -m comment --comment "ns1/s7:http has no endpoints"`) {
			t.Error("the Service is not refused")
		}
	})
	t.Run("B-40 and comes back", func(t *testing.T) {
		h.tracker.EndpointSliceChanged(nil, newSlice("s7", "10.244.1.7"))
		h.sync()
		if got := len(declared(h.takeInputs())); got != 4 {
			t.Errorf("wrote %d chains, want 2 of the Service and KUBE-SERVICES twice", got)
		}
	})
	t.Run("a Service is deleted", func(t *testing.T) {
		h.tracker.ServiceChanged(newService("s8", "10.96.0.8"), nil)
		h.sync()
		if h.holds("s8:http") {
			t.Error("rules of the Service are left")
		}
		if got := declared(h.takeInputs()); slices.Contains(got, "filter/KUBE-SERVICES") {
			t.Errorf("wrote %v: nothing changed in the filter table", got)
		}
	})
	t.Run("a change taken back", func(t *testing.T) {
		h.tracker.ServiceChanged(nil, newService("s9", "10.96.0.9", nodePort(30009)))
		h.tracker.ServiceChanged(nil, newService("s9", "10.96.0.9"))
		h.sync()
		if inputs := h.takeInputs(); len(inputs) != 0 {
			t.Errorf("wrote:\n%s", inputs)
		}
	})
	t.Run("a change that no rule shows", func(t *testing.T) {
		h.tracker.ServiceChanged(nil, newService("s9", "10.96.0.9", func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 }))
		h.sync()
		if inputs := h.takeInputs(); len(inputs) != 0 {
			t.Errorf("wrote:\n%s", inputs)
		}
	})
}

// B-86: one Service takes over the frontend of another in one batch.
func TestFrontendChangesHands(t *testing.T) {
	h := newHost(t)
	h.tracker.ServiceChanged(nil, newService("s", "10.96.0.80"))
	h.tracker.EndpointSliceChanged(nil, newSlice("s", "10.244.1.10"))
	h.sync()
	h.tracker.ServiceChanged(newService("s", "10.96.0.80"), nil)
	h.tracker.ServiceChanged(nil, newService("t", "10.96.0.80"))
	h.tracker.EndpointSliceChanged(nil, newSlice("t", "10.244.1.11"))
	h.sync()
	if n := strings.Count(string(h.kernel.Save()), "-A KUBE-SERVICES -d 10.96.0.80/32"); n != 1 || h.holds("ns1/s:http") {
		t.Errorf("B-86 %d rules for the cluster IP:\n%s", n, h.kernel.Save())
	}
}

// TestConflictIsSettledStepByStep: the loser takes over when the winner goes, and
// loses again when it comes back.
func TestConflictIsSettledStepByStep(t *testing.T) {
	h := newHost(t)
	claim := func(name, clusterIP string, second int64) *corev1.Service {
		return newService(name, clusterIP, func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"10.60.0.10"}
			s.CreationTimestamp = metav1.NewTime(time.Unix(1_800_000_000+second, 0))
		})
	}
	s, tt := claim("s", "10.96.0.80", 2), claim("t", "10.96.0.81", 1)
	h.tracker.ServiceChanged(nil, s)
	h.tracker.EndpointSliceChanged(nil, newSlice("s", "10.244.1.10"))
	h.tracker.EndpointSliceChanged(nil, newSlice("t", "10.244.1.11"))
	has := func(name string) bool { return h.holds(`"ns1/` + name + `:http external IP"`) }

	h.sync()
	if !has("s") {
		t.Error("the only claim is not served")
	}
	h.tracker.ServiceChanged(nil, tt)
	h.sync()
	if has("s") || !has("t") {
		t.Error("the older Service does not have the external IP")
	}
	if len(h.last.Conflicts) != 1 || h.last.Conflicts[0].Loser != service("s") {
		t.Errorf("conflicts %v, want that s loses", h.last.Conflicts)
	}
	// One more that loses changes no rule, and is reported all the same.
	h.tracker.ServiceChanged(nil, claim("u", "10.96.0.82", 3))
	h.tracker.ServiceChanged(nil, newService("s", "10.96.0.80"))
	h.sync()
	if len(h.last.Conflicts) != 1 || h.last.Conflicts[0].Loser != service("u") {
		t.Errorf("conflicts %v, want that u loses", h.last.Conflicts)
	}
	h.tracker.ServiceChanged(claim("u", "10.96.0.82", 3), nil)
	h.tracker.ServiceChanged(nil, s)
	h.tracker.ServiceChanged(tt, nil)
	h.sync()
	if !has("s") || len(h.last.Conflicts) != 0 {
		t.Errorf("s did not take over; conflicts %v", h.last.Conflicts)
	}
}

func TestOptionsChange(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	t.Run("everything follows, and deletions are not lost", func(t *testing.T) {
		h.options.MasqueradeAll = true
		h.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil)
		h.tracker.EndpointSliceChanged(nil, newSlice("s2"))
		h.sync()
		if h.holds("! -s 10.244.0.0/16") || h.holds("s1:http") {
			t.Errorf("old rules are left:\n%s", h.kernel.Save())
		}
		if h.last.Full {
			t.Error("all rules were written, but only some changed")
		}
	})
	t.Run("B-64 the node's address", func(t *testing.T) {
		h.tracker.NodeChanged(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.3"}},
		}})
		h.sync()
	})
	t.Run("node ports, without any Service", func(t *testing.T) {
		empty := newHost(t)
		empty.sync()
		empty.options.NodePorts.All = false
		empty.sync()
	})
	t.Run("the size of flat chains", func(t *testing.T) {
		h.options.FlatDispatch = 1
		h.sync()
		h.options.FlatDispatch = 0
		h.sync()
	})
	t.Run("nothing", func(t *testing.T) {
		h.takeInputs()
		h.sync()
		if inputs := h.takeInputs(); len(inputs) != 0 {
			t.Errorf("wrote:\n%s", inputs)
		}
	})
}

func TestForceFull(t *testing.T) {
	h := newHost(t)
	h.fill(3)
	h.sync()
	h.kernel.Flush(ruleset.NAT)
	h.proxier.ForceFull("nat was flushed")
	h.sync()
	if !h.last.Full || h.last.Trigger != Touched {
		t.Errorf("full %v because of %q, want a full sync because the tables were touched", h.last.Full, h.last.Trigger)
	}
	// One that arrives while a sync is at work concerns the next one.
	h.proxier.ForceFull("first")
	forced := false
	h.afterRestore = func() {
		if !forced {
			forced = true
			h.proxier.ForceFull("second")
		}
	}
	h.sync()
	h.sync()
	if !h.last.Full {
		t.Error("a doubt that was raised during a sync is lost")
	}
	h.sync()
	if h.last.Full {
		t.Error("a doubt is settled twice")
	}
}

func TestResult(t *testing.T) {
	h := newHost(t)
	local := corev1.ServiceInternalTrafficPolicyLocal
	h.tracker.ServiceChanged(nil, newService("s", "10.96.0.80", nodePort(30080), func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = &local
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}))
	h.tracker.EndpointSliceChanged(nil, newSlice("s", "10.244.2.10"))
	h.tracker.ServiceChanged(nil, newService("none", "10.96.0.81", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }))
	h.sync()
	if h.last.NoLocalInternal != 1 || h.last.NoLocalExternal != 1 {
		t.Errorf("B-70 without local endpoints: internal %d, external %d, want 1 and 1", h.last.NoLocalInternal, h.last.NoLocalExternal)
	}
	if h.last.Family != model.IPv4 || len(h.last.Snapshot.Services) != 2 {
		t.Errorf("result for %v with %d Service ports", h.last.Family, len(h.last.Snapshot.Services))
	}
	total := map[ruleset.Table]int{}
	for id, chain := range h.ours() {
		total[id.Table] += len(chain.Rules)
	}
	for _, table := range render.Tables() {
		if h.last.Total[table] != total[table] {
			t.Errorf("B-70 says that table %s has %d rules of ours, it has %d", table, h.last.Total[table], total[table])
		}
		if h.last.Written[table] != total[table] {
			t.Errorf("B-70 says that it wrote %d rules to table %s, want all %d", h.last.Written[table], table, total[table])
		}
	}
	h.sync()
	if h.last.Written[ruleset.NAT] != 0 || h.last.Total[ruleset.NAT] != total[ruleset.NAT] {
		t.Errorf("B-70 a sync without a change: total %v, written %v", h.last.Total, h.last.Written)
	}
}

var errNoAddresses = errors.New("no addresses")

func TestOptionsFail(t *testing.T) {
	h := newHost(t)
	h.fill(2)
	h.sync()
	good := h.proxier.options
	h.proxier.options = func(model.NodeFacts) (render.Options, error) { return render.Options{}, errNoAddresses }
	h.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil)
	h.takeInputs()
	if err := h.proxier.Sync(h.context()); !errors.Is(err, errNoAddresses) || !errors.Is(h.last.Err, errNoAddresses) {
		t.Errorf("sync returned %v and reported %v", err, h.last.Err)
	}
	if inputs := h.takeInputs(); len(inputs) != 0 {
		t.Errorf("wrote without knowing what:\n%s", inputs)
	}
	h.proxier.options = good
	h.sync()
	if h.holds("s1:http") {
		t.Error("the deletion that fell into the failed sync is lost")
	}
}

// A transaction that has begun is not cut off, and no new one begins.
func TestStop(t *testing.T) {
	h := newHost(t)
	h.proxier.settings.Chunk = 3
	h.fill(10)
	ctx, stop := context.WithCancel(h.context())
	h.afterRestore = stop
	if err := h.proxier.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("sync returned %v, want that it was stopped", err)
	}
	if n := len(h.takeInputs()); n != 1 {
		t.Errorf("%d restores, want 1", n)
	}
	if countJumps(h.rules(), render.Hooks()[0]) != 0 {
		t.Error("jumps were put in place although the rules are not complete")
	}
}
