package golden_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
	"github.com/miniproxy/miniproxy/pkg/tracker"
	"github.com/miniproxy/miniproxy/test/golden"
)

// forms are the forms that dispatch and balancing can have.
var forms = map[string]func(*render.Options){
	"as delivered":    func(*render.Options) {},
	"trees":           func(o *render.Options) { o.FlatDispatch, o.FlatBalance = 1, 1 },
	"trees above two": func(o *render.Options) { o.FlatDispatch, o.FlatBalance = 2, 2 },
}

// TestPacketEquivalence runs an agent through every golden case and asks, after each
// step, about packets from everybody to everything: kube-proxy's rules and ours must
// do the same to each of them, with chains flat and as trees.
func TestPacketEquivalence(t *testing.T) {
	for form, change := range forms {
		runCases(t, form, change, func(t *testing.T, c golden.Case, have, before ruleset.Ruleset, wants []ruleset.Ruleset) {
			haveTracer, err := trace.New(have, c.Host)
			if err != nil {
				t.Fatal(err)
			}
			var all []trace.Difference
			for _, want := range wants {
				wantTracer, err := trace.New(want, c.Host)
				if err != nil {
					t.Fatal(err)
				}
				differences, err := trace.Compare(haveTracer, wantTracer, trace.Packets(c.Host, strangers, have, before, want))
				if err != nil {
					t.Fatal(err)
				}
				if len(differences) == 0 {
					return
				}
				all = append(all, differences...)
			}
			for _, d := range all {
				t.Error(d)
			}
		})
	}
}

// TestChainByChain compares the chains themselves, while they are flat: they are
// kube-proxy's, with their names, comments and rules, so that a node can change hands
// without a flush. Free are the order of the Services in the chains that lead to them
// and the last digits of a probability.
func TestChainByChain(t *testing.T) {
	flat := func(o *render.Options) { o.FlatDispatch, o.FlatBalance = math.MaxInt, math.MaxInt }
	runCases(t, "flat", flat, func(t *testing.T, _ golden.Case, have, _ ruleset.Ruleset, wants []ruleset.Ruleset) {
		have = normalise(have)
		var all []ruleset.ChainDiff
		for _, want := range wants {
			diffs := ruleset.Diff(have, normalise(want))
			if len(diffs) == 0 {
				return
			}
			all = append(all, diffs...)
		}
		for _, d := range all {
			t.Error(d)
		}
	})
}

// strangers are addresses of the cases' plan that may be in no rule.
var strangers = trace.Extra{Addrs: func() (addrs []netip.Addr) {
	for _, text := range []string{
		"10.244.1.50", "10.244.2.50", "10.244.77.7", // pods here and there, and one on no node
		"10.0.0.2", "10.9.9.9", "203.0.113.5", "198.51.100.7", // another node, clients, nobody
		"fd00:244:1::50", "fd00:244:2::50", "fd00:244:77::7", "fd00::2", "fd00:9::9", "2001:db8::7",
	} {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}()}

// runCases runs an agent through every case, and calls check after each step with
// the rules in the kernel, those of the step before, and the right ones.
func runCases(t *testing.T, form string, change func(*render.Options),
	check func(t *testing.T, c golden.Case, have, before ruleset.Ruleset, wants []ruleset.Ruleset)) {
	t.Helper()
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c, err := golden.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range model.Families {
			t.Run(fmt.Sprintf("%s/%s/%s", form, name, family), func(t *testing.T) {
				a := newAgent(t, c, family, change, newSimulated(family))
				before := ruleset.Ruleset{}
				for i, step := range c.Steps {
					if step.Config != nil {
						a.start(step.Config)
					}
					a.follow(step.Objects)
					have := a.rules()
					if err := ruleset.Check(have); err != nil {
						t.Errorf("step %d: %v", i+1, err)
					}
					if wants := step.Results[family]; len(wants) > 0 {
						check(t, c, have, before, wants)
					}
					if t.Failed() {
						t.Fatalf("in step %d: %s", i+1, c.About)
					}
					before = have
				}
			})
		}
	}
}

// agent is the agent of one family on the host of a case.
type agent struct {
	t       *testing.T
	host    trace.Host
	family  model.Family
	node    string
	change  func(*render.Options)
	kernel  kernel
	tracker *tracker.Tracker
	proxier *proxier.Proxier
	objects golden.Objects
	err     error
}

// kernel is a simulated kernel or a real one.
type kernel interface {
	proxier.Kernel
	Save() ([]byte, error)
}

// simulated is a simulated kernel.
type simulated struct {
	*iptables.Runner
	kernel *fakekernel.Kernel
}

func newSimulated(family model.Family) simulated {
	k := fakekernel.New(family, iptables.NFT)
	return simulated{k.Runner(), k}
}

// Save implements kernel.
func (s simulated) Save() ([]byte, error) { return s.kernel.Save(), nil }

func newAgent(t *testing.T, c golden.Case, family model.Family, change func(*render.Options), k kernel) *agent {
	a := &agent{t: t, host: c.Host, family: family, change: change, kernel: k}
	if len(c.Before) > 0 {
		if err := a.kernel.Restore(t.Context(), c.Before); err != nil {
			t.Fatal(err)
		}
	}
	a.start(c.Config)
	return a
}

