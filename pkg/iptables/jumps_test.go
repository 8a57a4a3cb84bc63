package iptables_test

import (
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestJumpsOfATable: they go in together, because on the legacy backend every
// transaction costs a copy of the table. If that is refused, each chain is on its own.
func TestJumpsOfATable(t *testing.T) {
	var hooks []ruleset.Hook
	for _, chain := range []string{"PREROUTING", "OUTPUT", "POSTROUTING"} {
		hooks = append(hooks, ruleset.Hook{
			From: ruleset.ChainID{Table: ruleset.NAT, Name: chain},
			Rule: ruleset.Rule{Action: ruleset.Jump{Chain: "KUBE-SERVICES"}},
		})
	}
	tests := []struct {
		name     string
		refusals int
		restores int
		fails    string // what the error names
		changed  int
	}{
		{name: "together", restores: 1, changed: 3},
		{name: "together refused", refusals: 1, restores: 4, changed: 3},
		{name: "one chain refused", refusals: 2, restores: 4, fails: "nat/PREROUTING", changed: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kernel := fakekernel.New(model.IPv4, iptables.Legacy)
			if err := kernel.Write("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"); err != nil {
				t.Fatal(err)
			}
			for range tt.refusals {
				kernel.FailNext(1, "iptables-restore: line 2 failed")
			}
			changes, err := kernel.Runner().EnsureJumps(t.Context(), hooks)
			if (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("got error %v, want one that names %q", err, tt.fails)
			}
			if len(changes) != tt.changed {
				t.Errorf("got %v, want %d chains changed", changes, tt.changed)
			}
			if got := kernel.Stats().Restores; got != tt.restores {
				t.Errorf("%d restores, want %d", got, tt.restores)
			}
			if got := strings.Count(string(kernel.Save()), "-j KUBE-SERVICES"); got != tt.changed {
				t.Errorf("%d jumps, want %d:\n%s", got, tt.changed, kernel.Save())
			}
		})
	}
}
