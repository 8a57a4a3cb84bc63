package proxier

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// pickyKernel refuses every transaction in which a text stands, as a kernel does
// that lacks a match. It names the line, or only says no.
type pickyKernel struct {
	*host
	refuses   string
	namesLine bool
}

func (k *pickyKernel) Restore(ctx context.Context, input []byte) error {
	if k.refuses != "" {
		for i, line := range strings.Split(string(input), "\n") {
			if !strings.HasPrefix(line, "-A ") || !strings.Contains(line, k.refuses) {
				continue
			}
			k.record(input)
			refused := &iptables.RestoreError{CommandError: &iptables.CommandError{Command: "iptables-restore", Status: 1, Stderr: "no"}}
			if k.namesLine {
				refused.Line, refused.Text = i+1, line
			}
			return fmt.Errorf("restore: %w", refused)
		}
	}
	return k.host.Restore(ctx, input)
}

// newPickyHost returns a host whose kernel can be made to refuse things.
func newPickyHost(t *testing.T, namesLine bool) *pickyKernel {
	k := &pickyKernel{host: newHost(t), namesLine: namesLine}
	k.proxier.kernel = k
	return k
}

// refused are the names of the Services in quarantine.
func (k *pickyKernel) refused() []string {
	var names []string
	for _, r := range k.last.Refusals {
		names = append(names, r.Name.Name)
	}
	return names
}

// mustSync runs a sync that must succeed, whatever is left out.
func (k *pickyKernel) mustSync() {
	k.t.Helper()
	if err := k.proxier.Sync(k.context()); err != nil {
		k.t.Fatalf("sync: %v", err)
	}
	if err := ruleset.Check(k.ours()); err != nil {
		k.t.Errorf("the kernel's rules are not sound: %v", err)
	}
}

// mentions reports whether some rule is about a Service.
func (k *pickyKernel) mentions(service string) bool {
	return strings.Contains(string(k.kernel.Save()), "ns1/"+service+":http")
}

func TestOneRefusedServiceStopsNoOther(t *testing.T) {
	for _, namesLine := range []bool{true, false} {
		t.Run(fmt.Sprintf("the line is named: %v", namesLine), func(t *testing.T) {
			k := newPickyHost(t, namesLine)
			k.fill(8)
			k.refuses = "ns1/s3:http"
			k.mustSync()
			if got := k.refused(); !slices.Equal(got, []string{"s3"}) {
				t.Fatalf("in quarantine: %v, want s3", got)
			}
			for i := range 8 {
				name := fmt.Sprintf("s%d", i)
				if got, want := k.mentions(name), name != "s3"; got != want {
					t.Errorf("there are rules for %s: %v, want %v", name, got, want)
				}
			}

			k.takeInputs()
			k.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.1.77"))
			k.mustSync()
			if inputs := k.takeInputs(); len(inputs) != 1 || strings.Contains(inputs[0], "s3:http") {
				t.Errorf("a change of another Service was written in %d restores:\n%s", len(inputs), inputs)
			}

			k.refuses = ""
			k.tracker.EndpointSliceChanged(nil, newSlice("s3", "10.244.1.78"))
			k.mustSync()
			if got := k.refused(); len(got) > 0 {
				t.Errorf("in quarantine after a change that is accepted: %v", got)
			}
			k.mustEqualFresh()
		})
	}
}

// A Service whose new rules are refused keeps the ones it had.
func TestRefusedServiceKeepsItsRules(t *testing.T) {
	k := newPickyHost(t, false)
	k.fill(5)
	k.mustSync()
	before := k.rules()
	k.refuses = "10.244.9.9"
	k.tracker.EndpointSliceChanged(nil, newSlice("s2", "10.244.9.9"))
	k.tracker.EndpointSliceChanged(nil, newSlice("s4", "10.244.1.99"))
	k.mustSync()
	if got := k.refused(); !slices.Equal(got, []string{"s2"}) || !k.last.Refusals[0].KeepsRules {
		t.Fatalf("in quarantine: %+v, want s2 with the rules that it had", k.last.Refusals)
	}
	after := k.rules()
	for id := range before {
		text := chainText(before, id)
		if strings.Contains(text, "ns1/s2:http") && !strings.Contains(text, "ns1/s4:http") && chainText(after, id) != text {
			t.Errorf("%s is now\n%swant\n%s", id, chainText(after, id), text)
		}
	}
	if !strings.Contains(string(k.kernel.Save()), "10.244.1.99") {
		t.Error("s4 did not get its new endpoint")
	}

	// What is flushed cannot be kept.
	k.kernel.Flush(ruleset.NAT)
	k.proxier.ForceFull("nat was flushed")
	k.mustSync()
	if k.last.Refusals[0].KeepsRules || k.mentions("s2") {
		t.Error("after a flush s2 is said to keep rules, or has some")
	}
}

func TestRefusedServiceIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newPickyHost(t, true)
		k.fill(3)
		k.refuses = "ns1/s1:http"
		k.mustSync()
		wait := time.Until(k.last.Refusals[0].Retry)
		if wait != firstRetry {
			t.Errorf("tried again after %v, want %v", wait, firstRetry)
		}
		time.Sleep(wait)
		k.mustSync()
		if r := k.last.Refusals[0]; r.Failures != 2 || time.Until(r.Retry) != 2*firstRetry {
			t.Errorf("after the second refusal: %d failures, the next try after %v", r.Failures, time.Until(r.Retry))
		}
		k.refuses = ""
		k.mustSync()
		if len(k.last.Refusals) != 1 {
			t.Error("tried again before it was time")
		}
		time.Sleep(2 * firstRetry)
		k.mustSync()
		if len(k.last.Refusals) != 0 {
			t.Errorf("still in quarantine: %v", k.refused())
		}
		k.mustEqualFresh()
	})
}

// A deleted Service leaves the quarantine, and nothing behind.
func TestRefusedServiceIsDeleted(t *testing.T) {
	k := newPickyHost(t, true)
	k.fill(3)
	k.refuses = "ns1/s1:http"
	k.mustSync()
	k.tracker.ServiceChanged(newService("s1", "10.96.0.1"), nil)
	k.mustSync()
	if got := k.refused(); len(got) != 0 {
		t.Errorf("in quarantine: %v", got)
	}
	k.mustEqualFresh()
}

// If nothing at all is taken, no Service is to blame.
func TestGeneralRefusalBlamesNobody(t *testing.T) {
	k := newPickyHost(t, true)
	k.fill(3)
	k.refuses = "KUBE-MARK-MASQ -j MARK"
	if err := k.proxier.Sync(k.context()); err == nil {
		t.Fatal("the sync succeeded")
	}
	if got := k.refused(); len(got) != 0 {
		t.Errorf("in quarantine: %v", got)
	}
	k.refuses = ""
	k.mustSync()
	k.mustEqualFresh()
}

// lockingKernel is one whose lock somebody takes after some restores, and holds while
// others are tried.
type lockingKernel struct {
	*pickyKernel
	after, lasts int
}

func (k *lockingKernel) Restore(ctx context.Context, input []byte) error {
	if done := len(k.inputs); done < k.after || done >= k.after+k.lasts {
		return k.pickyKernel.Restore(ctx, input)
	}
	k.kernel.SetLocked(true)
	defer k.kernel.SetLocked(false)
	return k.host.Restore(ctx, input)
}

// While refused Services are looked for, somebody may take the lock at any moment. That
// ends the search, which does not wait for the lock with each group that is left. Put
// aside is only what was refused, and with the lock free everything is as it should be.
func TestLockEndsTheSearch(t *testing.T) {
	tests := []struct {
		name     string
		services int
		last     string // by name
		hadRules bool
		lasts    int
		// step is how many restores lie between the moments that are tried.
		step int
	}{
		{"new Services in two groups", groupSize + 2, "s99", false, math.MaxInt32, 7},
		{"Services with rules", 10, "s9", true, math.MaxInt32, 1},
		{"Services with rules, and a lock for one restore", 10, "s9", true, 1, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bad := []string{"s1", test.last}
			for after, reached := 1, true; reached; after += test.step {
				k := newPickyHost(t, false)
				k.fill(test.services)
				if test.hadRules {
					k.mustSync()
				}
				k.refuses = "10.244.9."
				for i, name := range bad {
					k.tracker.EndpointSliceChanged(nil, newSlice(name, fmt.Sprintf("10.244.9.%d", i)))
				}
				k.takeInputs()
				k.proxier.kernel = &lockingKernel{k, after, test.lasts}
				err := k.proxier.Sync(k.context())
				restores := len(k.takeInputs())
				reached = restores > after
				// At most: to remove what was refused, to try others, and to write everybody else.
				if under := restores - after; test.lasts > 1 && under > 3 || reached && test.lasts > 1 && err == nil {
					t.Errorf("locked after %d restores: %d under the lock, error %v", after, under, err)
				}
				aside := k.refused()
				for _, r := range k.last.Refusals {
					if !slices.Contains(bad, r.Name.Name) || r.KeepsRules != test.hadRules || !iptables.IsRefused(r.Err) {
						t.Errorf("locked after %d restores: in quarantine is %+v", after, r)
					}
				}

				k.proxier.kernel = k
				k.mustSync()
				if got := k.refused(); !slices.Equal(got, bad) {
					t.Errorf("locked after %d restores, then free: in quarantine %v, want %v", after, got, bad)
				}
				for i := range test.services {
					name := fmt.Sprintf("s%d", i)
					want := !slices.Contains(bad, name) || test.hadRules && (len(aside) == 0 || slices.Contains(aside, name))
					// If others were found and written anew, one that the search had not come to may
					// have lost its rules.
					if got := k.mentions(name); want && !got || got && !want && !test.hadRules {
						t.Errorf("locked after %d restores, then free: rules for %s: %v", after, name, got)
					}
				}
				if k.holds(probeChain) {
					t.Errorf("locked after %d restores, then free: what was tried is still there", after)
				}
			}
		})
	}
}

