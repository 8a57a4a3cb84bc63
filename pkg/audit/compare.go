package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Kind says in which way something differs.
type Kind string

// The ways in which the kernel can differ from what it should hold.
const (
	Missing Kind = "missing" // a chain that should be there
	Foreign Kind = "foreign" // a chain with a name of ours that should not be there
	Changed Kind = "changed" // a chain with other rules
	Order   Kind = "order"   // a chain with the right rules in another order
	Jump    Kind = "jump"    // a jump rule in a built-in chain
	Canary  Kind = "canary"  // a canary chain, by which a flush is noticed
)

// Difference is one thing that is not as it should be.
type Difference struct {
	Kind  Kind
	Chain ruleset.ChainID
	// Why says more in words; it may be empty.
	Why string
	// Lines are rules of the chain: those to add and to take away, and with a blank Op
	// what stays where it is.
	Lines []ruleset.LineDiff
}

// Equal reports whether two differences are the same.
func (d Difference) Equal(o Difference) bool {
	return d.Kind == o.Kind && d.Chain == o.Chain && d.Why == o.Why && slices.Equal(d.Lines, o.Lines)
}

// Compare returns what differs: jump rules, canary chains, then all other chains by
// table and name.
func Compare(have iptables.Contents, want Want) []Difference {
	diffs := compareJumps(have.Chains, want.Hooks)
	canaries := rulesetOf(want.Canaries)
	wanted := rulesetOf(slices.Concat(want.Chains, want.Canaries))
	present := ruleset.Ruleset{}
	for id, chain := range have.Chains {
		if !isBuiltin(want.Hooks, id) {
			present[id] = chain
		}
	}
	for _, id := range have.Unreadable {
		if !isBuiltin(want.Hooks, id) && !slices.Contains(want.Shared, id) {
			diffs = append(diffs, unreadableChain(id, wanted[id] != nil))
			delete(wanted, id)
		}
	}
	for _, id := range want.Shared {
		if !slices.Contains(have.Unreadable, id) {
			diffs = append(diffs, compareShared(id, present[id], wanted[id])...)
		}
		delete(present, id)
		delete(wanted, id)
	}
	for _, d := range ruleset.Diff(present, wanted) {
		diffs = append(diffs, fromChain(d, canaries[d.ChainID] != nil))
	}
	slices.SortStableFunc(diffs, func(a, b Difference) int { return rank(a.Kind) - rank(b.Kind) })
	return diffs
}

// rank puts first what the rest depends on.
func rank(k Kind) int {
	switch k {
	case Jump:
		return 0
	case Canary:
		return 1
	}
	return 2
}

// fromChain describes how one chain differs.
func fromChain(d ruleset.ChainDiff, isCanary bool) Difference {
	diff := Difference{Chain: d.ChainID, Lines: d.Lines}
	switch d.Kind {
	case ruleset.Missing:
		diff.Kind = Missing
	case ruleset.Extra:
		diff.Kind = Foreign
	case ruleset.Changed:
		diff.Kind = Changed
		if sameLines(d.Lines) {
			diff.Kind = Order
		}
	}
	if isCanary {
		diff.Why, diff.Kind = string(diff.Kind), Canary
	}
	return diff
}

// sameLines reports whether what is to be taken away is what is to be added.
func sameLines(lines []ruleset.LineDiff) bool {
	var taken, added []string
	for _, line := range lines {
		switch line.Op {
		case '-':
			taken = append(taken, line.Text)
		case '+':
			added = append(added, line.Text)
		}
	}
	slices.Sort(taken)
	slices.Sort(added)
	return slices.Equal(taken, added)
}

// compareShared looks only whether a chain is there, with the rules of want in it: what
// else others keep there is theirs.
func compareShared(id ruleset.ChainID, have, want *ruleset.Chain) []Difference {
	diff := Difference{Kind: Missing, Chain: id}
	if have != nil {
		diff.Kind = Changed
	}
	for _, rule := range rulesOf(want) {
		if !slices.ContainsFunc(rulesOf(have), func(r ruleset.Rule) bool { return r.String() == rule.String() }) {
			diff.Lines = append(diff.Lines, ruleset.LineDiff{Op: '+', Text: rule.String()})
		}
	}
	if have != nil && len(diff.Lines) == 0 {
		return nil
	}
	return []Difference{diff}
}

func rulesOf(c *ruleset.Chain) []ruleset.Rule {
	if c == nil {
		return nil
	}
	return c.Rules
}

// unreadableChain describes a chain of ours that somebody put a rule into that
// iptables cannot read.
func unreadableChain(id ruleset.ChainID, isWanted bool) Difference {
	diff := Difference{Kind: Changed, Chain: id, Why: iptables.ErrUnreadable.Error() + "; nft list ruleset shows it"}
	if !isWanted {
		diff.Kind = Foreign
	}
	return diff
}

func isUnreadable(err error) bool { return errors.Is(err, iptables.ErrUnreadable) }

// compareJumps compares the jump rules of each built-in chain.
func compareJumps(have ruleset.Ruleset, hooks []ruleset.Hook) []Difference {
	var diffs []Difference
	for _, from := range ruleset.HookedChains(hooks) {
		for _, d := range iptables.CompareJumps(ruleset.HooksIn(hooks, from), rulesOf(have[from])) {
			diffs = append(diffs, fromJump(from, d))
		}
	}
	return diffs
}

// fromJump describes how one jump rule differs.
func fromJump(from ruleset.ChainID, d iptables.JumpDifference) Difference {
	diff := Difference{Kind: Jump, Chain: from, Why: string(d.Fault)}
	line := func(op byte, rule ruleset.Rule) {
		diff.Lines = append(diff.Lines, ruleset.LineDiff{Op: op, Text: rule.String()})
	}
	switch d.Fault {
	case iptables.JumpMissing:
		line('+', d.Rule)
	case iptables.JumpOutOfReach:
		line('+', d.Rule)
		line(' ', d.Behind)
		line('-', d.Rule)
	case iptables.JumpOutOfOrder:
		line(' ', d.Rule)
	case iptables.JumpTwice, iptables.JumpOtherwise:
		line('-', d.Rule)
	}
	return diff
}

func isBuiltin(hooks []ruleset.Hook, id ruleset.ChainID) bool {
	return slices.Contains(ruleset.HookedChains(hooks), id)
}

func rulesetOf(chains []ruleset.Chain) ruleset.Ruleset {
	rs := ruleset.Ruleset{}
	for i := range chains {
		rs[chains[i].ChainID] = &chains[i]
	}
	return rs
}

// String describes the difference in a line, and the rules that differ below it, as
// diff(1) would and in the words of iptables-save.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-7s  %s", d.Kind, d.Chain)
	if d.Why != "" {
		fmt.Fprintf(&b, ": %s", d.Why)
	}
	for _, line := range d.Lines {
		if line.Op == ' ' && d.Kind != Jump {
			continue
		}
		fmt.Fprintf(&b, "\n%c -A %s", line.Op, d.Chain.Name)
		if line.Text != "" {
			b.WriteString(" " + line.Text)
		}
	}
	return b.String()
}
