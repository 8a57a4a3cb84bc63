package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// kernelCases are what the simulated kernel must do as the real one does: each is
// a list of restore inputs, run one after the other.
var kernelCases = []struct {
	name   string
	inputs []string
}{
	{
		name:   "empty input",
		inputs: []string{""},
	},
	{
		name:   "comments and blank lines",
		inputs: []string{"# nothing\n\n*nat\n# nothing\nCOMMIT\n# nothing\n"},
	},
	{
		name:   "chains and rules",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -s 10.0.0.1/32 -j KUBE-B\n-A KUBE-B -j MASQUERADE\nCOMMIT\n"},
	},
	{
		name:   "rules with counters",
		inputs: []string{"*filter\n:KUBE-A - [0:0]\n[12:345] -A KUBE-A -j DROP\nCOMMIT\n"},
	},
	{
		name: "a declared chain is replaced, others stay",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j RETURN\n-A KUBE-B -j RETURN\nCOMMIT\n",
			"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n",
		},
	},
	{
		name: "a chain that is not declared is added to",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -s 10.0.0.1/32 -j RETURN\nCOMMIT\n",
			"*nat\n-A KUBE-A -s 10.0.0.2/32 -j RETURN\nCOMMIT\n",
		},
	},
	{
		name: "declaring a built-in chain keeps its rules",
		inputs: []string{
			"*filter\n-A INPUT -s 10.0.0.1/32 -j DROP\nCOMMIT\n",
			"*filter\n:INPUT DROP [0:0]\n:FORWARD - [0:0]\n-A INPUT -s 10.0.0.2/32 -j DROP\nCOMMIT\n",
		},
	},
	{
		name:   "several tables",
		inputs: []string{"*mangle\n:KUBE-A - [0:0]\nCOMMIT\n*nat\n:KUBE-A - [0:0]\nCOMMIT\n*filter\n:KUBE-A - [0:0]\nCOMMIT\n"},
	},
	{
		name:   "the table before a refused one is applied",
		inputs: []string{"*mangle\n:KUBE-A - [0:0]\nCOMMIT\n*nat\n:KUBE-A - [0:0]\n-A KUBE-NOT -j RETURN\nCOMMIT\n*filter\n:KUBE-A - [0:0]\nCOMMIT\n"},
	},
	{
		name:   "nothing of a refused table is applied",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\n-X KUBE-NOT\nCOMMIT\n"},
	},
	{
		name:   "append to a missing chain",
		inputs: []string{"*nat\n-A KUBE-NOT -j RETURN\nCOMMIT\n"},
	},
	{
		name:   "jump to a missing chain",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-NOT\n-A KUBE-B -j RETURN\nCOMMIT\n"},
	},
	{
		name:   "goto a missing chain",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -g KUBE-NOT\nCOMMIT\n"},
	},
	{
		name:   "jump to a chain of another table",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\nCOMMIT\n", "*filter\n:KUBE-B - [0:0]\n-A KUBE-B -j KUBE-A\nCOMMIT\n"},
	},
	{
		name: "a comment that looks like a jump",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -m comment --comment \"x -j KUBE-NOT\" -j RETURN\n-A KUBE-A -m comment --comment \"a \\\" quote\" -j RETURN\nCOMMIT\n",
		},
	},
	{
		name:   "a chain name of 28 bytes",
		inputs: []string{"*nat\n:" + strings.Repeat("K", 28) + " - [0:0]\nCOMMIT\n"},
	},
	{
		name:   "a chain name of 29 bytes",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n:" + strings.Repeat("K", 29) + " - [0:0]\nCOMMIT\n"},
	},
	{
		name: "delete",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n",
			"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-X KUBE-A\n-X KUBE-B\nCOMMIT\n",
		},
	},
	{
		name:   "delete a missing chain",
		inputs: []string{"*nat\n-X KUBE-NOT\nCOMMIT\n"},
	},
	{
		name: "delete a chain that another one refers to",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n",
			"*nat\n:KUBE-B - [0:0]\n-X KUBE-B\nCOMMIT\n",
			"*nat\n:KUBE-A - [0:0]\n-X KUBE-B\nCOMMIT\n",
		},
	},
	{
		name: "delete a chain with rules",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\nCOMMIT\n",
			"*nat\n-X KUBE-A\nCOMMIT\n",
		},
	},
	{
		name: "flush",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\nCOMMIT\n",
			"*nat\n-F KUBE-A\n-X KUBE-A\nCOMMIT\n",
		},
	},
	{
		name: "insert and delete rules",
		inputs: []string{
			"*nat\n:KUBE-A - [0:0]\n-A PREROUTING -s 10.0.0.1/32 -j ACCEPT\n-A PREROUTING -j KUBE-A\n-A PREROUTING -j KUBE-A\nCOMMIT\n",
			"*nat\n-D PREROUTING -j KUBE-A\n-D PREROUTING -j KUBE-A\n-I PREROUTING 1 -j KUBE-A\n-I PREROUTING 2 -s 10.0.0.2/32 -j RETURN\n-I PREROUTING -s 10.0.0.3/32 -j RETURN\nCOMMIT\n",
		},
	},
	{
		name:   "delete a missing rule",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n-D PREROUTING -j KUBE-A\nCOMMIT\n"},
	},
	{
		name:   "insert behind the end",
		inputs: []string{"*nat\n-I PREROUTING 2 -j ACCEPT\nCOMMIT\n"},
	},
	{
		name:   "masquerade in the filter table",
		inputs: []string{"*filter\n:KUBE-A - [0:0]\n-A KUBE-A -j MASQUERADE\nCOMMIT\n"},
	},
	{
		name:   "unknown table",
		inputs: []string{"*natty\nCOMMIT\n"},
	},
	{
		name:   "no table",
		inputs: []string{":KUBE-A - [0:0]\n"},
	},
	{
		name:   "no COMMIT",
		inputs: []string{"*nat\n:KUBE-A - [0:0]\n"},
	},
}

