package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// holdXtablesLock takes the lock of the programs that this test and its children run,
// and returns what gives it back.
func holdXtablesLock(t *testing.T) (unlock func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

const waitsForTables = "Cannot get at the iptables tables"

// A lock that another program holds when the agent starts, for longer than a program
// waits for it, delays the agent and does not end it. It says so once.
func TestAgentStartsUnderLock(t *testing.T) {
	host, err := labtest.New(t).Host("n1")
	if err != nil {
		t.Fatal(err)
	}
	manifests := write(t, "services.yaml", degradedServices)
	unlock := holdXtablesLock(t)
	defer unlock()

	stopped := startDegraded(t, host, iptables.Legacy, "/nowhere", "--manifests="+manifests)
	agent := startDegraded(t, host, iptables.Legacy, "/nowhere", "--manifests="+manifests)
	for _, a := range []*degradedAgent{stopped, agent} {
		eventually(t, "the agent waits for the tables", func() bool { return strings.Contains(a.said.String(), waitsForTables) })
	}
	stopped.stop(t) // with exit status 0
	unlock()
	awaitReady(t, host)
	agent.stop(t)
	if got := strings.Count(agent.said.String(), waitsForTables); got != 1 {
		t.Errorf("the agent says %d times that it waits, want once:\n%s", got, agent.said.String())
	}
	mustHaveNo(t, host, iptables.Legacy)
}

// Without the right to get at the tables there is nothing to wait for.
func TestAgentWithoutRights(t *testing.T) {
	host, err := labtest.New(t).Host("n1")
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			cmd := host.Command(t.Context(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", self(t), "run",
				"--manifests="+write(t, "services.yaml", degradedServices), "--hostname-override=n1", "--iptables-backend="+string(backend))
			text, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != exitFailed {
				t.Errorf("got %v, want exit status %d:\n%s", err, exitFailed, text)
			}
		})
	}
}

const (
	routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"
	guardRule     = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8"
)

// --init-only lets packets to 127.0.0.0/8 be routed, and guards it: where the guard
// cannot be had the setting is left alone.
func TestInitOnly(t *testing.T) {
	tests := []struct {
		name    string
		lacking []string
		args    []string
		want    string // of route_localnet
		rules   []string
	}{
		{
			name:  "node ports on loopback",
			want:  "1",
			rules: []string{guardRule, "-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL"},
		},
		{
			name: "none of them",
			args: []string{"--iptables-localhost-nodeports=false"},
			want: "0",
		},
		{
			name:    "no guard",
			lacking: []string{"-m conntrack"},
			want:    "0",
		},
	}
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		for _, test := range tests {
			t.Run(string(backend)+"/"+test.name, func(t *testing.T) {
				host, err := labtest.New(t).Host("n1")
				if err != nil {
					t.Fatal(err)
				}
				if err := host.Sysctl(lab.Setting{Path: "net/ipv4/conf/all/route_localnet", Value: "0"}); err != nil {
					t.Fatal(err)
				}
				programs := lackingPrograms(t, backend, model.Families[:], test.lacking...)
				for range 2 { // a pod may be started again
					agent := startDegraded(t, host, backend, programs, append(test.args, "--init-only")...)
					if err := agent.cmd.Wait(); err != nil {
						t.Fatalf("%v:\n%s", err, agent.said.String())
					}
				}
				if got, err := host.Run(t.Context(), "cat", routeLocalnet); err != nil || strings.TrimSpace(got) != test.want {
					t.Errorf("route_localnet: got %q, %v; want %s", got, err, test.want)
				}
				saved, err := host.Run(t.Context(), "iptables-"+string(backend)+"-save")
				if err != nil {
					t.Fatal(err)
				}
				for _, rule := range test.rules {
					if got := strings.Count(saved, rule); got != 1 {
						t.Errorf("%d of %s in:\n%s", got, rule, saved)
					}
				}
				if got := strings.Count(saved, "-A "); got != len(test.rules) {
					t.Errorf("%d rules, want %d:\n%s", got, len(test.rules), saved)
				}
			})
		}
	}
}
