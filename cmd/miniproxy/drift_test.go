package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// driftNode is a node with an agent on it that serves one Service with two endpoints.
type driftNode struct {
	*lab.Node
	t       *testing.T
	backend iptables.Backend
	said    *logText
	agent   *os.Process
	// manifests is where the agent reads what to serve.
	manifests string
}

// command is the agent's.
func (n *driftNode) command(more ...string) *exec.Cmd {
	return n.Command(context.WithoutCancel(n.t.Context()), self(n.t), append([]string{"run", "--manifests=" + n.manifests,
		"--hostname-override=n1", "--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--conntrack-max-per-core=0", "--oom-score-adj=0",
		"--v=2", "--iptables-backend=" + string(n.backend), "--iptables-sync-period=1s"}, more...)...)
}

// logText is what an agent has said so far.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newDriftNode(t *testing.T, backend iptables.Backend) *driftNode {
	t.Helper()
	n := newIdleDriftNode(t, backend)
	cmd := n.command()
	n.start(cmd)
	n.agent = cmd.Process
	eventually(t, "the agent is ready", func() bool {
		_, err := page(t, n.Node, "http://127.0.0.1:10256/readyz")
		return err == nil
	})
	n.awaitLooks(1)
	return n
}

// newIdleDriftNode returns a node on which the agent does not run yet.
func newIdleDriftNode(t *testing.T, backend iptables.Backend) *driftNode {
	t.Helper()
	if !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	// The lock of the legacy backend is a file, which namespaces of networks share.
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "xtables.lock"))
	n := &driftNode{Node: labtest.NewCluster(t).Node("n1"), t: t, backend: backend, said: &logText{}}
	dir := t.TempDir()
	pods := []*failoverPod{{addrs: n.Plan.PodAddrs(10)}, {addrs: n.Plan.PodAddrs(11)}}
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(failoverManifests(pods...)), 0o644); err != nil {
		t.Fatal(err)
	}
	n.manifests = dir
	return n
}

// start starts an agent that ends with the test.
func (n *driftNode) start(cmd *exec.Cmd) {
	t := n.t
	t.Helper()
	cmd.Stdout, cmd.Stderr = n.said, n.said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("agent: %v", err)
		}
		if t.Failed() {
			t.Logf("the agents said:\n%s", n.said)
		}
	})
}

// program is such as ip6tables-nft-save.
func (n *driftNode) program(family model.Family, suffix string) string {
	name := "iptables-"
	if family == model.IPv6 {
		name = "ip6tables-"
	}
	return name + string(n.backend) + suffix
}

// as runs a program as somebody else would.
func (n *driftNode) as(program string, args ...string) string {
	n.t.Helper()
	out, err := n.Run(n.t.Context(), program, args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// rules are what the node holds, without counters and times.
func (n *driftNode) rules(family model.Family) string {
	n.t.Helper()
	var kept []string
	for line := range strings.Lines(n.as(n.program(family, "-save"))) {
		if line[0] != '#' {
			kept = append(kept, regexp.MustCompile(`\[\d+:\d+\]`).ReplaceAllString(line, ""))
		}
	}
	return strings.Join(kept, "")
}

// chain finds the Service chain of the Service, or that of its first endpoint.
func (n *driftNode) chain(family model.Family, prefix string) string {
	n.t.Helper()
	names := regexp.MustCompile(`(?m)^:(`+prefix+`[A-Z0-9]+) `).FindAllStringSubmatch(n.rules(family), -1)
	if len(names) == 0 {
		n.t.Fatalf("no chain %s…", prefix)
	}
	return names[0][1]
}

// looks is how often the rules of both families were compared with what was written.
func (n *driftNode) looks() int {
	text, err := page(n.t, n.Node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return 0
	}
	counts := regexp.MustCompile(`miniproxy_inspections_total\{.*\} (\d+)`).FindAllStringSubmatch(text, -1)
	least := 1 << 30
	for _, c := range counts {
		count, err := strconv.Atoi(c[1])
		if err != nil {
			n.t.Fatal(err)
		}
		least = min(least, count)
	}
	if len(counts) < len(model.Families) {
		return 0
	}
	return least
}

// awaitLooks waits until the rules of each family were looked at so many times more.
func (n *driftNode) awaitLooks(more int) {
	n.t.Helper()
	before := n.looks()
	// A look that took 0.2 s on a busy machine is followed by 20 s without one.
	within(n.t, 5*time.Minute, "the rules are looked at", func() bool { return n.looks() >= before+more })
}

// damages are what can be done to the rules. SVC and SEP stand for chains of the Service
// and of an endpoint of it; kind is what the agent is to call it.
var damages = []struct {
	name string
	cmds []string
	kind string
}{
	{"a chain is flushed", []string{"-t nat -F SVC"}, "SVC flushed"},
	{"a rule is deleted", []string{"-t nat -D SVC 1"}, "SVC removed"},
	{"a rule is inserted", []string{"-t nat -I SVC -j RETURN"}, "SVC inserted"},
	{"a rule is replaced by one of the same size", []string{"-t nat -R KUBE-POSTROUTING 1 -m mark ! --mark 0x8000/0x8000 -j RETURN"}, "KUBE-POSTROUTING replaced"},
	{"a chain is deleted and made again", []string{"-t nat -F SVC", "-t nat -F KUBE-SERVICES", "-t nat -X SVC", "-t nat -N SVC"}, "SVC deleted"},
	{"a jump is lost", []string{"-t nat -F PREROUTING"}, ""},
	{"jumps are behind a REJECT", []string{"-t filter -I FORWARD -j REJECT"}, ""},
	{"a table is flushed", []string{"-t filter -F"}, ""},
}

// TestDriftIsRepaired does each damage on both backends and families, and waits until
// the rules are what they were.
func TestDriftIsRepaired(t *testing.T) {
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			n := newDriftNode(t, backend)
			for _, family := range model.Families {
				n.t = t
				chains := strings.NewReplacer("SVC", n.chain(family, "KUBE-SVC-"), "SEP", n.chain(family, "KUBE-SEP-"))
				for _, damage := range damages {
					t.Run(family.String()+"/"+damage.name, func(t *testing.T) {
						n.t = t
						n.repairs(family, damage.cmds, chains, chains.Replace(damage.kind))
					})
				}
			}
			n.t = t // of the log that is shown in the end
		})
	}
}