func TestFakeKernelIsLikeTheKernel(t *testing.T) {
	if !iptables.InNamespace(t) {
		return
	}
	iptables.EachRunner(t, func(t *testing.T, real *iptables.Runner) {
		for _, test := range kernelCases {
			t.Run(test.name, func(t *testing.T) {
				iptables.Wipe(t, real)
				fake := fakekernel.New(real.Family(), real.Backend()).Runner()
				for i, input := range test.inputs {
					if real.Family().Bits() == 128 {
						input = strings.NewReplacer("10.0.0.", "fd00::", "/32", "/128").Replace(input)
					}
					want := outcome(real.Restore(t.Context(), []byte(input)))
					got := outcome(fake.Restore(t.Context(), []byte(input)))
					if got != want {
						t.Errorf("input %d: got %s, the kernel: %s\n%s", i, got, want, input)
					}
				}
				got, want := state(t, fake), state(t, real)
				if got != want {
					t.Errorf("got state\n%s\nthe kernel:\n%s", got, want)
				}
			})
		}
	})
}

// chainCalls are calls of what go-iptables does, each with its result as text. They
// are run one after the other.
var chainCalls = []struct {
	name string
	call func(c iptables.Chains) (any, error)
}{
	{"look for a missing chain", func(c iptables.Chains) (any, error) { return c.ChainExists("nat", "KUBE-A") }},
	{"look for a built-in chain", func(c iptables.Chains) (any, error) { return c.ChainExists("nat", "PREROUTING") }},
	{"look in an unknown table", func(c iptables.Chains) (any, error) { return c.ChainExists("natty", "PREROUTING") }},
	{"list a missing chain", func(c iptables.Chains) (any, error) { return c.List("nat", "KUBE-A") }},
	{"check in a missing chain", func(c iptables.Chains) (any, error) { return c.Exists("nat", "KUBE-A", "-j", "RETURN") }},
	{"insert into a missing chain", func(c iptables.Chains) (any, error) { return nil, c.Insert("nat", "KUBE-A", 1, "-j", "RETURN") }},
	{"make a chain", func(c iptables.Chains) (any, error) { return nil, c.NewChain("nat", "KUBE-A") }},
	{"make it again", func(c iptables.Chains) (any, error) { return nil, c.NewChain("nat", "KUBE-A") }},
	{"look for it", func(c iptables.Chains) (any, error) { return c.ChainExists("nat", "KUBE-A") }},
	{"list it", func(c iptables.Chains) (any, error) { return c.List("nat", "KUBE-A") }},
	{"check for a missing rule", func(c iptables.Chains) (any, error) { return c.Exists("nat", "PREROUTING", "-j", "KUBE-A") }},
	{"check for a jump to a missing chain", func(c iptables.Chains) (any, error) { return c.Exists("nat", "PREROUTING", "-j", "KUBE-NOT") }},
	{"insert a jump to a missing chain", func(c iptables.Chains) (any, error) {
		return nil, c.Insert("nat", "PREROUTING", 1, "-j", "KUBE-NOT")
	}},
	{"insert behind the end", func(c iptables.Chains) (any, error) { return nil, c.Insert("nat", "PREROUTING", 2, "-j", "KUBE-A") }},
	{"insert", func(c iptables.Chains) (any, error) {
		return nil, c.Insert("nat", "PREROUTING", 1, "-m", "comment", "--comment", `of "us", they say`, "-j", "KUBE-A")
	}},
	{"insert in front", func(c iptables.Chains) (any, error) {
		return nil, c.Insert("nat", "PREROUTING", 1, "-m", "comment", "--comment", "word", "-j", "KUBE-A")
	}},
	{"check for it", func(c iptables.Chains) (any, error) {
		return c.Exists("nat", "PREROUTING", "-m", "comment", "--comment", `of "us", they say`, "-j", "KUBE-A")
	}},
	{"list the built-in chain", func(c iptables.Chains) (any, error) { return c.List("nat", "PREROUTING") }},
	{"insert into it", func(c iptables.Chains) (any, error) { return nil, c.Insert("nat", "KUBE-A", 1, "-j", "RETURN") }},
	{"make another chain", func(c iptables.Chains) (any, error) { return nil, c.NewChain("nat", "KUBE-B") }},
	{"insert into that", func(c iptables.Chains) (any, error) { return nil, c.Insert("nat", "KUBE-B", 1, "-j", "RETURN") }},
	{"look for that", func(c iptables.Chains) (any, error) { return c.ChainExists("nat", "KUBE-B") }},
}

