package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// errNotNow is a fault's answer when it does not apply as things are.
var errNotNow = errors.New("does not apply now")

// fault is one kind of what goes wrong.
type fault struct {
	name string
	// weight is how often it is chosen.
	weight int
	// damages says that packets miss rules from then on until they are repaired.
	damages bool
	// late says that the fault lasts until the kernel was looked at.
	late bool
	// only is the backend that has such a thing, empty for both.
	only string
	// do does it, says what it did, and returns what ends it, if it lasts.
	do func(ch *chaos, ctx context.Context, at target) (what string, end ending, err error)
}

// target is a node, and one of its families.
type target struct {
	*victim
	family int
}

func faultKinds() []fault {
	return []fault{
		{name: "table flushed", weight: 2, damages: true, do: (*chaos).flushTable},
		{name: "chain flushed", weight: 3, damages: true, do: edit(flushChain)},
		{name: "rule deleted", weight: 3, damages: true, do: edit(deleteRule)},
		{name: "rule inserted", weight: 3, damages: true, do: edit(insertRule)},
		{name: "rule replaced", weight: 3, damages: true, do: edit(replaceRule)},
		{name: "rules reordered", weight: 2, damages: true, do: edit(reverseRules)},
		{name: "jump rule deleted", weight: 3, damages: true, do: (*chaos).deleteJump},
		{name: "jump rule doubled", weight: 1, do: (*chaos).doubleJump},
		{name: "final rule put first", weight: 2, damages: true, late: true, do: (*chaos).putFinalRule},
		{name: "canary removed", weight: 1, do: (*chaos).removeCanary},

		{name: "agent killed", weight: 3, do: endAgent(syscall.SIGKILL)},
		{name: "agent terminated", weight: 2, do: endAgent(syscall.SIGTERM)},
		{name: "agent stopped", weight: 2, do: (*chaos).stopAgent},
		{name: "restore fails", weight: 3, do: (*chaos).failRestore},
		{name: "restore reports a failure wrongly", weight: 1, do: (*chaos).lieAboutRestore},
		{name: "restore hangs", weight: 2, do: (*chaos).hangRestore},
		{name: "lock held", weight: 2, only: "legacy", do: (*chaos).holdLock},
		{name: "API server restarted", weight: 1, do: (*chaos).restartAPI},
		{name: "API connection reset", weight: 1, do: cutAPI("REJECT", "--reject-with", "tcp-reset")},
		{name: "API connection silent", weight: 1, do: cutAPI("DROP")},
	}
}

// choose chooses a kind of fault that the backend has.
func (ch *chaos) choose() fault {
	var all []fault
	for _, f := range faultKinds() {
		if f.only == "" || f.only == ch.backend {
			all = append(all, slices.Repeat([]fault{f}, f.weight)...)
		}
	}
	return all[ch.IntN(len(all))]
}

// faultsMustHappen fails the test if a kind of fault never happened in a run that was
// long enough for it.
func (ch *chaos) faultsMustHappen(t *testing.T) {
	t.Helper()
	total := 0
	for _, n := range ch.tally.faults {
		total += n
	}
	for _, f := range faultKinds() {
		if (f.only == "" || f.only == ch.backend) && total >= 1000 && ch.tally.faults[f.name] == 0 {
			t.Errorf("of %d faults none was %q", total, f.name)
		}
	}
}

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

// The faults of agents and of what they run.

// endAgent returns a fault that ends an agent; another one is started later.
func endAgent(signal syscall.Signal) func(*chaos, context.Context, target) (string, ending, error) {
	return func(ch *chaos, _ context.Context, at target) (string, ending, error) {
		v := at.victim
		if v.busy {
			return "", nil, errNotNow
		}
		if err := v.agent.alive(); err != nil {
			return "", nil, err
		}
		// Before its first words it may not have come to handle signals.
		if signal != syscall.SIGKILL && fileSize(v.log()) == v.saidBefore {
			return "", nil, errNotNow
		}
		if err := v.agent.end(signal); err != nil && signal != syscall.SIGKILL {
			return "", nil, fmt.Errorf("%s: it ended with %w", v.Plan.Name, err)
		}
		v.busy = true
		return v.Plan.Name, func(context.Context) error {
			v.busy = false
			return v.start()
		}, nil
	}
}

func (ch *chaos) stopAgent(_ context.Context, at target) (string, ending, error) {
	v := at.victim
	if v.busy {
		return "", nil, errNotNow
	}
	if err := v.agent.signal(syscall.SIGSTOP); err != nil {
		return "", nil, err
	}
	v.busy = true
	return v.Plan.Name, func(context.Context) error {
		v.busy = false
		return v.agent.signal(syscall.SIGCONT)
	}, nil
}

// misbehave has the node's restore programs find a file.
func (v *victim) misbehave(file string) error {
	return os.WriteFile(filepath.Join(v.switches, file), nil, 0o644)
}

func (ch *chaos) failRestore(_ context.Context, at target) (string, ending, error) {
	times := 1 + ch.IntN(3)
	for i := range times {
		if err := at.misbehave(fmt.Sprintf("fail-%d", i)); err != nil {
			return "", nil, err
		}
	}
	return fmt.Sprintf("%s, %d times", at.Plan.Name, times), nil, nil
}

func (ch *chaos) lieAboutRestore(_ context.Context, at target) (string, ending, error) {
	return at.Plan.Name, nil, at.misbehave("lie-0")
}

func (ch *chaos) hangRestore(_ context.Context, at target) (string, ending, error) {
	hang := filepath.Join(at.switches, "hang")
	if _, err := os.Stat(hang); err == nil {
		return "", nil, errNotNow
	}
	return at.Plan.Name, func(context.Context) error { return os.Remove(hang) }, at.misbehave("hang")
}

// lockFile is the lock of the legacy backend.
const lockFile = "/run/xtables.lock"

func (ch *chaos) holdLock(context.Context, target) (string, ending, error) {
	if ch.lock != nil {
		return "", nil, errNotNow
	}
	f, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock %s: %w", lockFile, err), f.Close())
	}
	ch.lock = f
	return "all nodes", func(context.Context) error {
		ch.lock = nil
		return f.Close()
	}, nil
}

// The faults of the API server, and of the way there.

func (ch *chaos) restartAPI(context.Context, target) (string, ending, error) {
	if ch.apiDown {
		return "", nil, errNotNow
	}
	ch.cp.stopAPIServer()
	ch.apiDown = true
	return "", func(ctx context.Context) error {
		ch.apiDown = false
		return ch.cp.startAPIServer(ctx)
	}, nil
}

// cutAPI returns a fault of the control plane's host: it stops a node's packets to the
// API server for a while.
func cutAPI(action ...string) func(*chaos, context.Context, target) (string, ending, error) {
	return func(ch *chaos, ctx context.Context, at target) (string, ending, error) {
		rule := append([]string{"INPUT", "-s", at.addr(4).String(), "-p", "tcp", "--dport", strconv.Itoa(apiPort), "-j"}, action...)
		run := func(ctx context.Context, verb string) error {
			_, err := ch.cp.host.Run(ctx, "iptables-nft", append([]string{verb}, rule...)...)
			return err
		}
		return at.Plan.Name, func(ctx context.Context) error { return run(ctx, "-D") }, run(ctx, "-I")
	}
}

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
