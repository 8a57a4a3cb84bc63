package iptables

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// holdLock takes the lock of the legacy backend, which is this test's own, and
// returns what gives it back.
func holdLock(t *testing.T) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// B-43: under the lock, everything is busy, and nothing is gone.
func TestLegacyLockHeld(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	seams, err := realSeams(t.Context(), model.IPv4, Legacy, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := NewWith(model.IPv4, Legacy, seams)
	id := ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-PROXY-CANARY"}
	if _, err := r.EnsureChain(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	restore(t, r, hookTargets)
	ensureJumps(t, r)
	unlock := holdLock(t)
	tests := []struct {
		name string
		do   func() error
	}{
		{"HasChain", func() error { _, err := r.HasChain(t.Context(), id); return err }},
		{"HasChain of one that is not there", func() error {
			_, err := r.HasChain(t.Context(), ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-NOT"})
			return err
		}},
		{"EnsureChain", func() error { _, err := r.EnsureChain(t.Context(), id); return err }},
		{"HasRule", func() error { _, err := r.HasRule(t.Context(), id, ruleset.Rule{Action: ruleset.Return{}}); return err }},
		{"EnsureRule", func() error { return r.EnsureRule(t.Context(), id, ruleset.Rule{Action: ruleset.Return{}}) }},
		{"ChainNames", func() error { _, err := r.ChainNames(t.Context(), ruleset.NAT); return err }},
		{"Restore", func() error { return r.Restore(t.Context(), []byte("*nat\n:KUBE-A - [0:0]\nCOMMIT\n")) }},
		{"EnsureJumps", func() error { _, err := r.EnsureJumps(t.Context(), hooks); return err }},
		{"Cleanup", func() error { return r.Cleanup(t.Context(), ownsKube) }},
		{"Supported", func() error { return r.Supported(t.Context()) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.do(); !IsBusy(err) {
				t.Errorf("got %v, want busy", err)
			}
		})
	}
	unlock()
	if found, err := r.HasChain(t.Context(), id); err != nil || !found {
		t.Errorf("HasChain after the lock: got %t, %v; want true", found, err)
	}
	wantRules(t, r, filterForward, specs(filterForward)...)
}
