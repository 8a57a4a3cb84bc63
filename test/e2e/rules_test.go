package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// hasComment reports whether a line of iptables-save has text in its comment, as a
// whole word: "ns/a" is not in "ns/a-b".
func hasComment(save, text string) bool {
	word := regexp.MustCompile(`--comment [^\n]*(^|[\s"])` + regexp.QuoteMeta(text) + `($|[\s":])`)
	return word.MatchString(save)
}

// foreignRules are rules of other programs, in iptables-restore form, %s being a
// documentation range of the family.
const foreignRules = `*mangle
:OTHER-MANGLE - [0:0]
-A PREROUTING -j OTHER-MANGLE
-A OTHER-MANGLE -s %[1]s -j MARK --set-xmark 0x1/0x1
COMMIT
*nat
:OTHER-NAT - [0:0]
-A POSTROUTING -j OTHER-NAT
-A OTHER-NAT -s %[1]s -m comment --comment "not a KUBE-SERVICES rule" -j MASQUERADE
COMMIT
*filter
:OTHER-FILTER - [0:0]
-A INPUT -s %[1]s -j DROP
-A FORWARD -j OTHER-FILTER
-A OTHER-FILTER -s %[1]s -j DROP
COMMIT
`

// kubeletRules are what the kubelet writes on its node, by family. Its chains look
// like the agent's, and one of them they have in common.
var kubeletRules = map[int]string{
	4: `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
`,
	6: `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
`,
}

// documentation is a range that no host has, by family.
var documentation = map[int]string{4: "192.0.2.0/24", 6: "2001:db8::/32"}

// plantForeignRules writes rules of other programs on all nodes, those of a kubelet on
// n2, and notes what the nodes then hold.
func (c *cluster) plantForeignRules(ctx context.Context) error {
	for name, n := range c.nodes {
		n.pristine = map[int]string{}
		for _, family := range families {
			if err := n.plant(ctx, family); err != nil {
				return err
			}
			if name == n2 {
				if err := n.restore(ctx, family, kubeletRules[family], "--noflush"); err != nil {
					return err
				}
			}
			rules, err := n.save(ctx, family)
			if err != nil {
				return err
			}
			n.pristine[family] = rules
		}
	}
	return nil
}

// plant writes foreignRules in one family.
func (n *node) plant(ctx context.Context, family int) error {
	return n.restore(ctx, family, fmt.Sprintf(foreignRules, documentation[family]), "--noflush")
}

// restore runs iptables-restore. Without --noflush the tables in the input replace
// those of the node, whole.
func (n *node) restore(ctx context.Context, family int, input string, args ...string) error {
	cmd := n.Command(ctx, tool(family)+"-"+n.backend+"-restore", append([]string{"-w"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("restore: %w: %s\n%s", err, out, input)
	}
	return nil
}

// builtIns are the tables and their built-in chains, as iptables-save orders them.
var builtIns = map[string][]string{
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
}

// save returns the node's rules of one family in a form that can be compared: no
// counters, no times, chains in one order, and no built-in chain that does nothing.
// Whether an empty table exists depends on who looked at it last.
func (n *node) save(ctx context.Context, family int) (string, error) {
	text, err := n.iptables(ctx, tool(family)+"-save")
	if err != nil {
		return "", err
	}
	return normalize(text), nil
}

var counters = regexp.MustCompile(` \[\d+:\d+\]$`)

// normalize is save's work on the text.
func normalize(save string) string {
	var out, chains, rules []string
	var table string
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '*':
			table, chains, rules = line[1:], nil, nil
		case line[0] == ':':
			line = counters.ReplaceAllString(line, "")
			name, policy, _ := strings.Cut(line[1:], " ")
			if !slices.Contains(builtIns[table], name) || policy != "ACCEPT" {
				chains = append(chains, line)
			}
		case line == "COMMIT":
			slices.Sort(chains)
			// Stable: the order of a chain's rules is their meaning.
			slices.SortStableFunc(rules, func(a, b string) int { return strings.Compare(chainOf(a), chainOf(b)) })
			if len(chains)+len(rules) > 0 {
				out = slices.Concat(out, []string{"*" + table}, chains, rules)
			}
		default:
			rules = append(rules, line)
		}
	}
	return strings.Join(out, "\n") + "\n"
}

// chainOf is the chain that a line "-A CHAIN ..." adds to.
func chainOf(rule string) string {
	fields := strings.Fields(rule)
	if len(fields) < 2 {
		return ""
	}
	return fields[1]
}

// lineDiff shows what two texts do not have in common, for a failure's message.
func lineDiff(got, want string) string {
	have, need := strings.Split(got, "\n"), strings.Split(want, "\n")
	var out []string
	for _, line := range need {
		if !slices.Contains(have, line) {
			out = append(out, "missing: "+line)
		}
	}
	for _, line := range have {
		if !slices.Contains(need, line) {
			out = append(out, "extra:   "+line)
		}
	}
	if len(out) == 0 && got != want {
		out = append(out, "the same lines in another order")
	}
	return strings.Join(out, "\n")
}
