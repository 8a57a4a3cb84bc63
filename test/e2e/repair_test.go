package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// tables are the tables that the agent has chains in.
var tables = []string{"mangle", "nat", "filter"}

// A table that somebody flushes and empties is filled again, with the same rules in
// the same order, whichever of the tables it is.
func TestFlushIsRepaired(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		ways := []wayIn{
			{c.podCaller(podC), clusterIP(t, svc, 4)},
			{c.clientCaller(n1), nodePortAt(svc, n, 6)},
		}
		checkWays(t, ways, podA)
		for _, table := range tables {
			for _, family := range families {
				t.Run(table+"/"+familyName(family), func(t *testing.T) {
					want := n.saveOurs(t, family)
					n.flush(t, family, table)
					eventually(t, "the rules to be back", func() error {
						if got := n.saveOurs(t, family); got != want {
							return fmt.Errorf("%s", lineDiff(got, want))
						}
						return n.agent.alive()
					})
					checkWays(t, ways, podA)
				})
			}
		}
		c.replantForeignRules(t, n)
	})
}

// flush empties a table and removes its chains, as many a script does.
func (n *node) flush(t *testing.T, family int, table string) {
	t.Helper()
	if _, err := n.iptables(t.Context(), tool(family), "-w", "-t", table, "-F"); err != nil {
		t.Fatal(err)
	}
	// An agent that is quick has filled some chains again, and those stay.
	if _, err := n.iptables(t.Context(), tool(family), "-w", "-t", table, "-X"); err != nil {
		t.Log(err)
	}
}

// saveOurs is save without the rules of other programs.
func (n *node) saveOurs(t *testing.T, family int) string {
	t.Helper()
	text, err := n.save(t.Context(), family)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(text) {
		if !isForeign(line) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// isForeign reports whether a line is one of foreignRules or firewallRules.
func isForeign(line string) bool {
	for _, mark := range []string{"OTHER-", documentation[4], documentation[6], "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}

// replantForeignRules writes what a flush has taken from other programs.
func (c *cluster) replantForeignRules(t *testing.T, n *node) {
	t.Helper()
	for _, family := range families {
		for _, table := range tables {
			n.unplant(t, family, table)
		}
		if err := n.plant(t.Context(), family); err != nil {
			t.Fatal(err)
		}
	}
}

// unplant removes what is left of foreignRules in a table.
func (n *node) unplant(t *testing.T, family int, table string) {
	t.Helper()
	text, err := n.iptables(t.Context(), tool(family)+"-save", "-t", table)
	if err != nil {
		t.Fatal(err)
	}
	var chains, rules []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !isForeign(line):
		case line[0] == ':':
			chains = append(chains, "-X "+strings.Fields(line[1:])[0])
		default:
			rules = append(rules, "-D"+strings.TrimPrefix(line, "-A"))
		}
	}
	input := fmt.Sprintf("*%s\n%s\n%s\nCOMMIT\n", table, strings.Join(rules, "\n"), strings.Join(chains, "\n"))
	if err := n.restore(t.Context(), family, input, "--noflush"); err != nil {
		t.Fatal(err)
	}
}

// firewallRules are what a host firewall loads when it starts, in the place of all
// that is there: the host takes answers only, and forwards nothing.
const firewallRules = `*mangle
COMMIT
*nat
COMMIT
*filter
:INPUT ACCEPT
:FORWARD DROP
:OUTPUT ACCEPT
:OTHER-FIREWALL -
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -j OTHER-FIREWALL
-A FORWARD -j OTHER-FIREWALL
-A OTHER-FIREWALL -j REJECT
COMMIT
`

// A host firewall that replaces all tables and ends its chains with a REJECT does not
// keep node ports from working: the jump rules come back, and before its own (B-47,
// B-48).
func TestHostFirewall(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podB)
		way := wayIn{c.clientCaller(n1), nodePortAt(svc, n, 4)}
		checkWays(t, []wayIn{way}, podB)

		if err := n.restore(t.Context(), 4, firewallRules); err != nil {
			t.Fatal(err)
		}
		defer n.removeFirewall(t, c)
		checkWays(t, []wayIn{way}, podB)
		// What is no Service's is the firewall's to decide.
		eventually(t, "the firewall to refuse what is forwarded", func() error {
			return refused(t.Context(), c.pods[podC].Host, c.pods[podA].addrPort(4))
		})
	})
}

// removeFirewall removes firewallRules and writes again what they had replaced.
func (n *node) removeFirewall(t *testing.T, c *cluster) {
	t.Helper()
	for _, args := range [][]string{
		{"-P", "FORWARD", "ACCEPT"},
		{"-D", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"-D", "INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
	} {
		if _, err := n.iptables(context.Background(), "iptables", append([]string{"-w"}, args...)...); err != nil {
			t.Error(err)
		}
	}
	c.replantForeignRules(t, n)
}

// Jump rules that somebody deletes come back where they were, the others staying
// single (B-45, B-56).
func TestDeletedJumpsAreRepaired(t *testing.T) {
	notForKubeProxy(t, "kube-proxy looks at its jump rules once an hour")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		want := n.saveOurs(t, 4)
		for _, jump := range jumpsOf(want) {
			if _, err := n.iptables(t.Context(), "iptables", append([]string{"-w", "-t", jump.table, "-D"}, jump.args...)...); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the jumps to be back", func() error {
			if got := n.saveOurs(t, 4); got != want {
				return fmt.Errorf("%s", lineDiff(got, want))
			}
			return n.agent.alive()
		})
	})
}

// jump is a rule in a built-in chain.
type jump struct {
	table string
	args  []string // after -A
}

// jumpsOf finds one rule of each built-in chain that leads to a chain of ours.
func jumpsOf(save string) []jump {
	var jumps []jump
	var table, last string
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table, last = name, ""
			continue
		}
		chain := chainOf(line)
		if !strings.HasPrefix(line, "-A ") || strings.HasPrefix(chain, "KUBE-") || chain == last {
			continue
		}
		last = chain
		jumps = append(jumps, jump{table: table, args: splitRule(strings.TrimPrefix(line, "-A "))})
	}
	return jumps
}

// splitRule splits a rule of iptables-save into arguments; comments have quotes.
func splitRule(rule string) []string {
	var args []string
	for i, part := range strings.Split(rule, `"`) {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	return args
}
