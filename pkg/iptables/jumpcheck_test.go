package iptables

import (
	"slices"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func TestCompareJumps(t *testing.T) {
	tests := []struct {
		name string
		have []string
		want []JumpDifference // Rule and Behind are not compared here
	}{
		{"as it should be", []string{docker, firewall, ssh, services, forward, finalReject}, nil},
		{"nothing there", []string{docker}, []JumpDifference{{Fault: JumpMissing}, {Fault: JumpMissing}, {Fault: JumpMissing}}},
		{"one missing", []string{firewall, forward}, []JumpDifference{{Fault: JumpMissing}}},
		{"two swapped", []string{services, firewall, forward}, []JumpDifference{{Fault: JumpOutOfOrder}}},
		{"one a second time", []string{firewall, services, forward, services}, []JumpDifference{{Fault: JumpTwice}}},
		{"one behind a final rule", []string{firewall, services, finalReject, forward}, []JumpDifference{{Fault: JumpOutOfReach}}},
		{"an earlier version's", []string{firewall, `-j KUBE-SERVICES`, services, forward}, []JumpDifference{{Fault: JumpOtherwise}}},
		{"a rule that cannot be read", []string{"-m \x01", firewall, services, forward}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := CompareJumps(mustRules(t, firewall, services, forward), readAll(test.have))
			same := slices.EqualFunc(got, test.want, func(a, b JumpDifference) bool { return a.Fault == b.Fault })
			if !same {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestCompareJumpsNamesTheObstacle(t *testing.T) {
	got := CompareJumps(mustRules(t, services), readAll([]string{ssh, finalReject, `-j DROP`, services}))
	if len(got) != 1 || got[0].Rule.String() != services || got[0].Behind.String() != finalReject {
		t.Errorf("got %+v, want %q behind %q", got, services, finalReject)
	}
}

func readAll(specs []string) []ruleset.Rule {
	var rules []ruleset.Rule
	for _, spec := range specs {
		rules = append(rules, readRule(filterForward, spec, isKubeChain))
	}
	return rules
}
