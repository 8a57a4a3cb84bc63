package ruleset

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	// insideEnv marks a test process that has a network namespace of its own.
	insideEnv = "MINIPROXY_TEST_NAMESPACE"
	// requireEnv turns a test that is skipped for want of privileges into a failed one.
	requireEnv = "MINIPROXY_REQUIRE_ROOT"
)

// inNamespace runs the calling test once more in a process with a network
// namespace of its own, and reports whether the caller is that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1", "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "xtables.lock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	output, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC):
		if os.Getenv(requireEnv) != "" {
			t.Fatalf("no network namespace, and %s is set: %v", requireEnv, err)
		}
		t.Skipf("needs a network namespace: %v", err)
	case err != nil:
		t.Fatalf("in a network namespace: %v\n%s", err, output)
	}
	t.Logf("in a network namespace:\n%s", output)
	return false
}

// tool runs one of the iptables commands and returns its standard output.
func tool(t *testing.T, input []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv(requireEnv) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s\ninput:\n%s", name, args, err, stderr.String(), input)
	}
	return stdout.Bytes()
}

// spelledRules is a ruleset of all spellings that a family takes, in chains that no
// packet reaches.
func spelledRules(ipv6 bool) Ruleset {
	rs := Ruleset{}
	for _, table := range []Table{NAT, Filter} {
		for _, name := range []string{"A", "TARGET"} {
			rs[ChainID{table, name}] = &Chain{ChainID: ChainID{table, name}}
		}
	}
	for _, s := range spellings {
		table := s.table
		if table == "" {
			table = NAT
		}
		if s.any || s.ipv6 == ipv6 {
			c := rs[ChainID{table, "A"}]
			c.Rules = append(c.Rules, s.rule)
		}
	}
	c := rs[ChainID{NAT, "A"}]
	for _, comment := range []string{
		strings.Repeat("x", MaxComment), strings.Repeat("é", 200), "-t", "a\nb\tc", `\`, `"`, `'`, `\"'$(x) ;|&`, "!", "# not a comment", strings.Repeat("\"", MaxComment),
	} {
		c.Rules = append(c.Rules, Rule{Comment: comment})
	}
	for n := 2; n < 100; n++ {
		c.Rules = append(c.Rules, Rule{Matches: []Match{Chance(n)}})
	}
	return rs
}

// allOf turns a ruleset into the transaction that writes it.
func allOf(rs Ruleset) transaction {
	var t transaction
	for _, table := range rs.Tables() {
		change := tableChange{table: table}
		for _, c := range rs.Chains(table) {
			change.write = append(change.write, *c)
		}
		t = append(t, change)
	}
	return t
}

var commands = []struct {
	name   string
	prefix string
	ipv6   bool
}{
	{"nft IPv4", "iptables-nft", false},
	{"legacy IPv4", "iptables-legacy", false},
	{"nft IPv6", "ip6tables-nft", true},
	{"legacy IPv6", "ip6tables-legacy", true},
}

// TestKernelHoldsWhatIsWritten restores every spelling and expects iptables-save to
// show the same text, rule by rule.
func TestKernelHoldsWhatIsWritten(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, command := range commands {
		t.Run(command.name, func(t *testing.T) {
			want := spelledRules(command.ipv6)
			tool(t, allOf(want).input(), command.prefix+"-restore", "--noflush")
			saved := tool(t, nil, command.prefix+"-save")
			have, err := Decode(saved)
			if err != nil {
				t.Fatalf("%v in:\n%s", err, saved)
			}
			for id := range have {
				if id.IsBuiltin() {
					delete(have, id)
				}
			}
			for _, d := range Diff(have, want) {
				t.Error(d)
			}
			for id, c := range want {
				for i, r := range c.Rules {
					line := "-A " + id.Name + " " + r.String() + "\n"
					if strings.Contains(r.Comment, "-t") || r.String() == "" {
						continue // quoted only here, or a line without words
					}
					if !bytes.Contains(saved, []byte(line)) {
						t.Errorf("rule %d of %s: iptables-save prints no line %q", i, id, line)
					}
				}
			}
		})
	}
}