// What a refused Service keeps does not keep another one from an address that it has
// given up.
func TestRefusedServiceGivesUpItsAddress(t *testing.T) {
	k := newPickyHost(t, false)
	sync := func() { // the one that has lost an address has chains that nothing leads to
		if err := k.proxier.Sync(k.context()); err != nil {
			t.Fatal(err)
		}
	}
	k.fill(3)
	k.mustSync()
	k.refuses = "10.244.9.9"
	k.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.9.9"))
	k.mustSync()
	if got := k.refused(); !slices.Equal(got, []string{"s1"}) || !k.last.Refusals[0].KeepsRules {
		t.Fatalf("in quarantine: %+v, want s1 with the rules that it had", k.last.Refusals)
	}

	// The younger claims what the older one has, and does not get it.
	k.tracker.ServiceChanged(nil, newService("z", "10.96.0.1"))
	k.tracker.EndpointSliceChanged(nil, newSlice("z", "10.244.1.50"))
	sync()
	if len(k.last.Conflicts) != 1 || !k.holds(`-d 10.96.0.1/32 -p tcp -m comment --comment "ns1/s1:http cluster IP"`) {
		t.Errorf("s1 has lost the address that it asks for; conflicts: %v", k.last.Conflicts)
	}

	k.tracker.ServiceChanged(nil, newService("s1", "10.96.0.99"))
	sync()
	if !k.holds(`-d 10.96.0.1/32 -p tcp -m comment --comment "ns1/z:http cluster IP"`) {
		t.Errorf("z did not get the address that s1 has given up:\n%s", k.kernel.Save())
	}
	if len(k.last.Conflicts) != 0 {
		t.Errorf("conflicts about an address that one Service asks for: %v", k.last.Conflicts)
	}
	k.refuses = ""
	k.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.1.51"))
	k.mustSync()
	k.mustEqualFresh()
}

// The old rules of a refused Service cannot be written again when somebody changes
// them: then it has none, rather than something that nobody wrote.
func TestDamagedRulesOfARefusedService(t *testing.T) {
	k := newPickyHost(t, false)
	k.fill(3)
	k.mustSync()
	k.refuses = "10.244.9.9"
	k.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.9.9"))
	k.mustSync()
	id := ruleset.ChainID{Table: ruleset.NAT, Name: k.proxier.units.byName[service("s1")].chains[0]}
	k.write(fmt.Sprintf("*nat\n-F %s\nCOMMIT\n", id.Name))
	k.proxier.Repair(Damage{Chains: map[ruleset.ChainID]Edit{id: {}}, By: "a test"})
	k.mustSync()
	if k.last.Full || k.last.Refusals[0].KeepsRules || k.mentions("s1") {
		t.Errorf("full sync %v, keeps rules %v; the kernel holds\n%s", k.last.Full, k.last.Refusals[0].KeepsRules, k.kernel.Save())
	}
}

// A kernel may come to refuse what leads to the old rules of a refused Service; that
// too is no reason to keep others waiting.
func TestRefusedServiceLosesItsEntries(t *testing.T) {
	k := newPickyHost(t, false)
	k.fill(3)
	k.mustSync()
	k.refuses = "10.244.9.9"
	k.tracker.EndpointSliceChanged(nil, newSlice("s1", "10.244.9.9"))
	k.mustSync()
	k.refuses = "ns1/s1:http"
	k.tracker.ServiceChanged(nil, newService("new", "10.96.0.77"))
	k.tracker.EndpointSliceChanged(nil, newSlice("new", "10.244.1.77"))
	k.mustSync()
	if !k.mentions("new") || k.mentions("s1") || k.last.Refusals[0].KeepsRules {
		t.Errorf("refused: %+v; the kernel holds\n%s", k.last.Refusals, k.kernel.Save())
	}
}

// To try rules writes chains that stay what they are. That is the agent's own doing,
// whether the rules are refused again, accepted, or the ones that a Service had kept.
func TestTryingIsNoDamage(t *testing.T) {
	k := newPickyHost(t, false)
	view := newNFTView(k.host)
	k.fill(3)
	steps := []struct {
		name, refuses, endpoint string
	}{
		{"everything is accepted", "", "10.244.1.7"},
		{"s1 is refused", "10.244.9.", "10.244.9.1"},
		{"s1 is refused again", "10.244.9.", "10.244.9.2"},
		{"s1 is again what it was", "10.244.9.", "10.244.1.7"},
		{"s1 is refused once more", "10.244.9.", "10.244.9.3"},
		{"s1 is accepted", "", "10.244.9.4"},
	}
	for _, step := range steps {
		k.refuses = step.refuses
		k.tracker.EndpointSliceChanged(nil, newSlice("s1", step.endpoint))
		k.mustSync()
		for range 2 { // the first look learns what the second one compares with
			if found := view.inspect(); !found.IsNone() {
				t.Errorf("%s: found %+v", step.name, found.Chains)
			}
		}
	}
}
