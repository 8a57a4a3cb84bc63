package e2e

import (
	"testing"
)

func TestClusterIP(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s")
		forEachFamily(t, func(t *testing.T, family int) {
			addr := clusterIP(t, svc, family)
			eventuallyServedBy(t, c.pods[podC].Host, addr, podA, podB)
			eventuallyServedBy(t, c.pods[podD].Host, addr, podA, podB)
			eventuallyServedBy(t, c.nodes[n1].Host, addr, podA, podB)
			eventuallyServedBy(t, c.net.Client, addr, podA, podB)
		})
	})
}
