package ruleset

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func commented(comments ...string) []Rule {
	var rules []Rule
	for _, c := range comments {
		rules = append(rules, Rule{Comment: c})
	}
	return rules
}

func TestDiff(t *testing.T) {
	have := chainsOf(
		natChain("SAME", commented("a", "b")...),
		natChain("EXTRA", commented("a")...),
		natChain("CHANGED", commented("a", "b", "c", "d")...),
		Chain{ChainID: ChainID{Filter, "FORWARD"}, Policy: "ACCEPT"},
		Chain{ChainID: ChainID{Filter, "INPUT"}, Policy: "ACCEPT"},
	)
	want := chainsOf(
		natChain("SAME", commented("a", "b")...),
		natChain("MISSING", commented("a", "b")...),
		natChain("CHANGED", commented("a", "x", "c", "d", "e")...),
		Chain{ChainID: ChainID{Filter, "FORWARD"}, Policy: "DROP"},
		filterChain("INPUT"),
	)
	text := func(op byte, s string) LineDiff { return LineDiff{op, "-m comment --comment " + s} }
	wants := []ChainDiff{
		{ChainID{Filter, "FORWARD"}, Changed, []LineDiff{{'-', "policy ACCEPT"}, {'+', "policy DROP"}}},
		{ChainID{NAT, "CHANGED"}, Changed, []LineDiff{text(' ', "a"), text('-', "b"), text('+', "x"), text(' ', "c"), text(' ', "d"), text('+', "e")}},
		{ChainID{NAT, "EXTRA"}, Extra, []LineDiff{text('-', "a")}},
		{ChainID{NAT, "MISSING"}, Missing, []LineDiff{text('+', "a"), text('+', "b")}},
	}
	got := Diff(have, want)
	if !reflect.DeepEqual(got, wants) {
		t.Errorf("got  %v\nwant %v", got, wants)
	}
	const shown = "changed chain nat/CHANGED\n- -m comment --comment b\n+ -m comment --comment x\n+ -m comment --comment e"
	if s := got[1].String(); s != shown {
		t.Errorf("got  %q\nwant %q", s, shown)
	}
	if got := Diff(have, have); got != nil {
		t.Errorf("a ruleset differs from itself: %v", got)
	}
}

// TestDiffLines takes the changes of random chains and follows them.
func TestDiffLines(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	lines := func(n int) []string {
		s := make([]string, n)
		for i := range s {
			s[i] = fmt.Sprint(random.IntN(4))
		}
		return s
	}
	for range 1000 {
		have, want := lines(random.IntN(12)), lines(random.IntN(12))
		checkDiffLines(t, have, want)
	}
	checkDiffLines(t, lines(3000), lines(3000)) // too large to be compared line by line
}

func checkDiffLines(t *testing.T, have, want []string) {
	t.Helper()
	var old, new []string
	for _, l := range diffLines(have, want) {
		if l.Op != '+' {
			old = append(old, l.Text)
		}
		if l.Op != '-' {
			new = append(new, l.Text)
		}
	}
	if strings.Join(old, " ") != strings.Join(have, " ") || strings.Join(new, " ") != strings.Join(want, " ") {
		t.Fatalf("from %v to %v: the changes go from %v to %v", have, want, old, new)
	}
}
