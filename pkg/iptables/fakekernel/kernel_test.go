package fakekernel

import (
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const oneChain = "*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\nCOMMIT\n"

func TestFailNext(t *testing.T) {
	k := New(model.IPv4, iptables.NFT)
	r := k.Runner()
	k.FailNext(4, "line 2: CHAIN_ADD failed (Out of memory): chain KUBE-A")
	k.FailNext(4, "lock held")
	for i, want := range []struct{ fails, busy bool }{{true, false}, {true, true}, {false, false}} {
		err := r.Restore(t.Context(), []byte(oneChain))
		if (err != nil) != want.fails || iptables.IsBusy(err) != want.busy {
			t.Errorf("restore %d: got %v, want failure %t, busy %t", i, err, want.fails, want.busy)
		}
		if got := len(k.Save()) > 0; got == want.fails {
			t.Errorf("restore %d: applied is %t", i, got)
		}
	}
	want := Stats{Restores: 3, Bytes: 3 * len(oneChain)}
	if got := k.Stats(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := k.Stats(); got != (Stats{}) {
		t.Errorf("counted again: %+v", got)
	}
}

func TestSetLocked(t *testing.T) {
	k := New(model.IPv4, iptables.Legacy)
	r := k.Runner()
	id := ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-A"}
	k.SetLocked(true)
	if err := r.Restore(t.Context(), []byte(oneChain)); !iptables.IsBusy(err) {
		t.Errorf("Restore: got %v, want busy", err)
	}
	if _, err := r.HasChain(t.Context(), id); !iptables.IsBusy(err) {
		t.Errorf("HasChain: got %v, want busy", err)
	}
	if _, err := r.EnsureChain(t.Context(), id); !iptables.IsBusy(err) {
		t.Errorf("EnsureChain: got %v, want busy", err)
	}
	k.SetLocked(false)
	if created, err := r.EnsureChain(t.Context(), id); err != nil || !created {
		t.Errorf("EnsureChain: got %t, %v, want true", created, err)
	}
}

func TestBeforeRestore(t *testing.T) {
	k := New(model.IPv4, iptables.NFT)
	k.BeforeRestore(func() {
		if err := k.Write("*nat\n:FOREIGN - [0:0]\nCOMMIT\n"); err != nil {
			t.Error(err)
		}
	})
	if err := k.Runner().Restore(t.Context(), []byte(oneChain)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{":FOREIGN - ", ":KUBE-A - ", "-A KUBE-A -j RETURN\n"} {
		if !strings.Contains(string(k.Save()), want) {
			t.Errorf("no %q in\n%s", want, k.Save())
		}
	}
	if got := k.Stats().Restores; got != 1 {
		t.Errorf("got %d restores, want 1: another process's do not count", got)
	}
}

func TestFlush(t *testing.T) {
	k := New(model.IPv4, iptables.NFT)
	input := "*nat\n:KUBE-A - [0:0]\n-A PREROUTING -j KUBE-A\nCOMMIT\n*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j ACCEPT\nCOMMIT\n"
	if err := k.Write(input); err != nil {
		t.Fatal(err)
	}
	k.Flush(ruleset.NAT, ruleset.Filter)
	got, err := ruleset.Decode(k.Save())
	if err != nil {
		t.Fatal(err)
	}
	for id, c := range got {
		if !id.IsBuiltin() || len(c.Rules) > 0 {
			t.Errorf("left: %v", c)
		}
	}
	if got := got[ruleset.ChainID{Table: ruleset.Filter, Name: "FORWARD"}].Policy; got != "DROP" {
		t.Errorf("policy of FORWARD: got %s, want DROP", got)
	}
}

// Jumps are inserted in one transaction and listed as text.
func TestJumps(t *testing.T) {
	k := New(model.IPv6, iptables.NFT)
	r := k.Runner()
	if err := r.Restore(t.Context(), []byte("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")); err != nil {
		t.Fatal(err)
	}
	hooks := []ruleset.Hook{{
		From: ruleset.ChainID{Table: ruleset.NAT, Name: "PREROUTING"},
		Rule: ruleset.Rule{Comment: `a "quoted" \ word`, Action: ruleset.Jump{Chain: "KUBE-SERVICES"}},
	}}
	for i, want := range []int{1, 0} {
		changes, err := r.EnsureJumps(t.Context(), hooks)
		if err != nil || len(changes) != want {
			t.Errorf("call %d: got %v, %v, want %d changes", i, changes, err, want)
		}
	}
	// B-56: a check that fails adds nothing.
	k.SetLocked(true)
	for range 10 {
		if changes, err := r.EnsureJumps(t.Context(), hooks); !iptables.IsBusy(err) || len(changes) > 0 {
			t.Errorf("under the lock: got %v, %v, want busy and no change", changes, err)
		}
	}
	k.SetLocked(false)
	if got := k.Stats(); got.Restores != 2 || got.Edits != 0 {
		t.Errorf("got %d restores and %d edits, want 2 and 0", got.Restores, got.Edits)
	}
	if want := "-A PREROUTING " + hooks[0].Rule.String() + "\n"; !strings.Contains(string(k.Save()), want) {
		t.Errorf("no %q in\n%s", want, k.Save())
	}
	if err := r.Restore(t.Context(), []byte("*nat\n-X KUBE-SERVICES\nCOMMIT\n")); err == nil {
		t.Error("a chain that a jump refers to was deleted")
	}
}

func TestWords(t *testing.T) {
	tests := []struct {
		spec   string
		want   []string
		target string
	}{
		{spec: ``},
		{spec: `-j KUBE-A`, want: []string{"-j", "KUBE-A"}, target: "KUBE-A"},
		{spec: `  -g  KUBE-A `, want: []string{"-g", "KUBE-A"}, target: "KUBE-A"},
		{spec: `-j`, want: []string{"-j"}},
		{spec: `--comment "a b" -j X`, want: []string{"--comment", "a b", "-j", "X"}, target: "X"},
		{spec: `--comment "a\"b\\c" -j X`, want: []string{"--comment", `a"b\c`, "-j", "X"}, target: "X"},
		{spec: `--comment "" -j X`, want: []string{"--comment", "", "-j", "X"}, target: "X"},
		{spec: `--comment "-j" -j X`, want: []string{"--comment", "-j", "-j", "X"}, target: "X"},
	}
	for _, test := range tests {
		t.Run(test.spec, func(t *testing.T) {
			if got := words(test.spec); !slices.Equal(got, test.want) {
				t.Errorf("words: got %q, want %q", got, test.want)
			}
			if got := target(test.spec); got != test.target {
				t.Errorf("target: got %q, want %q", got, test.target)
			}
		})
	}
}
