package trace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
	"github.com/miniproxy/miniproxy/test/seed"
)

// TestKernelAgrees sends thousands of random packets through random rules, in the
// kernel and in a Tracer, and expects the same fate for each.
func TestKernelAgrees(t *testing.T) {
	const rulesets, packets = 12, 250
	first := seed.Of(t)
	for b, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			r := newRange(t)
			fates := map[string]int{}
			for n := range 2 * rulesets {
				f := []family{ipv4, ipv6}[n%2]
				random := randomRules{rand.New(rand.NewPCG(first, uint64(n)<<1|uint64(b))), f, fmt.Sprintf("list%d-", n)}
				s := &shooting{shootingRange: r, family: f, backend: backend, rs: random.ruleset(), fates: fates}
				s.begin(t)
				for i := range packets {
					s.packets = append(s.packets, random.packet(uint16(10000+n*1000+i)))
				}
				replies := s.compare(t)
				// What got through unchanged is answered, and then sent again.
				s.packets = replies
				s.packets = s.compare(t)
				s.compare(t)
				if t.Failed() {
					t.Logf("rules of shooting %d, %s:\n%s", n, f.name, s.rs.Append(nil))
					return
				}
			}
			t.Logf("fates: %v", fates)
			for _, fate := range []trace.Fate{trace.Pass, trace.Translated, trace.Rejected, trace.Dropped} {
				if fates[string(fate)] < packets/25 {
					t.Errorf("only %d packets with fate %s", fates[string(fate)], fate)
				}
			}
			if fates["masquerade"] < packets/25 || fates["answers"] < packets/25 {
				t.Errorf("only %d masqueraded packets and %d answers", fates["masquerade"], fates["answers"])
			}
		})
	}
}

// shooting is a ruleset in the kernel and in a Tracer.
type shooting struct {
	*shootingRange
	family
	backend string
	rs      ruleset.Ruleset
	tracer  *trace.Tracer
	lists   trace.Lists
	packets []trace.Packet
	fates   map[string]int
}

func (s *shooting) begin(t *testing.T) {
	t.Helper()
	if err := ruleset.Check(s.rs); err != nil {
		t.Logf("rules: %v", err)
	}
	s.load(t, s.family, s.backend, s.rs)
	s.tracer = newTracer(t, s.rs, rangeHost)
}

// compare sends the packets and returns the answers to those that were forwarded
// as they were.
func (s *shooting) compare(t *testing.T) []trace.Packet {
	t.Helper()
	want := make([]trace.Branch, len(s.packets))
	for i, p := range s.packets {
		branches, err := s.tracer.Walk(p, s.lists)
		if err != nil {
			t.Fatal(err)
		}
		if len(branches) != 1 {
			t.Fatalf("%s: %d branches without chance", p, len(branches))
		}
		want[i] = branches[0]
		s.lists = branches[0].Lists
	}
	seen, err := s.shoot(t.Context(), s.family, s.packets)
	if err != nil {
		t.Fatal(err)
	}
	var answers []trace.Packet
	for i, p := range s.packets {
		if err := s.check(p, want[i], seen[i]); err != nil {
			t.Errorf("%s: %v; the tracer says %s by %q:%s", p, err, want[i].Outcome, want[i].Out, stepText(want[i]))
			if t.Failed() && len(answers) > 3 {
				break
			}
		}
		s.count(p, want[i])
		if want[i].Outcome.Fate == trace.Pass && want[i].Out != "" && !want[i].Outcome.Masquerade && p.In != "" && p.Protocol == "udp" {
			answers = append(answers, trace.Packet{
				In: want[i].Out, Source: p.Destination, Destination: p.Source, Protocol: p.Protocol,
				SourcePort: p.DestinationPort, DestinationPort: p.SourcePort, State: ruleset.Established,
			})
		}
	}
	return answers
}

func (s *shooting) count(p trace.Packet, b trace.Branch) {
	s.fates[string(b.Outcome.Fate)]++
	if b.Outcome.Masquerade {
		s.fates["masquerade"]++
	}
	if p.State == ruleset.Established {
		s.fates["answers"]++
	}
}

func stepText(b trace.Branch) string {
	var text strings.Builder
	for _, step := range b.Steps() {
		fmt.Fprintf(&text, "\n    %s", step)
	}
	return text.String()
}

// check holds what was seen of a packet against what the tracer says.
func (s *shooting) check(p trace.Packet, b trace.Branch, seen map[string]sight) error {
	o := b.Outcome
	switch o.Fate {
	case trace.Dropped:
		if len(seen) > 0 {
			return fmt.Errorf("seen %v, want nothing", seen)
		}
		return nil
	case trace.Rejected:
		if _, ok := seen["rejected"]; !ok || len(seen) > 1 {
			return fmt.Errorf("seen %v, want an error in answer", seen)
		}
		return nil
	}
	where := b.Out
	if where == "" {
		where = "host"
	}
	got, ok := seen[where]
	if !ok {
		return fmt.Errorf("seen %v, want it at %s", seen, where)
	}
	for other := range seen {
		if other != where && !(where == "host" && other == "rejected") { // nobody listens on the host
			return fmt.Errorf("seen %v, want it at %s only", seen, where)
		}
	}
	to := netip.AddrPortFrom(p.Destination, p.DestinationPort)
	if o.Fate == trace.Translated {
		to = o.To
	}
	if got.to.Addr().IsValid() && got.to != to || got.to.Port() != to.Port() {
		return fmt.Errorf("seen with destination %s, want %s", got.to, to)
	}
	from := p.Source
	if o.Masquerade {
		from = s.hidden(b.Out, to.Addr())
	}
	if got.from != from {
		return fmt.Errorf("seen with source %s, want %s", got.from, from)
	}
	return nil
}

