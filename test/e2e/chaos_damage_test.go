package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The faults of the kernel's tables. None applies while the test holds the lock of
// iptables itself.

// change runs iptables on a node. A refusal means that the rule or chain is not there
// any more, since agents work on the same tables.
func (ch *chaos) change(ctx context.Context, at target, args ...string) error {
	if ch.lock != nil {
		return errNotNow
	}
	if _, err := at.iptables(ctx, tool(at.family), append([]string{"-w"}, args...)...); err != nil {
		ch.note("refused: %v", err)
		return errNotNow
	}
	return nil
}

// flushTable empties a table, as many a script does, and writes the rules of other
// programs again.
func (ch *chaos) flushTable(ctx context.Context, at target) (string, ending, error) {
	table := tables[ch.IntN(len(tables))]
	if err := ch.change(ctx, at, "-t", table, "-F"); err != nil {
		return "", nil, err
	}
	what := fmt.Sprintf("%s %s -t %s -F", at.Plan.Name, tool(at.family), table)
	if ch.IntN(2) == 0 {
		what += ", -X"
		// An agent that is quick has filled some chains again, and those stay.
		_ = ch.change(ctx, at, "-t", table, "-X")
	}
	return what, nil, at.replant(ctx, at.family, table)
}

// edit returns a fault that changes one chain of ours, which holds at least one rule.
func edit(arguments func(ch *chaos, chain *ruleset.Chain) [][]string) func(*chaos, context.Context, target) (string, ending, error) {
	return func(ch *chaos, ctx context.Context, at target) (string, ending, error) {
		chain, err := ch.chooseChain(ctx, at)
		if err != nil {
			return "", nil, err
		}
		commands := arguments(ch, chain)
		if len(commands) == 0 {
			return "", nil, errNotNow
		}
		for i, args := range commands {
			if err := ch.change(ctx, at, append([]string{"-t", string(chain.Table)}, args...)...); err != nil && i == 0 {
				return "", nil, err
			}
		}
		return fmt.Sprintf("%s %s -t %s %s", at.Plan.Name, tool(at.family), chain.Table, commands), nil, nil
	}
}

// chooseChain chooses a chain of ours with rules in it.
func (ch *chaos) chooseChain(ctx context.Context, at target) (*ruleset.Chain, error) {
	own, err := at.own(ctx, at.family)
	if err != nil {
		return nil, err
	}
	var chains []*ruleset.Chain
	for _, chain := range own {
		if len(chain.Rules) > 0 {
			chains = append(chains, chain)
		}
	}
	if len(chains) == 0 {
		return nil, errNotNow
	}
	slices.SortFunc(chains, func(a, b *ruleset.Chain) int { return a.ChainID.Compare(b.ChainID) })
	return chains[ch.IntN(len(chains))], nil
}

func flushChain(_ *chaos, chain *ruleset.Chain) [][]string {
	return [][]string{{"-F", chain.Name}}
}

// place is the number of one of a chain's rules.
func (ch *chaos) place(chain *ruleset.Chain) string {
	return strconv.Itoa(1 + ch.IntN(len(chain.Rules)))
}

func deleteRule(ch *chaos, chain *ruleset.Chain) [][]string {
	return [][]string{{"-D", chain.Name, ch.place(chain)}}
}

// strayRule is a rule that somebody else would write.
func (ch *chaos) strayRule(table ruleset.Table) []string {
	rules := [][]string{{"-j", "RETURN"}, {"-j", "ACCEPT"}, {"-p", "tcp", "-m", "comment", "--comment", "stray", "-j", "RETURN"}, {"-p", "udp"}}
	if table == ruleset.Filter {
		rules = append(rules, []string{"-j", "DROP"}, []string{"-p", "tcp", "-j", "REJECT"})
	}
	return rules[ch.IntN(len(rules))]
}

func insertRule(ch *chaos, chain *ruleset.Chain) [][]string {
	return [][]string{append([]string{"-I", chain.Name, ch.place(chain)}, ch.strayRule(chain.Table)...)}
}

