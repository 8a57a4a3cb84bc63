package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/doctor"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// named returns a program under another name.
func named(t *testing.T, name, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// startOn starts a program on a host, and ends it when the test has ended.
func startOn(t *testing.T, host *lab.Host, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := host.Command(context.WithoutCancel(t.Context()), program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		cmd.Wait() //nolint:errcheck // it was told to end
	})
	return cmd
}

// doctorOn runs doctor on a host, as a process of its own: it asks the agent.
func doctorOn(t *testing.T, host *lab.Host, before []string, args ...string) outcome {
	t.Helper()
	line := slices.Concat(before, []string{self(t), "doctor"}, args)
	var out, errs bytes.Buffer
	cmd := host.Command(t.Context(), line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// mustSay checks that lines of an outcome begin with these words, blanks aside.
func mustSay(t *testing.T, got outcome, want ...string) {
	t.Helper()
	for _, words := range want {
		found := false
		for line := range strings.Lines(got.out) {
			found = found || strings.HasPrefix(strings.Join(strings.Fields(line), " "), words)
		}
		if !found {
			t.Errorf("no line begins with %q in:\n%s%s", words, got.out, got.err)
		}
	}
}

func TestDoctorOnKernel(t *testing.T) {
	l := labtest.New(t)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		host, err := l.Host(string(backend))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(string(backend), func(t *testing.T) { testDoctor(t, host, backend) })
	}
}

func testDoctor(t *testing.T, host *lab.Host, backend iptables.Backend) {
	args := agentArgs(backend)
	got := doctorOn(t, host, nil, args...)
	mustSay(t, got, "warn rules in "+string(backend)+" rules: 0", "bad jump rules IPv4", "bad ip_forward net", "warn agent no miniproxy", "warn health")
	if got.code != exitFailed {
		t.Errorf("before the agent: got exit code %d, want %d", got.code, exitFailed)
	}
	if names := legacyTableNames(t, host); names != "" {
		t.Errorf("looking made the legacy tables %q", names)
	}
	if err := host.Sysctl(lab.Setting{Path: "net/ipv4/ip_forward", Value: "1"}, lab.Setting{Path: "net/ipv6/conf/all/forwarding", Value: "1"}); err != nil {
		t.Fatal(err)
	}
	t.Run("with an agent", func(t *testing.T) { testDoctorLikesAgent(t, host, backend) })
	t.Run("after the agent", func(t *testing.T) { testDoctorOnRules(t, host, backend) })
	if backend == iptables.NFT {
		t.Run("beside the rules", func(t *testing.T) { testDoctorBesideRules(t, host, args) })
	}
}

// testDoctorLikesAgent runs an agent: nothing is bad then.
func testDoctorLikesAgent(t *testing.T, host *lab.Host, backend iptables.Backend) {
	args := agentArgs(backend)
	startOn(t, host, named(t, "miniproxy", self(t)), append([]string{"run"}, args...)...)
	awaitReady(t, host)
	got := doctorOn(t, host, nil, args...)
	mustSay(t, got, "ok backend "+string(backend)+": as configured", "ok jump rules IPv4 all in place", "ok jump rules IPv6 all in place",
		"ok capabilities IPv4", "ok route_localnet on", "ok agent miniproxy (pid ", "ok health http://127.0.0.1:10256/livez answers 200",
		"ok port of healthz 0.0.0.0:10256, miniproxy (pid ", "ok Node object n1", "ok node ports 3 in use")
	if got.code != exitOK {
		t.Errorf("got exit code %d, want %d:\n%s%s", got.code, exitOK, got.out, got.err)
	}
	var findings []doctor.Finding
	asJSON := doctorOn(t, host, nil, append(args, "--output=json")...)
	if err := json.Unmarshal([]byte(asJSON.out), &findings); err != nil || len(findings) != strings.Count(got.out, "\n") {
		t.Errorf("as JSON: got %d findings, %v; want as many as lines in\n%s", len(findings), err, got.out)
	}
	again := doctorOn(t, host, nil, args...)
	if checksIn(again.out) != checksIn(got.out) {
		t.Errorf("the order of lines changes:\n%s\n%s", got.out, again.out)
	}
}

// checksIn are the names of the checks, in order.
func checksIn(text string) string {
	var names []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 {
			names = append(names, words[1])
		}
	}
	return strings.Join(names, " ")
}

// harm is done to a host, found, and undone.
type harm struct {
	name     string
	do, undo []string
	want     string
}