// repairs does a damage and waits until it is repaired, and the agent has called it by
// its name.
func (n *driftNode) repairs(family model.Family, cmds []string, chains *strings.Replacer, kind string) {
	n.t.Helper()
	want, said := n.rules(family), len(n.said.String())
	for _, cmd := range cmds {
		// An agent that is quick can be in the way of the later ones.
		args := append([]string{"-w"}, strings.Fields(chains.Replace(cmd))...)
		if _, err := n.Run(n.t.Context(), n.program(family, ""), args...); err != nil && len(cmds) == 1 {
			n.t.Fatal(err)
		}
	}
	if slices.ContainsFunc(cmds, func(cmd string) bool { return strings.Contains(cmd, "REJECT") }) {
		reject := "-A FORWARD -j REJECT"
		eventually(n.t, "the jumps stand before what ends the chain", func() bool {
			rules := n.rules(family)
			return strings.Index(rules, reject) > strings.LastIndex(rules, "-A FORWARD -m")
		})
		n.as(n.program(family, ""), "-w", "-t", "filter", "-D", "FORWARD", "-j", "REJECT")
	}
	eventually(n.t, "the rules are what they were", func() bool { return n.rules(family) == want })
	if kind == "" || len(cmds) > 1 {
		return
	}
	eventually(n.t, "the log says "+kind, func() bool { return strings.Contains(n.said.String()[said:], "nat/"+kind) })
	if by := "by=\"" + n.program(family, "") + " (pid"; n.backend == iptables.NFT && !strings.Contains(n.said.String()[said:], by) {
		n.t.Errorf("the log does not say %s", by)
	}
}