func TestFakeKernelIsLikeGoIPTables(t *testing.T) {
	if !iptables.InNamespace(t) {
		return
	}
	iptables.EachRunner(t, func(t *testing.T, real *iptables.Runner) {
		fake := fakekernel.New(real.Family(), real.Backend()).Runner()
		for _, test := range chainCalls {
			describe := func(r *iptables.Runner) string {
				result, err := test.call(iptables.ChainsOf(r))
				if err != nil {
					return fmt.Sprintf("exit status %d", iptables.ExitStatus(err))
				}
				return fmt.Sprintf("%q", result)
			}
			if got, want := describe(fake), describe(real); got != want {
				t.Errorf("%s: got %s, the kernel: %s", test.name, got, want)
			}
		}
		if got, want := state(t, fake), state(t, real); got != want {
			t.Errorf("got state\n%s\nthe kernel:\n%s", got, want)
		}
	})
}

// outcome describes how a restore ended.
func outcome(err error) string {
	if err == nil {
		return "success"
	}
	refused, ok := errors.AsType[*iptables.RestoreError](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("exit status %d, line %d, busy %t", refused.Status, refused.Line, iptables.IsBusy(err))
}

// state returns what a kernel holds, in one spelling, without built-in chains that
// are as they are at the start.
func state(t *testing.T, r interface {
	Save(ctx context.Context, table ruleset.Table) ([]byte, error)
}) string {
	t.Helper()
	all := ruleset.Ruleset{}
	for _, table := range []ruleset.Table{ruleset.Mangle, ruleset.NAT, ruleset.Filter} {
		saved, err := r.Save(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := ruleset.Decode(saved)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, saved)
		}
		for id, chain := range decoded {
			if !id.IsBuiltin() || len(chain.Rules) > 0 || chain.Policy != "ACCEPT" {
				all[id] = chain
			}
		}
	}
	return string(all.Append(nil))
}
