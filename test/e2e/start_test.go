package e2e

import (
	"errors"
	"net/http"
	"testing"
)

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