// state is something that any write to the tables of the agent's changes.
func (n *driftNode) state(family model.Family) (state string) {
	n.t.Helper()
	err := n.Do(func() error {
		kernel, err := iptables.New(n.t.Context(), family, n.backend)
		if err != nil {
			return err
		}
		if n.backend == iptables.NFT {
			look, err := kernel.LookNFT()
			if err != nil {
				return err
			}
			defer look.Close()
			generation, err := look.Generation()
			state = fmt.Sprint(generation)
			return err
		}
		for _, table := range []ruleset.Table{ruleset.Filter, ruleset.NAT, ruleset.Mangle} {
			print, err := kernel.Fingerprint(table)
			if err != nil {
				return err
			}
			state += fmt.Sprint(print)
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return state
}

// TestIdleAgentWritesNothing looks at the kernel while the agent looks at it several
// times, and then while somebody else works in chains of his own.
func TestIdleAgentWritesNothing(t *testing.T) {
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			n := newDriftNode(t, backend)
			states := func() []string { return []string{n.state(model.IPv4), n.state(model.IPv6)} }
			// A generation that nobody has changed is not looked at again on nft, so that
			// the syncs are counted there.
			idle := func() {
				if backend == iptables.Legacy {
					n.awaitLooks(3)
				}
				n.awaitSyncs(3)
			}
			before := states()
			idle()
			if after := states(); !slices.Equal(after, before) {
				t.Errorf("an idle agent has made %v of %v", after, before)
			}
			for _, family := range model.Families {
				n.as(n.program(family, ""), "-w", "-t", "nat", "-N", "OTHER")
				n.as(n.program(family, ""), "-w", "-t", "nat", "-A", "OTHER", "-j", "RETURN")
				n.as(n.program(family, ""), "-w", "-t", "nat", "-A", "PREROUTING", "-j", "OTHER")
			}
			before = states()
			n.awaitLooks(1)
			n.awaitSyncs(3)
			if after := states(); !slices.Equal(after, before) {
				t.Errorf("a foreign change had the agent make %v of %v", after, before)
			}
			if said := n.said.String(); strings.Contains(said, "Repaired") || strings.Count(said, "Wrote all rules") > len(model.Families) {
				t.Error("the agent has repaired something")
			}
		})
	}
}

// awaitSyncs waits for syncs of each family that find nothing to do.
func (n *driftNode) awaitSyncs(more int) {
	n.t.Helper()
	count := func() int {
		text, err := page(n.t, n.Node, "http://127.0.0.1:10249/metrics")
		if err != nil {
			return 0
		}
		least := 1 << 30
		for _, c := range regexp.MustCompile(`miniproxy_syncs_total\{.*trigger="change"\} (\d+)`).FindAllStringSubmatch(text, -1) {
			count, err := strconv.Atoi(c[1])
			if err != nil {
				n.t.Fatal(err)
			}
			least = min(least, count)
		}
		return least
	}
	before := count()
	eventually(n.t, "the agent syncs", func() bool { now := count(); return now < 1<<30 && now >= before%(1<<30)+more })
}

// TestMissedNoticesAreMadeUpFor has the kernel lose the notice of an edit: the agent is
// stopped while more is changed than the kernel keeps for it.
func TestMissedNoticesAreMadeUpFor(t *testing.T) {
	n := newDriftNode(t, iptables.NFT)
	want, chain := n.rules(model.IPv4), n.chain(model.IPv4, "KUBE-SVC-")
	var flood strings.Builder
	flood.WriteString("*mangle\n:OTHER - [0:0]\n")
	for range 20_000 {
		flood.WriteString("-A OTHER -m comment --comment \"" + strings.Repeat("x", 200) + "\" -j RETURN\n")
	}
	flood.WriteString("COMMIT\n")
	if err := n.agent.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		cmd := n.Command(t.Context(), "iptables-nft-restore", "--noflush")
		cmd.Stdin = strings.NewReader(flood.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	n.as("iptables-nft", "-t", "nat", "-F", chain)
	n.as("iptables-nft", "-t", "mangle", "-F", "OTHER")
	n.as("iptables-nft", "-t", "mangle", "-X", "OTHER")
	if err := n.agent.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rules are what they were", func() bool { return n.rules(model.IPv4) == want })
	eventually(t, "the log says that it is not known who it was", func() bool {
		return strings.Contains(n.said.String(), `by="unknown" chains=1 first=["nat/`+chain+` flushed"]`)
	})
	if strings.Count(n.said.String(), "Wrote all rules") > len(model.Families) {
		t.Error("everything was written again")
	}
}

// TestTwoAgentsNoticeEachOther has two agents repair what the other one writes.
func TestTwoAgentsNoticeEachOther(t *testing.T) {
	n := newDriftNode(t, iptables.NFT)
	n.start(n.command("--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10248"))
	for _, what := range []string{"Another proxy seems to run on this node", "A fight about the rules"} {
		eventually(t, what, func() bool { return strings.Contains(n.said.String(), what) })
	}
	waits := regexp.MustCompile(`miniproxy_repair_wait_seconds\{ip_family="IPv[46]"\} [1-9]`)
	// Which of the two is the first to wait is chance.
	eventually(t, "the metrics say that repairs wait", func() bool {
		for _, port := range []string{"10248", "10249"} {
			if text, err := page(t, n.Node, "http://127.0.0.1:"+port+"/metrics"); err == nil && waits.MatchString(text) {
				return true
			}
		}
		return false
	})
}
