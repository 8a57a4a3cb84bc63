package audit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// wanted is what the tables of these tests should hold.
const wanted = `*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A KUBE-FIREWALL -d 127.0.0.0/8 -j DROP
COMMIT
*nat
:KUBE-CANARY - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-B - [0:0]
-A KUBE-CANARY -j RETURN
-A KUBE-SVC-A -p tcp -j KUBE-SVC-B
-A KUBE-SVC-A -p udp -j KUBE-SVC-B
COMMIT
`

var (
	canaryID   = ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-CANARY"}
	firewallID = ruleset.ChainID{Table: ruleset.Filter, Name: "KUBE-FIREWALL"}
	inputID    = ruleset.ChainID{Table: ruleset.Filter, Name: "INPUT"}
)

func mustDecode(t *testing.T, text string) ruleset.Ruleset {
	t.Helper()
	rs, err := ruleset.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func wantOf(t *testing.T) Want {
	t.Helper()
	want := Want{
		Owns:   func(id ruleset.ChainID) bool { return strings.HasPrefix(id.Name, "KUBE-SVC-") || id == canaryID },
		Shared: []ruleset.ChainID{firewallID},
	}
	for id, chain := range mustDecode(t, wanted) {
		switch id {
		case inputID:
			for _, rule := range chain.Rules {
				want.Hooks = append(want.Hooks, ruleset.Hook{From: id, Rule: rule})
			}
		case canaryID:
			want.Canaries = append(want.Canaries, *chain)
		default:
			want.Chains = append(want.Chains, *chain)
		}
	}
	return want
}

func TestCompare(t *testing.T) {
	tests := []struct {
		name       string
		old, new   string // what to replace in wanted
		unreadable []ruleset.ChainID
		want       []string
	}{
		{name: "the same"},
		{
			name: "a chain is missing", old: ":KUBE-SVC-A - [0:0]\n:KUBE-SVC-B - [0:0]\n-A KUBE-CANARY -j RETURN\n-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n-A KUBE-SVC-A -p udp -j KUBE-SVC-B\n",
			new:  ":KUBE-SVC-B - [0:0]\n-A KUBE-CANARY -j RETURN\n",
			want: []string{"missing  nat/KUBE-SVC-A\n+ -A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n+ -A KUBE-SVC-A -p udp -j KUBE-SVC-B"},
		},
		{
			name: "one too many", old: ":KUBE-SVC-B - [0:0]\n", new: ":KUBE-SVC-B - [0:0]\n:KUBE-SVC-C - [0:0]\n",
			want: []string{"foreign  nat/KUBE-SVC-C"},
		},
		{
			name: "a rule is another one", old: "-A KUBE-SVC-A -p udp", new: "-A KUBE-SVC-A -p sctp",
			want: []string{"changed  nat/KUBE-SVC-A\n- -A KUBE-SVC-A -p sctp -j KUBE-SVC-B\n+ -A KUBE-SVC-A -p udp -j KUBE-SVC-B"},
		},
		{
			name: "an empty rule", old: "-A KUBE-SVC-A -p tcp", new: "-A KUBE-SVC-A\n-A KUBE-SVC-A -p tcp",
			want: []string{"changed  nat/KUBE-SVC-A\n- -A KUBE-SVC-A"},
		},
		{
			name: "another order",
			old:  "-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n-A KUBE-SVC-A -p udp -j KUBE-SVC-B\n",
			new:  "-A KUBE-SVC-A -p udp -j KUBE-SVC-B\n-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n",
			want: []string{"order    nat/KUBE-SVC-A\n- -A KUBE-SVC-A -p udp -j KUBE-SVC-B\n+ -A KUBE-SVC-A -p udp -j KUBE-SVC-B"},
		},
		{
			name: "canaries come first", old: "-A KUBE-CANARY -j RETURN\n-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n", new: "",
			want: []string{
				"canary   nat/KUBE-CANARY: changed\n+ -A KUBE-CANARY -j RETURN",
				"changed  nat/KUBE-SVC-A\n+ -A KUBE-SVC-A -p tcp -j KUBE-SVC-B",
			},
		},
		{
			name: "a jump is gone", old: "-A INPUT -j KUBE-NODEPORTS\n", new: "",
			want: []string{"jump     filter/INPUT: missing\n+ -A INPUT -j KUBE-NODEPORTS"},
		},
		{
			name: "a jump is out of reach", old: "-A INPUT -j KUBE-NODEPORTS\n", new: "-A INPUT -j DROP\n-A INPUT -j KUBE-NODEPORTS\n",
			want: []string{"jump     filter/INPUT: behind a rule that lets no packet past\n+ -A INPUT -j KUBE-NODEPORTS\n  -A INPUT -j DROP\n- -A INPUT -j KUBE-NODEPORTS"},
		},
		{
			name: "others' rules in a shared chain", old: "-A KUBE-FIREWALL -d", new: "-A KUBE-FIREWALL -s 192.0.2.1/32 -j DROP\n-A KUBE-FIREWALL -d",
		},
		{
			name: "ours is gone from a shared chain", old: "-A KUBE-FIREWALL -d 127.0.0.0/8 -j DROP\n", new: "-A KUBE-FIREWALL -j RETURN\n",
			want: []string{"changed  filter/KUBE-FIREWALL\n+ -A KUBE-FIREWALL -d 127.0.0.0/8 -j DROP"},
		},
		{
			name: "a chain of ours that cannot be read", old: ":KUBE-SVC-B - [0:0]\n-A KUBE-CANARY -j RETURN\n-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n-A KUBE-SVC-A -p udp -j KUBE-SVC-B\n",
			new:        "-A KUBE-CANARY -j RETURN\n-A KUBE-SVC-A -p tcp -j KUBE-SVC-B\n-A KUBE-SVC-A -p udp -j KUBE-SVC-B\n",
			unreadable: []ruleset.ChainID{{Table: ruleset.NAT, Name: "KUBE-SVC-B"}},
			want:       []string{"changed  nat/KUBE-SVC-B: it holds a rule that iptables cannot read; nft list ruleset shows it"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if !strings.Contains(wanted, test.old) {
				t.Fatalf("%q is not in the tables", test.old)
			}
			have := iptables.Contents{
				Chains:     mustDecode(t, strings.Replace(wanted, test.old, test.new, 1)),
				Unreadable: test.unreadable,
			}
			for _, id := range test.unreadable {
				delete(have.Chains, id)
			}
			var got []string
			for _, d := range Compare(have, wantOf(t)) {
				got = append(got, d.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// kernel is one that holds what it is told, and answers with err.
type kernel struct {
	rules      ruleset.Ruleset
	unreadable []ruleset.ChainID
	found      map[string]bool // the jump rules that HasRule finds
	err        error
}

func (k kernel) Contents(_ context.Context, table ruleset.Table, wanted func(string) bool) (iptables.Contents, error) {
	c := iptables.Contents{Chains: ruleset.Ruleset{}}
	for id, chain := range k.rules {
		switch {
		case id.Table != table || !wanted(id.Name):
		case slices.Contains(k.unreadable, id):
			c.Unreadable = append(c.Unreadable, id)
		default:
			c.Chains[id] = chain
		}
	}
	return c, k.err
}

func (k kernel) ChainNames(_ context.Context, table ruleset.Table) (names []string, err error) {
	for id := range k.rules {
		if id.Table == table {
			names = append(names, id.Name)
		}
	}
	return names, k.err
}

func (k kernel) Rules(_ context.Context, id ruleset.ChainID) ([]ruleset.Rule, error) {
	if slices.Contains(k.unreadable, id) {
		return nil, iptables.ErrUnreadable
	}
	return k.rules[id].Rules, nil
}

func (k kernel) HasRule(_ context.Context, _ ruleset.ChainID, rule ruleset.Rule) (bool, error) {
	return k.found[rule.String()], nil
}

func TestLook(t *testing.T) {
	nobody := errors.New("nobody home")
	others := mustDecode(t, wanted+"*mangle\n:KUBE-SVC-X - [0:0]\n:OTHER - [0:0]\nCOMMIT\n")
	tests := []struct {
		name   string
		kernel kernel
		want   []string
		err    error
	}{
		{name: "the same", kernel: kernel{rules: mustDecode(t, wanted)}},
		{name: "one too many in another table", kernel: kernel{rules: others}, want: []string{"foreign  mangle/KUBE-SVC-X"}},
		{name: "it cannot be looked at", kernel: kernel{err: nobody}, err: nobody},
		{
			name:   "a built-in chain that cannot be read, with all of ours",
			kernel: kernel{rules: mustDecode(t, wanted), unreadable: []ruleset.ChainID{inputID}, found: map[string]bool{"-j KUBE-FIREWALL": true, "-j KUBE-NODEPORTS": true}},
		},
		{
			name:   "a built-in chain that cannot be read, with one of ours",
			kernel: kernel{rules: mustDecode(t, wanted), unreadable: []ruleset.ChainID{inputID}, found: map[string]bool{"-j KUBE-FIREWALL": true}},
			want:   []string{"jump     filter/INPUT: missing\n+ -A INPUT -j KUBE-NODEPORTS"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := wantOf(t)
			differences, err := Look(t.Context(), test.kernel, want)
			check(t, differences, err, test.want, test.err)
			var jumps []string
			for _, text := range test.want {
				if strings.HasPrefix(text, "jump") {
					jumps = append(jumps, text)
				}
			}
			differences, err = Jumps(t.Context(), test.kernel, want.Hooks)
			check(t, differences, err, jumps, test.err)
		})
	}
}

func check(t *testing.T, differences []Difference, err error, want []string, wantErr error) {
	t.Helper()
	var got []string
	for _, d := range differences {
		got = append(got, d.String())
	}
	if !slices.Equal(got, want) || !errors.Is(err, wantErr) {
		t.Errorf("got %q, %v; want %q, %v", got, err, want, wantErr)
	}
}
