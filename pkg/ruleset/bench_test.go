package ruleset

import (
	"fmt"
	"net/netip"
	"testing"
)

// serviceChains is the nat table of n Services with ten endpoints each.
func serviceChains(n int) []Chain {
	var chains []Chain
	services := natChain("KUBE-SERVICES")
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		comment := fmt.Sprintf("ns%d/service-%d:http", i%10, i)
		tcp := Protocol{Name: "tcp"}
		frontend := []Match{Destination{Prefix: netip.PrefixFrom(ip, 32)}, tcp, DestinationPort{"tcp", 80, 80, false}}
		svc := natChain(fmt.Sprintf("KUBE-SVC-%016d", i), Rule{Matches: append([]Match{Source{netip.MustParsePrefix("10.244.0.0/16"), true}}, frontend...), Comment: comment + " cluster IP", Action: Jump{"KUBE-MARK-MASQ"}})
		services.Rules = append(services.Rules, Rule{Matches: frontend, Comment: comment + " cluster IP", Action: Jump{svc.Name}})
		for e := range 10 {
			pod := netip.AddrFrom4([4]byte{10, 244, byte(e), byte(i)})
			name := fmt.Sprintf("KUBE-SEP-%010d%06d", i, e)
			svc.Rules = append(svc.Rules, Rule{Matches: []Match{Chance(10 - e)}, Comment: comment + " -> " + pod.String() + ":8080", Action: Jump{name}})
			chains = append(chains, natChain(name,
				Rule{Matches: []Match{Source{Prefix: netip.PrefixFrom(pod, 32)}}, Comment: comment, Action: Jump{"KUBE-MARK-MASQ"}},
				Rule{Matches: []Match{tcp}, Comment: comment, Action: DNAT{netip.AddrPortFrom(pod, 8080)}},
			))
		}
		chains = append(chains, svc)
	}
	return append(chains, services, natChain("KUBE-MARK-MASQ", Rule{Action: SetMark{0x4000, 0x4000}}))
}

// TestAllocations pins what a full sync of 10,000 Services would multiply by 320,000.
func TestAllocations(t *testing.T) {
	chains := serviceChains(10)
	text := transaction{{table: NAT, write: chains}}.input()
	chain := chains[10]
	if len(chain.Rules) != 11 {
		t.Fatalf("chain %s has %d rules, want 11", chain.Name, len(chain.Rules))
	}
	buffer := make([]byte, 0, len(text))
	if got := testing.AllocsPerRun(10, func() { appendRules(buffer, &chain) }); got != 0 {
		t.Errorf("appendRules into a large enough buffer makes %v allocations, want 0", got)
	}
	if got := testing.AllocsPerRun(10, func() { chain.Hash() }); got > 1 {
		t.Errorf("Hash makes %v allocations, want 1 for the text", got)
	}
	rules := 0
	for _, c := range chains {
		rules += len(c.Rules)
	}
	perRule := testing.AllocsPerRun(10, func() {
		if _, err := Decode(text); err != nil {
			t.Fatal(err)
		}
	}) / float64(rules)
	if perRule > 15 {
		t.Errorf("Decode makes %.1f allocations per rule, want at most 15", perRule)
	}
	t.Logf("Decode: %.1f allocations per rule", perRule)
}

func BenchmarkBuilder(b *testing.B) {
	chains := serviceChains(1000)
	builder := NewBuilder(NAT)
	b.SetBytes(int64(len(transaction{{table: NAT, write: chains}}.input())))
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range chains {
			builder.Write(c)
		}
		builder.Take()
	}
}

func BenchmarkHash(b *testing.B) {
	chains := serviceChains(1000)
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range chains {
			c.Hash()
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	text := transaction{{table: NAT, write: serviceChains(1000)}}.input()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(text); err != nil {
			b.Fatal(err)
		}
	}
}
