package iptables

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// eachRunner runs a test on both families of both backends. They share a
// namespace and not a table.
func eachRunner(t *testing.T, test func(t *testing.T, r *Runner)) {
	for _, backend := range backends {
		for _, fam := range model.Families {
			t.Run(string(backend)+"/"+fam.String(), func(t *testing.T) {
				seams, err := realSeams(t.Context(), fam, backend, 1)
				if err != nil {
					t.Fatal(err)
				}
				test(t, NewWith(fam, backend, seams))
			})
		}
	}
}

// wipe removes all rules and chains, and resets policies.
func wipe(t *testing.T, r *Runner) {
	t.Helper()
	for table, chains := range map[string][]string{
		"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
		"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
		"filter": {"INPUT", "FORWARD", "OUTPUT"},
	} {
		input := "*" + table + "\n:" + strings.Join(chains, " ACCEPT\n:") + " ACCEPT\nCOMMIT\n"
		// Without --noflush.
		if _, err := r.seams.Run(t.Context(), []byte(input), r.seams.Restore); err != nil {
			t.Fatalf("wipe: %v", err)
		}
	}
}

func restore(t *testing.T, r *Runner, input string) {
	t.Helper()
	if err := r.Restore(t.Context(), []byte(input)); err != nil {
		t.Fatalf("restore: %v\ninput:\n%s", err, input)
	}
}

// rulesOf returns the rules of a chain as text, without "-A CHAIN".
func rulesOf(t *testing.T, r *Runner, id ruleset.ChainID) []string {
	t.Helper()
	saved, err := r.Save(t.Context(), id.Table)
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for line := range strings.Lines(string(saved)) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+id.Name+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func TestRunnerOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		ctx := t.Context()
		if r.Backend() == Legacy {
			needLegacyTables(t)
		}
		if names, err := r.ChainNames(ctx, ruleset.NAT); err != nil || len(names) > 0 {
			t.Fatalf("chains of an untouched table: got %v, %v; want none", names, err)
		}
		if err := r.Supported(ctx); err != nil {
			t.Errorf("Supported: %v", err)
		}
		if r.Version() == "" {
			t.Error("no version")
		}
		restore(t, r, "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n")
		names, err := r.ChainNames(ctx, ruleset.NAT)
		if err != nil || !slices.Contains(names, "KUBE-A") || !slices.Contains(names, "KUBE-B") || !slices.IsSorted(names) {
			t.Errorf("chains: got %v, %v", names, err)
		}
		if got := rulesOf(t, r, ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-A"}); !slices.Equal(got, []string{"-j KUBE-B"}) {
			t.Errorf("rules of KUBE-A: got %q", got)
		}
		testOneChain(ctx, t, r)
		testOneRule(ctx, t, r)
	})
}

func testOneChain(ctx context.Context, t *testing.T, r *Runner) {
	id := ruleset.ChainID{Table: ruleset.Mangle, Name: "KUBE-PROXY-CANARY"}
	has := func(want bool) {
		t.Helper()
		if got, err := r.HasChain(ctx, id); err != nil || got != want {
			t.Errorf("HasChain: got %t, %v; want %t", got, err, want)
		}
	}
	has(false)
	for _, want := range []bool{true, false} {
		if got, err := r.EnsureChain(ctx, id); err != nil || got != want {
			t.Errorf("EnsureChain: got %t, %v; want %t", got, err, want)
		}
		has(true)
	}
	for range 2 {
		if err := r.Cleanup(ctx, func(c ruleset.ChainID) bool { return c == id }); err != nil {
			t.Errorf("Cleanup: %v", err)
		}
		has(false)
	}
}

func testOneRule(ctx context.Context, t *testing.T, r *Runner) {
	id := ruleset.ChainID{Table: ruleset.Mangle, Name: "KUBE-PROXY-CANARY"}
	rule := ruleset.Rule{Comment: "a few words", Action: ruleset.Return{}}
	has := func(want bool) {
		t.Helper()
		if got, err := r.HasRule(ctx, id, rule); err != nil || got != want {
			t.Errorf("HasRule: got %t, %v; want %t", got, err, want)
		}
	}
	has(false)
	for range 2 {
		if err := r.EnsureRule(ctx, id, rule); err != nil {
			t.Errorf("EnsureRule: %v", err)
		}
		has(true)
	}
	wantRules(t, r, id, rule.String())
	restore(t, r, "*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n") // iptables -F
	has(false)
}
