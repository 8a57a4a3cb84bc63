package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// While another program holds the lock of iptables-legacy, traffic goes on and the
// agent tries again; what changed meanwhile is written when the lock is free (B-43).
func TestLockHeldForLong(t *testing.T) {
	notForKubeProxy(t, "waits for words of miniproxy's log")
	onBackend(t, "legacy", func(t *testing.T, c *cluster) { // nft has no lock
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		l := startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4))

		release := holdLock(t)
		defer release()
		before, said := saveAll(t, n), fileSize(n.log())
		ns.pod(t, "s", podB)
		late := ns.serviceUnseen(t, "late")
		// Each failure is five seconds of waiting for the lock.
		for range 4 {
			n.waitForLog(t, said, "Sync failed")
			said = fileSize(n.log())
		}
		for family, want := range before {
			if got := saveAll(t, n)[family]; got != want {
				t.Errorf("%s rules changed under the lock:\n%s", familyName(family), lineDiff(got, want))
			}
		}
		release()
		c.waitForEndpoints(t, svc, podA, podB)
		c.waitForRules(t, late, portName(late))
		l.stop(t)
	})
}

// inOwnMounts is a call of the agent that sees other mounts than everybody else:
// script makes them, and starts "$@".
func (n *node) inOwnMounts(script string, extra ...string) *exec.Cmd {
	args := append([]string{"--mount", "sh", "-ec", script, "sh", agentProgram()}, n.agentArgs(n.kubeconfig, extra...)...)
	cmd := n.Command(context.Background(), "unshare", args...)
	cmd.Env = n.env()
	return cmd
}

// The agent works where nothing can be written but rules: /run read-only, the lock of
// iptables on a disk that is full, and a full disk under its log.
func TestNothingWritable(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		tests := []struct {
			name, script string
		}{
			{"read-only /run", `mount -o remount,bind,ro /run; if touch /run/x; then exit 9; fi; exec "$@"`},
			{"full disks", `
				mount -t tmpfs -o size=4k tmpfs /mnt
				export XTABLES_LOCKFILE=/mnt/xtables.lock
				touch $XTABLES_LOCKFILE
				if cat /dev/zero >/mnt/full; then exit 9; fi
				exec "$@" >/dev/full 2>&1`},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				n.restartAs(t, n.inOwnMounts(tt.script))
				if err := c.settle(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// A configuration that cannot be written down is an error, and says why.
func TestWriteConfigToFullDisk(t *testing.T) {
	notForKubeProxy(t, "says it in other words")
	onBackend(t, backends[0], func(t *testing.T, c *cluster) {
		cmd := c.nodes[n1].command("run", "--write-config-to=/dev/full")
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != 1 || !strings.Contains(string(out), "no space left on device") {
			t.Errorf("exit status %d (%v), want 1 and the reason:\n%s", got, err, out)
		}
	})
}

// When the way to the API server loses every packet and nobody says so, the rules stay,
// the node stays healthy, and what changed meanwhile arrives over a new connection: no
// RST will ever tell that the old one is dead (B-62).
func TestSilentAPIServer(t *testing.T) {
	notForKubeProxy(t, "the same library")
	onBackend(t, backends[0], func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)
		cmd := n.command(n.agentArgs(n.kubeconfig)...)
		// Instead of 30 s and 15 s, which pkg/config's tests spend in virtual time.
		cmd.Env = append(cmd.Env, "HTTP2_READ_IDLE_TIMEOUT_SECONDS=5", "HTTP2_PING_TIMEOUT_SECONDS=3")
		n.restartAs(t, cmd)
		n.waitReady(t)
		l := startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4))

		lost := c.loseConnections(t, n)
		before := saveAll(t, n)
		ns.pod(t, "s", podB)
		late := ns.serviceUnseen(t, "late")
		if err := c.nodes[n2].waitForRule(t.Context(), 4, portName(late)); err != nil {
			t.Fatal(err)
		}
		if !lost.isGone(t, n) { // a slow machine may have taken longer than the pings
			for family, want := range before {
				if got := saveAll(t, n)[family]; got != want {
					t.Errorf("%s rules changed:\n%s", familyName(family), lineDiff(got, want))
				}
			}
		}
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if err := n.answers(t, healthAddr, path, http.StatusOK); err != nil {
				t.Error(err)
			}
		}
		c.waitForEndpoints(t, svc, podA, podB)
		c.waitForRules(t, late, portName(late))
		if !lost.isGone(t, n) {
			t.Error("the agent still has the old connection, so that nothing was lost")
		}
		l.stop(t)
	})
}

// connections are TCP connections by the port that they have on the node.
type connections []string

// connectionsTo lists a node's connections to the API server.
func connectionsTo(t *testing.T, n *node) connections {
	t.Helper()
	out, err := n.Run(t.Context(), "ss", "-Htn", "state", "established",
		"dst", fmt.Sprintf("%s:%d", controlAddrs[0].Addr(), apiPort))
	if err != nil {
		t.Fatal(err)
	}
	var ports connections
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			t.Fatalf("ss printed %q", line)
		}
		ports = append(ports, fields[2][strings.LastIndex(fields[2], ":")+1:])
	}
	return ports
}

// loseConnections has the control plane's host take and send no packet any more of the
// connections that a node has now.
func (c *cluster) loseConnections(t *testing.T, n *node) connections {
	t.Helper()
	lost := connectionsTo(t, n)
	if len(lost) == 0 {
		t.Fatal("the agent has no connection to the API server")
	}
	for _, port := range lost {
		to := []string{"INPUT", "-s", n.addr(4).String(), "-p", "tcp", "--sport", port, "-j", "DROP"}
		from := []string{"OUTPUT", "-d", n.addr(4).String(), "-p", "tcp", "--dport", port, "-j", "DROP"}
		for _, rule := range [][]string{to, from} {
			if _, err := c.cp.host.Run(t.Context(), "iptables-nft", append([]string{"-I"}, rule...)...); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := c.cp.host.Run(context.Background(), "iptables-nft", append([]string{"-D"}, rule...)...); err != nil {
					t.Error(err)
				}
			})
		}
	}
	return lost
}

// isGone reports whether the agent has given up all of the connections.
func (lost connections) isGone(t *testing.T, n *node) bool {
	t.Helper()
	for _, now := range connectionsTo(t, n) {
		for _, port := range lost {
			if now == port {
				return false
			}
		}
	}
	return true
}
