package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func TestContentsOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		if r.Backend() == Legacy {
			needLegacyTables(t)
		}
		ours := func(name string) bool { return strings.HasPrefix(name, "KUBE-") || name == "FORWARD" }
		got, err := r.Contents(t.Context(), ruleset.Filter, ours)
		if err != nil || len(got.Chains) > 0 {
			t.Fatalf("a table that does not exist: got %+v, %v; want nothing", got, err)
		}
		if names, err := r.ChainNames(t.Context(), ruleset.Filter); err != nil || len(names) > 0 {
			t.Fatalf("after a look: got chains %v, %v; want none", names, err)
		}
		restore(t, r, `*filter
:KUBE-A - [0:0]
:KUBE-B - [0:0]
:OTHER - [0:0]
-A FORWARD -j DROP
-A KUBE-A -p tcp -m tcp --dport 80 -m comment --comment one -j KUBE-B
-A KUBE-A
-A OTHER -j ACCEPT
COMMIT
`)
		// Restore input cannot have such a comment.
		if err := r.seams.Chains.Insert("filter", "FORWARD", 1, "-m", "comment", "--comment", "two\nlines", "-j", "KUBE-A"); err != nil {
			t.Fatal(err)
		}
		got, err = r.Contents(t.Context(), ruleset.Filter, ours)
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range []struct {
			name string
			want []string
		}{
			{"FORWARD", []string{`-m comment --comment "two lines" -j KUBE-A`, `-j DROP`}},
			{"KUBE-A", []string{`-p tcp -m comment --comment one -m tcp --dport 80 -j KUBE-B`, ``}},
			{"KUBE-B", nil},
		} {
			id := ruleset.ChainID{Table: ruleset.Filter, Name: chain.name}
			found := got.Chains[id]
			if found == nil {
				t.Errorf("%s: not found", chain.name)
				continue
			}
			if texts := ruleTexts(found.Rules); !slices.Equal(texts, chain.want) {
				t.Errorf("%s: got %q, want %q", chain.name, texts, chain.want)
			}
			rules, err := r.Rules(t.Context(), id)
			if texts := ruleTexts(rules); err != nil || !slices.Equal(texts, chain.want) {
				t.Errorf("%s alone: got %q, %v; want %q", chain.name, texts, err, chain.want)
			}
		}
		if len(got.Chains) != 3 || len(got.Unreadable) > 0 {
			t.Errorf("got %d chains and unreadable ones %v, want 3 and none", len(got.Chains), got.Unreadable)
		}
	})
}

// A rule of nft's own makes one chain unreadable, and not the table.
func TestContentsBesideNativeRules(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	r := realRunner(t, model.IPv4, NFT)
	for _, native := range []string{"meta length 5 counter", "ct mark set jhash ip saddr mod 4"} {
		restore(t, r, "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n")
		if _, err := run(t.Context(), nil, "nft", "add rule ip nat KUBE-B "+native); err != nil {
			skip(t, "nft", err)
		}
		testContentsBeside(t, r, native)
	}
}

func testContentsBeside(t *testing.T, r *Runner, native string) {
	got, err := r.Contents(t.Context(), ruleset.NAT, func(name string) bool { return strings.HasPrefix(name, "KUBE-") })
	if err != nil {
		t.Fatal(err)
	}
	a, b := ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-A"}, ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-B"}
	if got.Chains[a] == nil || !slices.Equal(ruleTexts(got.Chains[a].Rules), []string{"-j KUBE-B"}) {
		t.Errorf("%s: the chain beside it: got %+v", native, got.Chains[a])
	}
	if !slices.Equal(got.Unreadable, []ruleset.ChainID{b}) {
		t.Errorf("%s: unreadable: got %v, want %v", native, got.Unreadable, b)
	}
	if _, err := r.Rules(t.Context(), b); !errors.Is(err, ErrUnreadable) {
		t.Errorf("%s: the chain alone: got %v, want ErrUnreadable", native, err)
	}
}

func ruleTexts(rules []ruleset.Rule) []string {
	var texts []string
	for _, rule := range rules {
		texts = append(texts, rule.String())
	}
	return texts
}