// start starts the agent, a second time with the objects that there are.
func (a *agent) start(yaml []byte) {
	a.t.Helper()
	c := parseConfig(a.t, yaml)
	host := proxier.Host{
		Addresses:        a.addresses(),
		RandomFully:      true,
		TCPBeLiberal:     c.Conntrack.TCPBeLiberal,
		InvalidAccount:   "ct_state_invalid_dropped_pkts",
		LocalhostAccount: "localhost_nps_accepted_pkts",
	}
	a.node = c.NodeName
	a.tracker = tracker.New(a.family, a.node)
	a.proxier = proxier.New(a.family, a.tracker, a.kernel, proxier.Settings{Chunk: proxier.ChunkNFT, JumpPeriod: time.Minute}, func(node model.NodeFacts) (render.Options, error) {
		opts := proxier.Options(c, a.family, node, host)
		a.change(&opts)
		return opts, nil
	}, a)
	known := a.objects
	a.objects = golden.Objects{}
	a.follow(known)
}

// Synced implements proxier.Observer.
func (a *agent) Synced(_ context.Context, r proxier.Result) { a.err = r.Err }

// Writing implements proxier.Observer.
func (*agent) Writing(int, int) {}

// addresses are those of the host's interfaces, loopback among them.
func (a *agent) addresses() []netip.Addr {
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, i := range a.host.Interfaces {
		for _, prefix := range i.Addrs {
			addrs = append(addrs, prefix.Addr())
		}
	}
	return addrs
}

func parseConfig(t *testing.T, yaml []byte) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, yaml, 0o600); err != nil {
		t.Fatal(err)
	}
	set := pflag.NewFlagSet("golden", pflag.ContinueOnError)
	flags := config.NewFlags(set)
	if err := set.Parse([]string{"--config", path}); err != nil {
		t.Fatal(err)
	}
	c, err := flags.Config()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// follow delivers what is different in the objects, and syncs: deletions first, then
// Nodes, Services and slices.
func (a *agent) follow(next golden.Objects) {
	a.t.Helper()
	next.Services = slices.DeleteFunc(slices.Clone(next.Services), func(s *v1.Service) bool {
		// Another proxy's; the watch does not deliver them.
		_, labelled := s.Labels["service.kubernetes.io/service-proxy-name"]
		return labelled
	})
	next.Nodes = slices.DeleteFunc(slices.Clone(next.Nodes), func(n *v1.Node) bool { return n.Name != a.node })
	node := deliver(a.objects.Nodes, next.Nodes, func(old, current *v1.Node) { a.tracker.NodeChanged(old, current) })
	svc := deliver(a.objects.Services, next.Services, func(old, current *v1.Service) { a.tracker.ServiceChanged(old, current) })
	slice := deliver(a.objects.Slices, next.Slices, func(old, current *discoveryv1.EndpointSlice) { a.tracker.EndpointSliceChanged(old, current) })
	for _, deliver := range []func(){node.deletions, svc.deletions, slice.deletions, node.rest, svc.rest, slice.rest} {
		deliver()
	}
	a.objects = next
	quiet := klog.NewContext(a.t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard))))
	if err := a.proxier.Sync(quiet); err != nil || a.err != nil {
		a.t.Fatalf("sync: %v, reported: %v", err, a.err)
	}
}

// delivery is two parts of what is to be delivered of one kind of object.
type delivery struct{ deletions, rest func() }

func deliver[T metav1.Object](before, after []T, changed func(old, current T)) delivery {
	var none T
	find := func(list []T, o T) T {
		for _, candidate := range list {
			if candidate.GetNamespace() == o.GetNamespace() && candidate.GetName() == o.GetName() &&
				candidate.GetAnnotations()["test-data/recreate"] == o.GetAnnotations()["test-data/recreate"] {
				return candidate
			}
		}
		return none
	}
	isNone := func(o T) bool { return any(o) == any(none) }
	return delivery{
		deletions: func() {
			for _, o := range before {
				if isNone(find(after, o)) {
					changed(o, none)
				}
			}
		},
		rest: func() {
			for _, o := range after {
				changed(find(before, o), o)
			}
		},
	}
}

// rules are what the kernel holds.
func (a *agent) rules() ruleset.Ruleset {
	a.t.Helper()
	text, err := a.kernel.Save()
	if err != nil {
		a.t.Fatal(err)
	}
	rules, err := ruleset.Decode(text)
	if err != nil {
		a.t.Fatal(err)
	}
	return rules
}

// normalise returns the chains of a proxy in a form in which those of two can be
// compared.
func normalise(rules ruleset.Ruleset) ruleset.Ruleset {
	normal := ruleset.Ruleset{}
	for id, chain := range rules {
		if id.Name == render.CanaryChain {
			continue // the canary's, and only there where one looks
		}
		c := ruleset.Chain{ChainID: id, Policy: chain.Policy}
		for _, rule := range chain.Rules {
			c.Rules = append(c.Rules, nearestChance(rule))
		}
		if isDispatch[id.Name] {
			slices.SortFunc(c.Rules, func(a, b ruleset.Rule) int { return strings.Compare(a.String(), b.String()) })
		}
		normal[id] = &c
	}
	return normal
}

// isDispatch holds the chains in which each rule is for other packets, so that their
// order says nothing.
var isDispatch = map[string]bool{
	"KUBE-SERVICES":          true,
	"KUBE-NODEPORTS":         true,
	"KUBE-EXTERNAL-SERVICES": true,
	"KUBE-PROXY-FIREWALL":    true,
}

// nearestChance puts 1/n in the place of a probability that was written with fewer
// digits than the kernel has.
func nearestChance(rule ruleset.Rule) ruleset.Rule {
	rule.Matches = slices.Clone(rule.Matches)
	for i, match := range rule.Matches {
		if random, ok := match.(ruleset.Random); ok {
			rule.Matches[i] = ruleset.Chance(int(math.Round((1 << 31) / float64(random.Steps))))
		}
	}
	return rule
}