// hidden is the source that masqueraded packets have: the address of the interface
// that they leave by. What the host sends to itself gets its first address, and in
// IPv6 the one that it is sent to.
func (s *shooting) hidden(out string, to netip.Addr) netip.Addr {
	switch {
	case out == "pod0":
		return s.own[1]
	case out == "" && to.Is6():
		return to
	}
	return s.own[0]
}

// TestKernelShares compares how packets spread with the tracer's probabilities.
func TestKernelShares(t *testing.T) {
	const packets = 4000
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			r := newRange(t)
			for i, f := range []family{ipv4, ipv6} {
				rs := sharesRules(f)
				r.load(t, f, backend, rs)
				p := trace.Packet{In: "eth0", Source: f.outside[1], Destination: f.services[0], Protocol: "udp", DestinationPort: 53}
				branches, err := trace.Walk(rs, rangeHost, p, nil)
				if err != nil {
					t.Fatal(err)
				}
				counts := map[trace.Outcome]int{}
				for n := 0; n < packets; n += 500 {
					var shots []trace.Packet
					for k := range 500 {
						p.SourcePort = uint16(10000 + i*packets + n + k)
						shots = append(shots, p)
					}
					seen, err := r.shoot(t.Context(), f, shots)
					if err != nil {
						t.Fatal(err)
					}
					for _, s := range seen {
						counts[outcomeOf(s, p)]++
					}
				}
				checkShares(t, f.name, branches, counts, packets)
			}
		})
	}
}

// sharesRules split packets in a tree of unequal shares; some are rejected, some
// dropped.
func sharesRules(f family) ruleset.Ruleset {
	udp := ruleset.Protocol{Name: "udp"}
	toPod := func(i int) []ruleset.Rule {
		return []ruleset.Rule{{Matches: []ruleset.Match{udp}, Action: ruleset.DNAT{To: netip.AddrPortFrom(f.pods[i], 5353)}}}
	}
	maybe := func(chance ruleset.Random, action ruleset.Action) ruleset.Rule {
		return ruleset.Rule{Matches: []ruleset.Match{chance}, Action: action}
	}
	rs := ruleset.Ruleset{}
	add := func(table ruleset.Table, name string, rules ...ruleset.Rule) {
		id := ruleset.ChainID{Table: table, Name: name}
		rs[id] = &ruleset.Chain{ChainID: id, Rules: rules}
		if id.IsBuiltin() {
			rs[id].Policy = "ACCEPT"
		}
	}
	add(ruleset.NAT, "GROUP", maybe(ruleset.Chance(2), ruleset.Jump{Chain: "P0"}), maybe(ruleset.Share(1, 10), ruleset.Return{}), ruleset.Rule{Action: ruleset.Jump{Chain: "P1"}})
	for i := range 3 {
		add(ruleset.NAT, fmt.Sprint("P", i), toPod(i)...)
	}
	fromClient := ruleset.Source{Prefix: netip.PrefixFrom(f.outside[1], f.outside[1].BitLen())}
	add(ruleset.NAT, "PREROUTING",
		ruleset.Rule{Matches: []ruleset.Match{fromClient, ruleset.Share(2, 3)}, Action: ruleset.Jump{Chain: "GROUP"}},
		ruleset.Rule{Matches: []ruleset.Match{fromClient}, Action: ruleset.Jump{Chain: "P2"}})
	add(ruleset.Filter, "FORWARD",
		ruleset.Rule{Matches: []ruleset.Match{fromClient, ruleset.Chance(10)}, Action: ruleset.Reject{With: f.reject}},
		ruleset.Rule{Matches: []ruleset.Match{fromClient, ruleset.Chance(20)}, Action: ruleset.Drop{}})
	return rs
}

// outcomeOf is what a forwarded packet's sight says of its fate.
func outcomeOf(seen map[string]sight, p trace.Packet) trace.Outcome {
	for _, s := range seen {
		switch {
		case s.rejected:
			return trace.Outcome{Fate: trace.Rejected}
		case s.to == netip.AddrPortFrom(p.Destination, p.DestinationPort):
			return trace.Outcome{Fate: trace.Pass}
		}
		return trace.Outcome{Fate: trace.Translated, To: s.to}
	}
	return trace.Outcome{Fate: trace.Dropped}
}

// checkShares is a chi-square test. With 4 degrees of freedom the bound is
// passed by chance less than once in a million times.
func checkShares(t *testing.T, name string, branches []trace.Branch, counts map[trace.Outcome]int, packets int) {
	t.Helper()
	const bound = 37
	chi := 0.0
	distribution := trace.Distribute(branches)
	for o, p := range distribution {
		expected := p * float64(packets)
		chi += (float64(counts[o]) - expected) * (float64(counts[o]) - expected) / expected
		t.Logf("%s: %s: %d of %d, expected %.1f", name, o, counts[o], packets, expected)
	}
	for o, n := range counts {
		if _, ok := distribution[o]; !ok {
			t.Errorf("%s: %d packets with outcome %s, which the tracer does not know", name, n, o)
		}
	}
	if len(distribution) != 5 || chi > bound {
		t.Errorf("%s: chi-square %.1f over %d outcomes, want at most %d over 5", name, chi, len(distribution), bound)
	}
}
