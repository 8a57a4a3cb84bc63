package ruleset

import (
	"net/netip"
	"strings"
	"testing"
)

// chainsOf makes a ruleset of chains.
func chainsOf(chains ...Chain) Ruleset {
	rs := Ruleset{}
	for _, c := range chains {
		rs[c.ChainID] = &c
	}
	return rs
}

func natChain(name string, rules ...Rule) Chain {
	return Chain{ChainID: ChainID{NAT, name}, Rules: rules}
}

func filterChain(name string, rules ...Rule) Chain {
	return Chain{ChainID: ChainID{Filter, name}, Rules: rules}
}

func TestCheck(t *testing.T) {
	tcp := Protocol{Name: "tcp"}
	toA := DNAT{netip.MustParseAddrPort("10.244.1.10:8080")}
	tests := []struct {
		name  string
		rs    Ruleset
		wants []string // each in the error; none for a good ruleset
	}{
		{name: "empty"},
		{name: "good", rs: chainsOf(
			natChain("KUBE-SERVICES", Rule{Matches: []Match{destination("10.96.0.80/32"), tcp, DestinationPort{"tcp", 80, 80, false}}, Action: Jump{"KUBE-SVC-A"}}),
			natChain("KUBE-SVC-A", Rule{Matches: []Match{Chance(2)}, Action: Jump{"KUBE-SEP-A"}}, Rule{Action: Goto{"KUBE-SEP-A"}}),
			natChain("KUBE-SEP-A", Rule{Matches: []Match{tcp}, Action: toA}),
			natChain("KUBE-PROXY-CANARY"),
		)},
		{name: "missing chain", rs: chainsOf(natChain("A", Rule{Action: Jump{"B"}}), filterChain("B")),
			wants: []string{"chain nat/A jumps to B, which does not exist"}},
		{name: "jump to a built-in chain", rs: chainsOf(natChain("A", Rule{Action: Goto{"OUTPUT"}}), natChain("OUTPUT")),
			wants: []string{"chain nat/A jumps to OUTPUT, which is built in"}},
		{name: "loop", rs: chainsOf(natChain("A", Rule{Action: Jump{"B"}}), natChain("B", Rule{Action: Goto{"A"}})),
			wants: []string{"chain nat/B jumps back to A"}},
		{name: "two ways are no loop", rs: chainsOf(natChain("A", Rule{Action: Jump{"B"}}, Rule{Action: Jump{"C"}}), natChain("B", Rule{Action: Jump{"C"}}), natChain("C"))},
		{name: "orphan", rs: chainsOf(natChain("KUBE-SVC-A", Rule{Action: Jump{"KUBE-SEP-A"}}), natChain("KUBE-SEP-A"), filterChain("KUBE-SEP-A")),
			wants: []string{"nothing jumps to chain nat/KUBE-SVC-A", "nothing jumps to chain filter/KUBE-SEP-A"}},
		{name: "name", rs: chainsOf(natChain(strings.Repeat("X", 29)), natChain("a b")), wants: []string{"longer than 28", `chain name "a b"`}},
		{name: "comments", rs: chainsOf(natChain("A", Rule{Comment: strings.Repeat("x", 256)}, Rule{Comment: "a\nb"})),
			wants: []string{"comment is longer than 255", "control characters"}},
		{name: "policy", rs: chainsOf(Chain{ChainID: ChainID{NAT, "A"}, Policy: "DROP"}), wants: []string{"policy DROP, but it is not built in"}},
		{name: "families", rs: chainsOf(natChain("A", Rule{Matches: []Match{source("10.0.0.1/32")}}, Rule{Matches: []Match{destination("fd00::1/128")}})),
			wants: []string{"has address fd00::1"}},
		{name: "port without protocol", rs: chainsOf(natChain("A", Rule{Matches: []Match{Protocol{"tcp", true}, DestinationPort{"tcp", 80, 80, false}}})),
			wants: []string{"-m tcp without -p tcp"}},
		{name: "port range", rs: chainsOf(natChain("A", Rule{Matches: []Match{tcp, SourcePort{"tcp", 9, 8, false}}})), wants: []string{"port range 9:8"}},
		{name: "order", rs: chainsOf(natChain("A", Rule{Matches: []Match{destination("10.0.0.1/32"), source("10.0.0.1/32")}})), wants: []string{"not in the order"}},
		{name: "prefixes", rs: chainsOf(natChain("A", Rule{Matches: []Match{source("10.0.0.1/8")}}, Rule{Matches: []Match{source("0.0.0.0/0")}}, Rule{Matches: []Match{Source{}}})),
			wants: []string{"has bits behind", "says nothing", "invalid address range"}},
		{name: "modules", rs: chainsOf(natChain("A", Rule{Matches: []Match{Conntrack{}}}, Rule{Matches: []Match{Random{}}}, Rule{Matches: []Match{RecentCheck{Name: "x", Reap: true}}})),
			wants: []string{"conntrack states 0x0", "probability of 0/2^31", "--reap without"}},
		{name: "actions", rs: chainsOf(
			filterChain("A", Rule{Matches: []Match{tcp}, Action: toA}, Rule{Action: Masquerade{}}),
			natChain("A", Rule{Action: Reject{}}, Rule{Action: Drop{}}, Rule{Action: toA}, Rule{Action: DNAT{}}),
		), wants: []string{"DNAT outside", "MASQUERADE outside", "REJECT outside", "DROP in", "to a port without a protocol", "DNAT without an address"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(tt.rs)
			if (err != nil) != (len(tt.wants) > 0) {
				t.Fatalf("error %v, want one with %q", err, tt.wants)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q has no %q", err, want)
				}
			}
		})
	}
}

func TestApply(t *testing.T) {
	rs := chainsOf(
		Chain{ChainID: ChainID{Filter, "INPUT"}, Policy: "DROP", Rules: []Rule{{Action: Jump{"A"}}}},
		filterChain("A", Rule{Action: Accept{}}),
		natChain("A", Rule{Action: Accept{}}),
	)
	change := transaction{
		{table: NAT, write: []Chain{natChain("B", Rule{Action: Return{}})}, remove: []string{"A"}},
		{table: Filter, write: []Chain{filterChain("INPUT", Rule{Action: Drop{}}), filterChain("A", Rule{Comment: "new"})}},
	}
	if err := rs.apply(change); err != nil {
		t.Fatal(err)
	}
	want := `*nat
:B - [0:0]
-A B -j RETURN
COMMIT
*filter
:INPUT DROP [0:0]
:A - [0:0]
-A INPUT -j A
-A INPUT -j DROP
-A A -m comment --comment new
COMMIT
`
	if got := string(rs.Append(nil)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	err := rs.apply(transaction{
		{table: NAT, write: []Chain{natChain("C")}},
		{table: Filter, remove: []string{"A", "INPUT"}},
		{table: Mangle, write: []Chain{{ChainID: ChainID{Mangle, "D"}}}},
	})
	if err == nil || !strings.Contains(err.Error(), "table filter: ") || !strings.Contains(err.Error(), "jumps to A") || !strings.Contains(err.Error(), "filter/INPUT is built in") {
		t.Errorf("error %v, want what is wrong with table filter", err)
	}
	if rs[ChainID{NAT, "C"}] == nil || rs[ChainID{Filter, "A"}] == nil || rs[ChainID{Mangle, "D"}] != nil {
		t.Errorf("want nat committed, filter and mangle not:\n%s", rs.Append(nil))
	}
}
