package iptables

import (
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// JumpFault is what is wrong with a jump rule in a built-in chain.
type JumpFault string

// What can be wrong with a jump rule.
const (
	// JumpMissing: it is not in the chain.
	JumpMissing JumpFault = "missing"
	// JumpOutOfOrder: one that should come after it comes before it.
	JumpOutOfOrder JumpFault = "out of order"
	// JumpTwice: it is in the chain a second time.
	JumpTwice JumpFault = "there twice"
	// JumpOutOfReach: a rule before it ends the chain for every packet.
	JumpOutOfReach JumpFault = "behind a rule that lets no packet past"
	// JumpOtherwise: it leads to one of the same chains, and is none of the wanted ones.
	JumpOtherwise JumpFault = "not one of the jumps that should be there"
)

// JumpDifference is a jump rule that is not as it should be.
type JumpDifference struct {
	Fault JumpFault
	Rule  ruleset.Rule
	// Behind is the rule that keeps packets from one that is out of reach.
	Behind ruleset.Rule
}

// CompareJumps says which of the wanted jump rules of a built-in chain are not as
// EnsureJumps would leave them, given all rules of the chain.
func CompareJumps(want, have []ruleset.Rule) []JumpDifference {
	var diffs []JumpDifference
	report := func(fault JumpFault, rule, behind ruleset.Rule) {
		diffs = append(diffs, JumpDifference{Fault: fault, Rule: rule, Behind: behind})
	}
	var behind *ruleset.Rule
	seen := make([]bool, len(want))
	next := 0
	for _, rule := range have {
		if !targets(want, rule.Target()) {
			if behind == nil && isFinal(rule) {
				behind = &rule
			}
			continue
		}
		w := slices.IndexFunc(want, func(r ruleset.Rule) bool { return sameRule(r, rule) })
		switch {
		case w < 0:
			report(JumpOtherwise, rule, ruleset.Rule{})
			continue
		case seen[w]:
			report(JumpTwice, rule, ruleset.Rule{})
		case behind != nil:
			report(JumpOutOfReach, rule, *behind)
		case w < next:
			report(JumpOutOfOrder, rule, ruleset.Rule{})
		}
		seen[w], next = true, max(next, w+1)
	}
	for i, rule := range want {
		if !seen[i] {
			report(JumpMissing, rule, ruleset.Rule{})
		}
	}
	return diffs
}

// JumpsInPlace reports whether EnsureJumps would have nothing to do in a built-in chain
// that holds these rules.
func JumpsInPlace(hooks []ruleset.Hook, chain ruleset.Chain) bool {
	want := ruleset.HooksIn(hooks, chain.ChainID)
	have := make([]ruleset.Rule, len(chain.Rules))
	for i, rule := range chain.Rules {
		have[i] = asJump(want, rule)
	}
	return len(CompareJumps(want, have)) == 0
}

// asJump makes a jump of what was kept as text because the chain was not declared.
func asJump(want []ruleset.Rule, rule ruleset.Rule) ruleset.Rule {
	if unknown, ok := rule.Action.(ruleset.UnknownAction); ok {
		if chain, isJump := strings.CutPrefix(unknown.Text, "-j "); isJump && targets(want, chain) {
			rule.Action = ruleset.Jump{Chain: chain}
		}
	}
	return rule
}
