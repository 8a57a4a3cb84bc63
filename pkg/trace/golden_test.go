package trace_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
	"github.com/miniproxy/miniproxy/test/golden"
)

// extra are the addresses of the golden cases' plan that may be in no rule.
var extra = trace.Extra{
	Addrs: addrs(
		"10.244.1.50", "10.244.2.50", "10.244.77.7", // pods here and there, and one on no node
		"10.0.0.2", "10.9.9.9", "203.0.113.5", "198.51.100.7", // another node, clients, nobody
		"fd00:244:1::50", "fd00:244:2::50", "fd00:244:77::7", "fd00::2", "fd00:9::9", "2001:db8::7",
	),
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

// result is one stored ruleset of a golden case.
type result struct {
	name string
	host trace.Host
	rs   ruleset.Ruleset
}

// results returns the rulesets of the named cases.
func results(t *testing.T, names ...string) []result {
	t.Helper()
	var list []result
	for _, name := range names {
		c, err := golden.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range c.Steps {
			for _, family := range model.Families {
				for _, rs := range step.Results[family] {
					list = append(list, result{fmt.Sprintf("%s/step%d/%s", name, i+1, family), c.Host, rs})
				}
			}
		}
	}
	return list
}

func newTracer(t *testing.T, rs ruleset.Ruleset, host trace.Host) *trace.Tracer {
	t.Helper()
	tracer, err := trace.New(rs, host)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// varied are cases that have every kind of rule among them.
var varied = []string{
	"affinity-clientip", "clusterip-no-endpoints", "clusterip-udp-sctp", "config-detect-bridge", "dual-stack", "endpoints-3",
	"externalips-local", "internal-local-1", "lb-local-1-endpoint", "lb-source-ranges-node-inside", "nodeport-localhost-off", "terminating-fallback-local",
}

// TestGoldenEqualsItself also makes sure that every packet's branches add up to 1
// and that the packets reach every rule that does something.
func TestGoldenEqualsItself(t *testing.T) {
	every := 0
	for _, r := range results(t, varied...) {
		t.Run(r.name, func(t *testing.T) {
			tracer := newTracer(t, r.rs, r.host)
			packets := trace.Packets(r.host, extra, r.rs)
			reached := map[place]bool{}
			for _, p := range packets {
				branches, err := tracer.Walk(p, nil)
				if err != nil {
					t.Fatal(err)
				}
				sum := 0.0
				for _, b := range branches {
					sum += b.Probability
					for _, s := range b.Steps() {
						reached[place{s.Chain, s.Index}] = true
					}
				}
				if sum < 1-1e-12 || sum > 1+1e-12 {
					t.Fatalf("%s: probabilities add up to %v", p, sum)
				}
			}
			marks := reached[place{ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-MARK-MASQ"}, 0}]
			for id, c := range r.rs {
				for i, rule := range c.Rules {
					if !reached[place{id, i}] && !usesLists(rule) && (marks || !needsMark[id.Name]) && !neverMatches[r.name+" "+rule.String()] {
						t.Errorf("no packet matches %s[%d] %s", id, i, rule)
					}
				}
			}
			some := slices.DeleteFunc(packets, func(trace.Packet) bool { every++; return every%7 != 0 })
			differences, err := trace.Compare(tracer, newTracer(t, r.rs, r.host), some)
			if err != nil || len(differences) > 0 {
				t.Errorf("differences %v, error %v", differences, err)
			}
		})
	}
}

// place is a rule's.
type place struct {
	chain ruleset.ChainID
	index int
}

// needsMark are the chains with rules for marked packets. A cluster in which every
// packet is rejected has none.
var needsMark = map[string]bool{"KUBE-MARK-MASQ": true, "KUBE-POSTROUTING": true, "KUBE-FORWARD": true}

// neverMatches are rules that no packet can match: in this case nothing from a pod
// of this node is sent to the local endpoint.
var neverMatches = map[string]bool{
	`terminating-fallback-local/step1/IPv4 -s 10.244.1.10/32 -m comment --comment "ns1/s:http" -j KUBE-MARK-MASQ`: true,
}

// usesLists reports whether only a client's second packet can match.
func usesLists(r ruleset.Rule) bool {
	return slices.ContainsFunc(r.Matches, func(m ruleset.Match) bool {
		_, ok := m.(ruleset.RecentCheck)
		return ok
	})
}