func (h harm) test(t *testing.T, host *lab.Host, args []string) {
	run := func(lines []string) {
		t.Helper()
		for _, line := range lines {
			words := strings.Fields(line)
			if _, err := host.Run(t.Context(), words[0], words[1:]...); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(h.do)
	got := doctorOn(t, host, nil, args...)
	mustSay(t, got, h.want)
	if strings.HasPrefix(h.want, "bad") && got.code != exitFailed {
		t.Errorf("got exit code %d, want %d", got.code, exitFailed)
	}
	run(h.undo)
}

// testDoctorOnRules does harm to what an agent has left.
func testDoctorOnRules(t *testing.T, host *lab.Host, backend iptables.Backend) {
	own, other := "iptables-"+string(backend), "iptables-"+string(otherBackend(backend))
	for _, h := range []harm{
		{
			"a lost jump", []string{own + " -D INPUT -j KUBE-FIREWALL"}, []string{own + " -I INPUT 1 -j KUBE-FIREWALL"},
			"bad jump rules IPv4 filter/INPUT missing",
		},
		{
			"jumps behind a REJECT", []string{own + " -I FORWARD 1 -j REJECT"}, []string{own + " -D FORWARD 1"},
			"bad jump rules IPv4 filter/FORWARD behind a rule that lets no packet past",
		},
		{
			"a chain left in the other backend", []string{other + " -t nat -N KUBE-SVC-LEFTOVER"}, []string{other + " -t nat -X KUBE-SVC-LEFTOVER"},
			"bad rules in " + string(otherBackend(backend)) + " rules: 0, chains of a Service proxy: 1",
		},
		{
			"a rule in the other backend", []string{other + " -A INPUT -j ACCEPT"}, []string{other + " -D INPUT -j ACCEPT"},
			"warn rules in " + string(otherBackend(backend)) + " rules: 1, chains of a Service proxy: 0",
		},
		{"ufw", []string{own + " -N ufw-before-input"}, []string{own + " -X ufw-before-input"}, "warn ufw"},
	} {
		t.Run(h.name, func(t *testing.T) { h.test(t, host, agentArgs(backend)) })
	}
}

// testDoctorBesideRules does harm to what the rules depend on, whatever the backend.
func testDoctorBesideRules(t *testing.T, host *lab.Host, args []string) {
	for _, h := range []harm{
		{"IPVS", []string{"ip link add kube-ipvs0 type veth peer name x"}, []string{"ip link del kube-ipvs0"}, "bad IPVS interface kube-ipvs0"},
		{
			"a strict interface", []string{"ip link add x type veth peer name y", "sysctl -qw net.ipv4.conf.x.rp_filter=1"}, []string{"ip link del x"},
			"warn rp_filter strict on x:",
		},
		{"kube-proxy's nft table", []string{"nft add table ip kube-proxy"}, []string{"nft delete table ip kube-proxy"}, "bad nft tables ip kube-proxy"},
		{"another nft table", []string{"nft add table inet firewalld"}, []string{"nft delete table inet firewalld"}, "warn nft tables beside those of iptables: inet firewalld"},
		{"no forwarding", []string{"sysctl -qw net.ipv4.ip_forward=0"}, []string{"sysctl -qw net.ipv4.ip_forward=1"}, "bad ip_forward net.ipv4.ip_forward is 0"},
	} {
		t.Run(h.name, func(t *testing.T) { h.test(t, host, args) })
	}
	t.Run("a node port in use", func(t *testing.T) {
		listener, err := host.Listen(t.Context(), "tcp", "0.0.0.0:30080")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		mustSay(t, doctorOn(t, host, nil, args...), "bad node ports miniproxy.test (pid ")
	})
	t.Run("the agent's port in use", func(t *testing.T) {
		listener, err := host.Listen(t.Context(), "tcp", "127.0.0.1:10256")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		mustSay(t, doctorOn(t, host, nil, args...), "bad port of healthz miniproxy.test (pid ")
	})
	t.Run("kube-proxy", func(t *testing.T) {
		startOn(t, host, named(t, "kube-proxy", "sleep"), "60")
		mustSay(t, doctorOn(t, host, nil, args...), "bad kube-proxy kube-proxy (pid ")
	})
	t.Run("the loop", func(t *testing.T) {
		kubeconfig := write(t, "kubeconfig", loopConfig)
		got := doctorOn(t, host, nil, "--kubeconfig="+kubeconfig, "--hostname-override=n1")
		mustSay(t, got, "bad cluster cannot reach the API server at https://kubernetes.default.svc:443")
	})
	t.Run("without rights", func(t *testing.T) {
		got := doctorOn(t, host, []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}, args...)
		mustSay(t, got, "warn backend could not look: needs root", "warn nft tables could not look: needs root", "ok ip_forward on", "ok Node object n1")
		if got.code != exitOK {
			t.Errorf("got exit code %d, want %d: what could not be looked at is not bad\n%s", got.code, exitOK, got.out)
		}
	})
}

const loopConfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://kubernetes.default.svc:443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// Whoever holds the lock for longer than a program takes is named.
func TestDoctorNamesLockHolder(t *testing.T) {
	e := newExamination()
	e.lockFile, e.lockPause = write(t, "lock", ""), 0
	e.choice.Backend = iptables.Legacy
	e.checkLock(t.Context())
	f, err := os.Open(e.lockFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	e.checkLock(t.Context())
	if len(e.findings) != 2 || e.findings[0].Level != doctor.OK || e.findings[1].Level != doctor.Bad || !strings.Contains(e.findings[1].Found, "miniproxy.test (pid ") {
		t.Errorf("got %+v, want one that is ok and one that is bad and names this process", e.findings)
	}
}
