package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// victim is a node whose agent finds restore programs that can be told to fail.
type victim struct {
	*node
	t *testing.T
	// flags are the agent's, and those of render.
	flags []string
	// switches is where the programs look for what to do wrong.
	switches string
	// foreign are the rules of other programs, by family and table; edited are the
	// families in which there is one more of them, and final has the rule of
	// putFinalRule.
	foreign map[int]map[string]string
	edited  map[int]bool
	final   map[int]*ruleset.Hook
	// busy says that the agent does not run: it was ended or stopped.
	busy bool
	// saidBefore is how long the log was when the agent was started.
	saidBefore int64
}

// restoreScript stands before the restore programs.
const restoreScript = `
cd %[1]s
while [ -e hang ]; do sleep 0.02; done
for file in fail-*; do
	rm "$file" 2>/dev/null && exit 1
done
for file in lie-*; do
	rm "$file" 2>/dev/null && { (real "$@"); exit 1; }
done
real "$@"`

// addVictims puts an agent on each node that can be made to fail; that of n2 writes
// trees.
func (ch *chaos) addVictims(t *testing.T) {
	t.Helper()
	for _, name := range []string{n1, n2} {
		n := ch.nodes[name]
		v := &victim{
			node: n, t: t, switches: t.TempDir(),
			foreign: map[int]map[string]string{}, edited: map[int]bool{}, final: map[int]*ruleset.Hook{},
		}
		if name == n2 {
			v.flags = []string{"--flat-dispatch-limit=4", "--flat-balance-limit=2"}
		}
		for _, family := range families {
			v.foreign[family] = foreignTables(n.pristine[family])
		}
		ch.victims = append(ch.victims, v)
		ch.restoreAgent(t, n)
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		if err := v.start(); err != nil {
			t.Fatal(err)
		}
	}
}

// start starts the victim's agent.
func (v *victim) start() (err error) {
	cmd := v.wrap(v.t, fmt.Sprintf(restoreScript, v.switches), "iptables-restore", "ip6tables-restore")
	cmd.Args = append(cmd.Args, v.flags...)
	v.saidBefore = fileSize(v.log())
	v.agent, err = startProcess("agent on "+v.Plan.Name, v.log(), cmd)
	return err
}

// foreignTables splits what save returned into the tables' rules of other programs.
func foreignTables(save string) map[string]string {
	texts := map[string]string{}
	table := ""
	for line := range strings.Lines(save) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		} else if !isAgents(line) {
			texts[table] += line
		}
	}
	return texts
}

// isAgents reports whether a line of save is the agent's own: a chain, a rule in one,
// or a jump rule.
func isAgents(line string) bool {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return true
	}
	name := strings.TrimPrefix(fields[0], ":")
	if fields[0] == "-A" {
		name = fields[1]
		if i := slices.Index(fields, "-j"); i > 0 && !strings.HasPrefix(name, "KUBE-") {
			name = fields[i+1]
		}
	}
	kubelets := name == "KUBE-IPTABLES-HINT" || name == "KUBE-KUBELET-CANARY"
	return strings.HasPrefix(name, "KUBE-") && !kubelets
}

// replant writes the rules of other programs in a table that was flushed.
func (v *victim) replant(ctx context.Context, family int, table string) error {
	input := fmt.Sprintf("*%s\n%sCOMMIT\n", table, v.wanted(family)[table])
	return v.restore(ctx, family, input, "--noflush")
}

// extraRule is what foreignEdit writes and removes, by family.
var extraRule = map[int]string{4: "-A OTHER-FILTER -s 198.51.100.0/24 -j ACCEPT\n", 6: "-A OTHER-FILTER -s 2001:db8:1::/48 -j ACCEPT\n"}

// wanted are the rules of other programs as they should be, by table.
func (v *victim) wanted(family int) map[string]string {
	texts := map[string]string{}
	for table, text := range v.foreign[family] {
		texts[table] = text
	}
	if v.edited[family] {
		texts["filter"] += extraRule[family]
	}
	if final := v.final[family]; final != nil {
		table := string(final.From.Table)
		texts[table] = fmt.Sprintf("-A %s %s\n", final.From.Name, final.Rule) + texts[table]
	}
	return texts
}

// foreignEdit is another program that changes its own rules.
func (ch *chaos) foreignEdit(ctx context.Context, v *victim, family int) (what string, err error) {
	verb := "-A"
	if v.edited[family] {
		verb = "-D"
	}
	what = fmt.Sprintf("another program's rule, %s, on %s, %s", verb, v.Plan.Name, familyName(family))
	args := splitRule(strings.TrimPrefix(strings.TrimSpace(extraRule[family]), "-A "))
	err = ch.change(ctx, target{v, family}, append([]string{verb}, args...)...)
	if err == nil {
		v.edited[family] = !v.edited[family]
	}
	if errors.Is(err, errNotNow) {
		err = nil
	}
	return what, err
}

// foreignText is the text of tables that can be compared: rules in the order of their
// chains, built-in chains as they are.
func foreignText(texts map[string]string) string {
	var out strings.Builder
	for _, table := range tables {
		lines := slices.DeleteFunc(strings.Split(texts[table], "\n"), func(line string) bool { return line == "" })
		slices.SortStableFunc(lines, func(a, b string) int {
			return cmp.Compare(a[:1]+chainOf(a), b[:1]+chainOf(b))
		})
		fmt.Fprintf(&out, "*%s\n%s\n", table, strings.Join(lines, "\n"))
	}
	return out.String()
}
