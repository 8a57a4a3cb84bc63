package e2e

import (
	"errors"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// xtablesLock is the file that iptables-legacy locks. Here /run is the test's own.
const xtablesLock = "/run/xtables.lock"

// An agent whose start has to wait answers probes meanwhile: it is alive and not ready.
// The rules that are there stay. Both the lock of iptables and the API server can keep
// it waiting.
func TestSlowStart(t *testing.T) {
	notForKubeProxy(t, "kube-proxy has no /readyz")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)

		if c.backend == "legacy" { // nft has no lock
			t.Run("the lock is held", func(t *testing.T) {
				release := holdLock(t)
				defer release()
				checkWaitingStart(t, n)
				release()
				n.waitReady(t)
			})
		}
		t.Run("the API server is away", func(t *testing.T) {
			c.cp.stopAPIServer()
			checkWaitingStart(t, n)
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, 4)}}, podA)
			if err := c.cp.startAPIServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.waitReady(t)
		})
		checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, 4)}}, podA)
	})
}

// holdLock holds the lock of iptables until the function that it returns is called.
func holdLock(t *testing.T) (release func()) {
	t.Helper()
	f, err := os.OpenFile(xtablesLock, os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// checkWaitingStart starts the node's agent anew, and checks that it answers although
// it cannot become ready.
func checkWaitingStart(t *testing.T, n *node) {
	t.Helper()
	if err := n.killAgent(); err != nil {
		t.Fatal(err)
	}
	if err := n.startAgent(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent to answer", func() error {
		return errors.Join(n.agent.alive(), n.answers(t, healthAddr, "/livez", http.StatusOK))
	})
	if err := n.answers(t, healthAddr, "/readyz", http.StatusServiceUnavailable); err != nil {
		t.Error(err)
	}
	if err := n.answers(t, metricsAddr, "/healthz", http.StatusOK); err != nil {
		t.Error(err)
	}
}