func replaceRule(ch *chaos, chain *ruleset.Chain) [][]string {
	return [][]string{append([]string{"-R", chain.Name, ch.place(chain)}, ch.strayRule(chain.Table)...)}
}

// reverseRules moves a chain's rules, one by one, to where the last one was.
func reverseRules(_ *chaos, chain *ruleset.Chain) [][]string {
	var commands [][]string
	if chain.Rules[0].String() == chain.Rules[len(chain.Rules)-1].String() {
		return nil
	}
	for _, rule := range chain.Rules[:len(chain.Rules)-1] {
		commands = append(commands, append([]string{"-D", chain.Name}, rule.Args()...))
	}
	for _, rule := range slices.Backward(chain.Rules[:len(chain.Rules)-1]) {
		commands = append(commands, append([]string{"-A", chain.Name}, rule.Args()...))
	}
	return commands
}

func (ch *chaos) chooseHook() ruleset.Hook {
	hooks := render.Hooks()
	return hooks[ch.IntN(len(hooks))]
}

func (ch *chaos) deleteJump(ctx context.Context, at target) (string, ending, error) {
	hook := ch.chooseHook()
	args := append([]string{"-t", string(hook.From.Table), "-D", hook.From.Name}, hook.Rule.Args()...)
	return fmt.Sprintf("%s %s %s", at.Plan.Name, tool(at.family), args), nil, ch.change(ctx, at, args...)
}

func (ch *chaos) doubleJump(ctx context.Context, at target) (string, ending, error) {
	hook := ch.chooseHook()
	args := append([]string{"-t", string(hook.From.Table), "-A", hook.From.Name}, hook.Rule.Args()...)
	return fmt.Sprintf("%s %s %s", at.Plan.Name, tool(at.family), args), nil, ch.change(ctx, at, args...)
}

// finalRules are rules of other programs behind which no jump rule of ours is reached.
func finalRules(family int) []ruleset.Hook {
	refuse := ruleset.Reject{With: "icmp-port-unreachable"}
	if family == 6 {
		refuse.With = "icmp6-port-unreachable"
	}
	return []ruleset.Hook{
		{From: ruleset.ChainID{Table: ruleset.NAT, Name: "PREROUTING"}, Rule: ruleset.Rule{Action: ruleset.Accept{}}},
		{From: ruleset.ChainID{Table: ruleset.NAT, Name: "OUTPUT"}, Rule: ruleset.Rule{Action: ruleset.Accept{}}},
		{From: ruleset.ChainID{Table: ruleset.NAT, Name: "POSTROUTING"}, Rule: ruleset.Rule{Action: ruleset.Accept{}}},
		{From: ruleset.ChainID{Table: ruleset.Filter, Name: "FORWARD"}, Rule: ruleset.Rule{Action: refuse}},
	}
}

// putFinalRule puts a rule that ends a built-in chain before our jump rules. Ours are
// expected to move before it; then it goes.
func (ch *chaos) putFinalRule(ctx context.Context, at target) (string, ending, error) {
	rules := finalRules(at.family)
	rule := rules[ch.IntN(len(rules))]
	if at.final[at.family] != nil {
		return "", nil, errNotNow
	}
	args := func(verb string) []string {
		return append([]string{"-t", string(rule.From.Table), verb, rule.From.Name}, rule.Rule.Args()...)
	}
	if err := ch.change(ctx, at, args("-I")...); err != nil {
		return "", nil, err
	}
	at.final[at.family] = &rule
	return fmt.Sprintf("%s %s %s", at.Plan.Name, tool(at.family), args("-I")), func(ctx context.Context) error {
		at.final[at.family] = nil
		return ch.change(ctx, at, args("-D")...)
	}, nil
}

func (ch *chaos) removeCanary(ctx context.Context, at target) (string, ending, error) {
	table := tables[ch.IntN(len(tables))]
	if err := ch.change(ctx, at, "-t", table, "-F", render.CanaryChain); err != nil {
		return "", nil, err
	}
	_ = ch.change(ctx, at, "-t", table, "-X", render.CanaryChain) // unless it is back already
	return fmt.Sprintf("%s %s -t %s", at.Plan.Name, tool(at.family), table), nil, nil
}
