package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The wanted rules of the plan tests, in order.
const (
	firewall = `-m comment --comment "kubernetes load balancer firewall" -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL`
	services = `-m comment --comment "kubernetes service portals" -m conntrack --ctstate NEW -j KUBE-SERVICES`
	forward  = `-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`
)

// Foreign rules: none of them ends the chain for all packets but the final ones.
const (
	docker      = `-j DOCKER-USER`
	ssh         = `-p tcp -m tcp --dport 22 -j ACCEPT`
	finalReject = `-j REJECT --reject-with icmp-host-prohibited`
)

var filterForward = ruleset.ChainID{Table: ruleset.Filter, Name: "FORWARD"}

// mustRules reads rules from their text.
func mustRules(t *testing.T, specs ...string) []ruleset.Rule {
	t.Helper()
	var rules []ruleset.Rule
	for _, spec := range specs {
		rule := readRule(filterForward, spec, isKubeChain)
		if rule.Action == nil {
			t.Fatalf("cannot read %q", spec)
		}
		rules = append(rules, rule)
	}
	return rules
}

func isKubeChain(name string) bool { return strings.HasPrefix(name, "KUBE-") }

// applyPlan does to a list of rules what a plan says.
func applyPlan(t *testing.T, have []string, plan jumpPlan) []string {
	t.Helper()
	after := slices.Clone(have)
	for _, spec := range plan.remove {
		i := slices.Index(after, spec)
		if i < 0 {
			t.Fatalf("plan removes %q, which is not there: %q", spec, after)
		}
		after = slices.Delete(after, i, i+1)
	}
	for _, in := range plan.insert {
		if in.at < 1 || in.at > len(after)+1 {
			t.Fatalf("plan inserts at %d of %d", in.at, len(after))
		}
		after = slices.Insert(after, in.at-1, in.rule.String())
	}
	return after
}

func TestPlanJumps(t *testing.T) {
	tests := []struct {
		name             string
		have, want       []string
		removed, written int
		bypassed         bool
	}{
		{
			name:    "empty chain",
			want:    []string{firewall, services, forward},
			written: 3, bypassed: true,
		},
		{
			name: "as it should be",
			have: []string{firewall, services, forward},
			want: []string{firewall, services, forward},
		},
		{
			name: "foreign rules before, between and behind are tolerated",
			have: []string{docker, firewall, ssh, services, forward, ssh, finalReject},
			want: []string{docker, firewall, ssh, services, forward, ssh, finalReject},
		},
		{
			name:    "none there: in front of what is there",
			have:    []string{docker, ssh, finalReject},
			want:    []string{firewall, services, forward, docker, ssh, finalReject},
			written: 3, bypassed: true,
		},
		{
			name:    "one missing: behind the one before it",
			have:    []string{docker, firewall, ssh, forward},
			want:    []string{docker, firewall, services, ssh, forward},
			written: 1, bypassed: true,
		},
		{
			name:    "the first missing",
			have:    []string{docker, services, forward},
			want:    []string{firewall, docker, services, forward},
			written: 1, bypassed: true,
		},
		{
			name:    "the last two missing",
			have:    []string{docker, firewall, finalReject},
			want:    []string{docker, firewall, services, forward, finalReject},
			written: 2, bypassed: true,
		},
		{
			name:    "B-56: a jump that was added for ever",
			have:    append(slices.Repeat([]string{services}, 500), firewall, services, forward),
			want:    []string{firewall, services, forward},
			removed: 503, written: 3,
		},
		{
			name:    "wrong order",
			have:    []string{services, ssh, firewall, forward},
			want:    []string{firewall, services, forward, ssh},
			removed: 3, written: 3,
		},
		{
			name:    "the jump of an earlier version",
			have:    []string{firewall, `-j KUBE-SERVICES`, services, forward},
			want:    []string{firewall, services, forward},
			removed: 4, written: 3,
		},
		{
			name:    "B-47: behind a foreign final rule",
			have:    []string{docker, finalReject, firewall, services, forward},
			want:    []string{firewall, services, forward, docker, finalReject},
			removed: 3, written: 3, bypassed: true,
		},
		{
			name:    "B-48: one of them behind a foreign final rule with a comment",
			have:    []string{firewall, services, `-m comment --comment all -j ACCEPT`, forward},
			want:    []string{firewall, services, forward, `-m comment --comment all -j ACCEPT`},
			removed: 3, written: 3, bypassed: true,
		},
		{
			name: "a foreign rule that cannot be read is no final rule",
			have: []string{"-m \x01", firewall, services, forward},
			want: []string{"-m \x01", firewall, services, forward},
		},
		{
			name: "B-56: the programs print in another order",
			have: []string{
				firewall,
				`-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
				forward,
			},
			want: []string{
				firewall,
				`-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
				forward,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			wanted := mustRules(t, firewall, services, forward)
			read := func(specs []string) []foundRule {
				lines := []string{"-P FORWARD ACCEPT"}
				for _, spec := range specs {
					lines = append(lines, "-A FORWARD "+spec)
				}
				return readRules(filterForward, lines, isKubeChain)
			}
			plan := planJumps(wanted, read(test.have))
			if len(plan.remove) != test.removed || len(plan.insert) != test.written {
				t.Errorf("got %d removed and %d inserted, want %d and %d", len(plan.remove), len(plan.insert), test.removed, test.written)
			}
			if plan.bypassed != test.bypassed {
				t.Errorf("got bypassed %v, want %v", plan.bypassed, test.bypassed)
			}
			after := applyPlan(t, test.have, plan)
			if !slices.Equal(after, test.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(after, "\n\t"), strings.Join(test.want, "\n\t"))
			}
			if again := planJumps(wanted, read(after)); len(again.remove)+len(again.insert) > 0 {
				t.Errorf("a second plan changes it again: %+v", again)
			}
		})
	}
}

func TestIsFinal(t *testing.T) {
	tests := []struct {
		spec string
		want bool
	}{
		{`-j ACCEPT`, true},
		{`-j DROP`, true},
		{`-j RETURN`, true},
		{`-j REJECT --reject-with tcp-reset`, true},
		{`-m comment --comment "the end" -j DROP`, true},
		{`-g KUBE-ELSEWHERE`, true},
		{`-j MASQUERADE`, true},
		{`-j SNAT --to-source 10.0.0.1`, true},
		{`-j REDIRECT --to-ports 15001`, true},
		{`-j NFQUEUE --queue-num 1`, true},
		{`-j KUBE-ELSEWHERE`, false},
		{`-j DOCKER`, false},
		{`-j LOG`, false},
		{`-s 10.0.0.0/8 -j DROP`, false},
		{`-m physdev --physdev-is-bridged -j ACCEPT`, false},
		{`-m comment --comment "only counts"`, false},
	}
	for _, test := range tests {
		t.Run(test.spec, func(t *testing.T) {
			if got := isFinal(readRule(filterForward, test.spec, isKubeChain)); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestReadRules(t *testing.T) {
	lines := []string{
		"-P FORWARD DROP",
		"-A FORWARD -m comment --comment \"two",
		"lines\" -j ACCEPT",
		"-A FORWARD " + forward,
	}
	found := readRules(filterForward, lines, isKubeChain)
	if len(found) != 2 {
		t.Fatalf("got %d rules, want 2: %+v", len(found), found)
	}
	if want := "-m comment --comment \"two\nlines\" -j ACCEPT"; found[0].spec != want {
		t.Errorf("got %q, want %q", found[0].spec, want)
	}
	if got := found[1].rule.Target(); got != "KUBE-FORWARD" {
		t.Errorf("got target %q, want KUBE-FORWARD", got)
	}
}
