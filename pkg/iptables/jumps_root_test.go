package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// hooks are jumps as the agent has them.
var hooks = []ruleset.Hook{
	{From: filterForward, Rule: newState("kubernetes load balancer firewall", "KUBE-PROXY-FIREWALL")},
	{From: filterForward, Rule: newState("kubernetes service portals", "KUBE-SERVICES")},
	{From: filterForward, Rule: ruleset.Rule{Comment: "kubernetes forwarding rules", Action: ruleset.Jump{Chain: "KUBE-FORWARD"}}},
	{From: natPrerouting, Rule: ruleset.Rule{Comment: "kubernetes service portals", Action: ruleset.Jump{Chain: "KUBE-SERVICES"}}},
}

var natPrerouting = ruleset.ChainID{Table: ruleset.NAT, Name: "PREROUTING"}

func newState(comment, chain string) ruleset.Rule {
	return ruleset.Rule{
		Matches: []ruleset.Match{ruleset.Conntrack{States: ruleset.New}},
		Comment: comment,
		Action:  ruleset.Jump{Chain: chain},
	}
}

const hookTargets = "*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-FORWARD - [0:0]\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"

// specs are the texts of the hooks in a chain.
func specs(from ruleset.ChainID) []string {
	var all []string
	for _, r := range ruleset.HooksIn(hooks, from) {
		all = append(all, r.String())
	}
	return all
}

func ensureJumps(t *testing.T, r *Runner) []Change {
	t.Helper()
	changes, err := r.EnsureJumps(t.Context(), hooks)
	if err != nil {
		t.Fatalf("EnsureJumps: %v", err)
	}
	return changes
}

func wantRules(t *testing.T, r *Runner, id ruleset.ChainID, want ...string) {
	t.Helper()
	if got := rulesOf(t, r, id); !slices.Equal(got, want) {
		t.Errorf("%v: got\n\t%s\nwant\n\t%s", id, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestJumpsOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ssh := `-p tcp -m tcp --dport 22 -j ACCEPT`
	eachRunner(t, func(t *testing.T, r *Runner) {
		restore(t, r, hookTargets)
		want := specs(filterForward)

		// B-48: at the head, whatever was there.
		restore(t, r, "*filter\n:FORWARD DROP [0:0]\n-A FORWARD "+ssh+"\n-A FORWARD -j DROP\nCOMMIT\n")
		if got := len(ensureJumps(t, r)); got != 2 {
			t.Errorf("got %d chains changed, want 2", got)
		}
		wantRules(t, r, filterForward, slices.Concat(want, []string{ssh, "-j DROP"})...)
		wantRules(t, r, natPrerouting, specs(natPrerouting)...)

		// A second time there is nothing to do.
		if changes := ensureJumps(t, r); len(changes) > 0 {
			t.Errorf("changed again: %v", changes)
		}

		// One was deleted, and another program put itself in front.
		restore(t, r, "*filter\n-D FORWARD "+want[1]+"\n-I FORWARD "+ssh+"\nCOMMIT\n")
		ensureJumps(t, r)
		wantRules(t, r, filterForward, ssh, want[0], want[1], want[2], ssh, "-j DROP")

		// B-47: a firewall took the head for itself.
		restore(t, r, "*filter\n-I FORWARD -j DROP\nCOMMIT\n")
		ensureJumps(t, r)
		wantRules(t, r, filterForward, slices.Concat(want, []string{"-j DROP", ssh, ssh, "-j DROP"})...)

		// B-56: duplicates go, and so do jumps of another version.
		restore(t, r, "*filter\n-A FORWARD "+want[0]+"\n-I FORWARD 2 "+want[2]+"\n-I FORWARD -j KUBE-SERVICES\nCOMMIT\n")
		ensureJumps(t, r)
		wantRules(t, r, filterForward, slices.Concat(want, []string{"-j DROP", ssh, ssh, "-j DROP"})...)

		for i := range 2 {
			if err := r.Cleanup(t.Context(), ownsKube); err != nil {
				t.Errorf("Cleanup, call %d: %v", i, err)
			}
		}
		wantRules(t, r, filterForward, "-j DROP", ssh, ssh, "-j DROP")
		wantRules(t, r, natPrerouting)
	})
}

// A jump to a chain that does not exist is an error, and adds nothing.
func TestJumpsWithoutTarget(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		if changes, err := r.EnsureJumps(t.Context(), hooks); err == nil || len(changes) > 0 {
			t.Errorf("got %v, %v; want an error and no change", changes, err)
		}
		wantRules(t, r, filterForward)
	})
}

// iptables-nft cannot list a chain with a rule that iptables has no words for.
func TestJumpsBesideNativeRules(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	r := realRunner(t, model.IPv4, NFT)
	restore(t, r, hookTargets+"*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n")
	if _, err := run(t.Context(), nil, "nft", "add rule ip nat PREROUTING ct mark set jhash ip saddr mod 4"); err != nil {
		skip(t, "nft", err)
	}
	ensureJumps(t, r)
	if changes := ensureJumps(t, r); len(changes) > 0 {
		t.Errorf("changed again: %v", changes)
	}
	listed, err := run(t.Context(), nil, "nft", "list chain ip nat PREROUTING")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(listed), "jump KUBE-SERVICES"); got != 1 {
		t.Errorf("got %d jumps, want 1:\n%s", got, listed)
	}
}

// iptables-nft ends with the status of a missing table at a rule that it can make
// nothing of at all.
func TestJumpsBesideUnreadableRules(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	r := realRunner(t, model.IPv4, NFT)
	restore(t, r, hookTargets+"*nat\n-A PREROUTING -j ACCEPT\n-A POSTROUTING -j ACCEPT\nCOMMIT\n")
	for _, chain := range []string{"PREROUTING", "POSTROUTING"} {
		if _, err := run(t.Context(), nil, "nft", "insert rule ip nat "+chain+" meta length 5 counter"); err != nil {
			skip(t, "nft", err)
		}
	}
	if err := r.Supported(t.Context()); err != nil {
		t.Errorf("Supported: %v", err)
	}
	ensureJumps(t, r)
	if changes := ensureJumps(t, r); len(changes) > 0 {
		t.Errorf("changed again: %v", changes)
	}
	listed, err := run(t.Context(), nil, "nft", "list chain ip nat PREROUTING")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(listed), "jump KUBE-SERVICES"); got != 1 {
		t.Errorf("got %d jumps, want 1:\n%s", got, listed)
	}
}