// TestKernelAgreesWithApply runs transactions against a kernel and against a
// ruleset in memory: both must refuse the same ones and hold the same rules after
// all of them.
func TestKernelAgreesWithApply(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	chain := func(name string, actions ...Action) Chain {
		c := Chain{ChainID: ChainID{NAT, name}}
		for _, a := range actions {
			c.Rules = append(c.Rules, Rule{Action: a})
		}
		return c
	}
	nat := func(write []Chain, remove ...string) transaction {
		return transaction{{NAT, write, remove}}
	}
	steps := []struct {
		name    string
		change  transaction
		refused bool
	}{
		{"write", nat([]Chain{chain("A", Jump{"B"}, Return{}), chain("B", Goto{"C"}), chain("C", Accept{})}), false},
		{"jump to a missing chain", nat([]Chain{chain("A", Jump{"NONE"})}), true},
		{"remove a chain in use", nat(nil, "C"), true},
		{"remove the user with it", nat(nil, "B", "C"), true},
		{"replace the user", nat([]Chain{chain("A", Return{})}, "B"), false},
		{"remove the last", nat(nil, "C"), false},
		{"remove what is not there", nat(nil, "D"), false},
		{"a loop that nothing gets into", nat([]Chain{chain("A", Jump{"E"}), chain("E", Jump{"A"})}), false},
		{"remove a loop's half", nat([]Chain{chain("A", Jump{"E"}), chain("E")}), false},
		{"hook", nat([]Chain{chain("PREROUTING", Return{})}), false},
		{"hook again", nat([]Chain{chain("PREROUTING", Return{}, Accept{})}), false},
		{"remove two that call each other", nat(nil, "A", "E"), false},
		{"name too long", nat([]Chain{chain(strings.Repeat("X", MaxChainName+1))}), true},
		{"longest name", nat([]Chain{chain(strings.Repeat("X", MaxChainName))}), false},
		{"second table fails", transaction{
			{table: NAT, write: []Chain{chain("F", Return{})}},
			{table: Filter, write: []Chain{{ChainID: ChainID{Filter, "G"}, Rules: []Rule{{Action: Jump{"NONE"}}}}}},
		}, true},
	}
	for _, command := range commands {
		t.Run(command.name, func(t *testing.T) {
			rs := Ruleset{}
			for _, step := range steps {
				before := string(rs.Append(nil))
				err := rs.apply(step.change)
				if (err != nil) != step.refused {
					t.Errorf("%s: in memory: error %v, want one: %v", step.name, err, step.refused)
				}
				if err != nil && len(step.change) == 1 && string(rs.Append(nil)) != before {
					t.Errorf("%s: refused, but changed the ruleset", step.name)
				}
				cmd := exec.CommandContext(t.Context(), command.prefix+"-restore", "--noflush")
				cmd.Stdin = bytes.NewReader(step.change.input())
				if output, err := cmd.CombinedOutput(); (err != nil) != step.refused {
					t.Errorf("%s: %s: error %v, want one: %v\n%s", step.name, cmd, err, step.refused, output)
				}
			}
			have, err := Decode(tool(t, nil, command.prefix+"-save"))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range Diff(have, rs) {
				if d.Kind != Extra || !d.IsBuiltin() {
					t.Error(d)
				}
			}
		})
	}
}

// TestNFTRefusesLoops shows what apply refuses too. The legacy tables accept a loop.
func TestNFTRefusesLoops(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	loop := transaction{{table: NAT, write: []Chain{
		{ChainID: ChainID{NAT, "A"}, Rules: []Rule{{Action: Jump{"A"}}}},
		{ChainID: ChainID{NAT, "OUTPUT"}, Policy: "ACCEPT", Rules: []Rule{{Action: Jump{"A"}}}},
	}}}
	cmd := exec.CommandContext(t.Context(), "iptables-nft-restore", "--noflush")
	cmd.Stdin = bytes.NewReader(loop.input())
	if err := cmd.Run(); err == nil {
		t.Error("the kernel takes a loop")
	}
	if err := (Ruleset{}).apply(loop); err == nil {
		t.Error("apply takes a loop")
	}
}

// TestKernelReadsArgs appends every spelling through the command line.
func TestKernelReadsArgs(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, command := range commands {
		t.Run(command.name, func(t *testing.T) {
			want := spelledRules(command.ipv6)
			for _, table := range want.Tables() {
				for _, c := range want.Chains(table) {
					tool(t, nil, command.prefix, "-t", string(table), "-N", c.Name)
				}
				for _, c := range want.Chains(table) {
					c.Rules = c.Rules[:min(len(c.Rules), 70)]
					for _, r := range c.Rules {
						tool(t, nil, command.prefix, append([]string{"-t", string(table), "-A", c.Name}, r.Args()...)...)
					}
				}
			}
			have, err := Decode(tool(t, nil, command.prefix+"-save"))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range Diff(have, want) {
				if d.Kind != Extra || !d.IsBuiltin() {
					t.Error(d)
				}
			}
		})
	}
}
