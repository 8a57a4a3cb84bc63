package iptables

import (
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// foundRule is a rule that is in a built-in chain now.
type foundRule struct {
	// spec is its text behind "-A CHAIN ", as the programs print it and take it.
	spec string
	// rule is what it means, zero if that could not be read: a foreign rule then.
	rule ruleset.Rule
}

// insertion puts a rule at a position of a chain, counted from 1.
type insertion struct {
	at   int
	rule ruleset.Rule
}

// jumpPlan is what is to be done to one built-in chain. The deletions come first,
// and the positions are those after them.
type jumpPlan struct {
	from   ruleset.ChainID
	remove []string
	insert []insertion
	// bypassed says that packets get past a wanted rule before the plan is carried out.
	bypassed bool
}

// planJumps decides how a built-in chain gets each wanted rule exactly once, in
// the order given and in front of whatever ends the chain for every packet.
//
// Foreign rules may stand before and between ours: other programs insert at the
// head of the same chains, and two of them that both insist on the first place
// would rewrite the chain forever. So what is missing is put behind its
// predecessor, or at the head if it has none, and only a duplicate, a wrong order,
// an old spelling of a jump to one of the same chains, or a rule behind a foreign
// final one makes all of ours move to the head.
func planJumps(want []ruleset.Rule, have []foundRule) jumpPlan {
	rules := make([]ruleset.Rule, len(have))
	for i, found := range have {
		rules[i] = found.rule
	}
	var plan jumpPlan
	onlyMissing := true
	for _, diff := range CompareJumps(want, rules) {
		onlyMissing = onlyMissing && diff.Fault == JumpMissing
		plan.bypassed = plan.bypassed || diff.Fault == JumpMissing || diff.Fault == JumpOutOfReach
	}
	if onlyMissing {
		plan.fill(want, rules)
	} else {
		plan.rewrite(want, have)
	}
	return plan
}

// fill puts each missing rule behind its predecessor; the others are in order.
func (p *jumpPlan) fill(want, have []ruleset.Rule) {
	next := 1
	for _, rule := range want {
		if at := slices.IndexFunc(have, func(r ruleset.Rule) bool { return sameRule(r, rule) }); at >= 0 {
			next = at + len(p.insert) + 2
			continue
		}
		p.insert = append(p.insert, insertion{at: next, rule: rule})
		next++
	}
}

// rewrite takes all of ours out and puts what is wanted at the head.
func (p *jumpPlan) rewrite(want []ruleset.Rule, have []foundRule) {
	for _, found := range have {
		if targets(want, found.rule.Target()) {
			p.remove = append(p.remove, found.spec)
		}
	}
	for i, rule := range want {
		p.insert = append(p.insert, insertion{at: i + 1, rule: rule})
	}
}

// targets reports whether one of the rules jumps to the chain.
func targets(rules []ruleset.Rule, chain string) bool {
	return chain != "" && slices.ContainsFunc(rules, func(r ruleset.Rule) bool { return r.Target() == chain })
}

// sameRule reports whether two rules have the same matches, in any order, and the
// same comment and action. Programs of other versions can print another order, and
// a rule that is not recognised would be written again and again.
func sameRule(a, b ruleset.Rule) bool {
	return a.Comment == b.Comment && a.Action == b.Action && slices.Equal(matchTexts(a), matchTexts(b))
}

func matchTexts(r ruleset.Rule) []string {
	texts := make([]string, len(r.Matches))
	for i, m := range r.Matches {
		texts[i] = ruleset.Rule{Matches: []ruleset.Match{m}}.String()
	}
	slices.Sort(texts)
	return texts
}

// isFinal reports whether no packet gets past the rule in its chain.
func isFinal(r ruleset.Rule) bool {
	if len(r.Matches) > 0 {
		return false
	}
	switch action := r.Action.(type) {
	case ruleset.Accept, ruleset.Drop, ruleset.Reject, ruleset.Return, ruleset.Goto,
		ruleset.DNAT, ruleset.Masquerade:
		return true
	case ruleset.UnknownAction:
		words := strings.Fields(action.Text)
		return len(words) > 1 && slices.Contains([]string{"SNAT", "REDIRECT", "NETMAP", "NFQUEUE", "QUEUE"}, words[1])
	}
	return false
}

// readRules reads the lines that iptables -S prints for a chain. A target is taken
// for a chain if isChain says so.
func readRules(id ruleset.ChainID, lines []string, isChain func(name string) bool) []foundRule {
	prefix := "-A " + id.Name + " "
	var found []foundRule
	for _, line := range joinLines(lines) {
		spec, ok := strings.CutPrefix(line, prefix)
		if !ok {
			continue // the chain's declaration
		}
		found = append(found, foundRule{spec: spec, rule: readRule(id, spec, isChain)})
	}
	return found
}

// joinLines puts rules together again whose comment holds a newline.
func joinLines(lines []string) []string {
	var joined []string
	for _, line := range lines {
		if last := len(joined) - 1; last >= 0 && !strings.HasPrefix(line, "-") {
			joined[last] += "\n" + line
			continue
		}
		joined = append(joined, line)
	}
	return joined
}

// readRule decodes the text of one rule, on its own so that a foreign rule that
// cannot be decoded hides no other. The zero Rule says that it could not be.
func readRule(id ruleset.ChainID, spec string, isChain func(name string) bool) ruleset.Rule {
	text := "*" + string(id.Table) + "\n"
	if !id.IsBuiltin() {
		text += ":" + id.Name + " - [0:0]\n"
	}
	for word := range strings.FieldsSeq(spec) {
		if isChain(word) {
			text += ":" + word + " - [0:0]\n"
		}
	}
	text += "-A " + id.Name + " " + spec + "\nCOMMIT\n"
	decoded, err := ruleset.Decode([]byte(text))
	if err != nil {
		return ruleset.Rule{}
	}
	return decoded[id].Rules[0]
}
