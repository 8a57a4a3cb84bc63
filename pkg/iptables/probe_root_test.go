package iptables

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// known are features that every kernel that these tests run on has.
var known = []Feature{
	{Name: "statistic", Table: ruleset.Filter, Rules: []ruleset.Rule{{Matches: []ruleset.Match{ruleset.Chance(3)}}}},
	{Name: "recent", Table: ruleset.Filter, Rules: []ruleset.Rule{{Matches: []ruleset.Match{ruleset.RecentSet{Name: "KUBE-SEP-X"}}}}},
	{Name: "mark", Table: ruleset.NAT, Rules: []ruleset.Rule{
		{Comment: "probe", Action: ruleset.SetMark{Value: 0x4000, Mask: 0x4000}},
		{Matches: []ruleset.Match{ruleset.Mark{Value: 0x4000, Mask: 0x4000}}},
	}},
	{Name: "random-fully", Table: ruleset.NAT, Rules: []ruleset.Rule{{Action: ruleset.Masquerade{RandomFully: true}}}},
}

// unknown are features that the programs do not know.
var unknown = []Feature{
	{Name: "match", Table: ruleset.Filter, Rules: []ruleset.Rule{{Matches: []ruleset.Match{ruleset.UnknownMatch{Text: "-m nosuchmatch"}}}}},
	{Name: "option", Table: ruleset.NAT, Rules: []ruleset.Rule{{Action: ruleset.UnknownAction{Text: "-j MASQUERADE --nosuchoption"}}}},
	{Name: "target", Table: ruleset.NAT, Rules: []ruleset.Rule{{Action: ruleset.UnknownAction{Text: "-j NOSUCHTARGET"}}}},
}

// rare are features that the programs know and that many kernels lack: only the
// kernel can say.
var rare = []Feature{
	{Name: "ipvs", Table: ruleset.Filter, Rules: []ruleset.Rule{{Matches: []ruleset.Match{ruleset.UnknownMatch{Text: "-m ipvs --ipvs"}}}}},
	{Name: "LED", Table: ruleset.NAT, Rules: []ruleset.Rule{{Action: ruleset.UnknownAction{Text: "-j LED --led-trigger-id x"}}}},
}

func TestProbeOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		tests := []struct {
			name     string
			features []Feature
			want     []string
		}{
			{"all there", known, nil},
			{"one missing", slices.Insert(slices.Clone(known), 1, unknown[0]), []string{"match"}},
			{"several missing", slices.Concat(unknown, known), []string{"match", "option", "target"}},
			{"nothing there", unknown, []string{"match", "option", "target"}},
			{"nothing asked", nil, nil},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				missing, err := r.Probe(t.Context(), test.features)
				if got := slices.Sorted(maps.Keys(missing)); err != nil || !slices.Equal(got, test.want) {
					t.Errorf("got %v, %v; want %v", missing, err, test.want)
				}
				noProbeLeft(t, r)
			})
		}
	})
}

// What only the kernel lacks is found out as well, though "iptables-restore --test"
// takes it.
func TestProbeAsksTheKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		for _, f := range rare {
			t.Run(f.Name, func(t *testing.T) {
				// The truth is what happens to a chain with such a rule.
				id := ruleset.ChainID{Table: f.Table, Name: "TRUTH"}
				write := ruleset.NewBuilder(f.Table)
				write.Write(ruleset.Chain{ChainID: id, Rules: f.Rules})
				truth := r.Restore(t.Context(), write.Take()[0])
				if truth == nil {
					t.Skip("this kernel has it")
				}
				missing, err := r.Probe(t.Context(), append(slices.Clone(known), f))
				if got := slices.Collect(maps.Keys(missing)); err != nil || !slices.Equal(got, []string{f.Name}) {
					t.Errorf("got %v, %v; want %s, since: %v", missing, err, f.Name, truth)
				}
				noProbeLeft(t, r)
			})
		}
	})
}

// A probe that cannot look knows nothing, and nothing is missing.
func TestProbeUnderLock(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		if r.Backend() != Legacy {
			return // nft has no lock
		}
		unlock := holdLock(t)
		defer unlock()
		if missing, err := r.Probe(t.Context(), append(slices.Clone(known), unknown...)); !IsBusy(err) || len(missing) > 0 {
			t.Errorf("got %v, %v; want busy", missing, err)
		}
	})
}

// What a probe that was killed has left goes with the next one.
func TestProbeAfterKill(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		restore(t, r, "*nat\n:KUBE-PROXY-PROBE - [0:0]\n-A KUBE-PROXY-PROBE -j RETURN\nCOMMIT\n*filter\n:KUBE-PROXY-PROBE - [0:0]\nCOMMIT\n")
		if missing, err := r.Probe(t.Context(), known); err != nil || len(missing) > 0 {
			t.Errorf("got %v, %v; want nothing missing", missing, err)
		}
		noProbeLeft(t, r)
	})
}

func noProbeLeft(t *testing.T, r *Runner) {
	t.Helper()
	for _, table := range []ruleset.Table{ruleset.NAT, ruleset.Filter} {
		if names, err := r.ChainNames(t.Context(), table); err != nil || strings.Contains(strings.Join(names, " "), "KUBE") {
			t.Errorf("the probe left %v, %v in %s", names, err, table)
		}
	}
}
