package e2e

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// loadBalancerSourceRanges hold for everybody at the VIP, pods and nodes too, and
// nowhere else; they come and go while the Service is used (B-07, B-09).
func TestSourceRanges(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.balancer(t, "s")
		c.waitForEndpoints(t, svc, podA, podB)
		stranger := maskedBy(c.nodes[n1], "stranger", c.stranger(t))
		pod := maskedBy(c.nodes[n1], "pod c", c.pods[podC].Host)
		client, process := c.clientCaller(n1), c.nodeCaller(n1)

		t.Run("everybody without ranges", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				to := vip(svc, family)
				checkWays(t, []wayIn{{client, to}, {stranger, to}, {pod, to}, {process, to}}, podA, podB)
			})
		})
		svc = ns.update(t, "s", sourceRanges("10.9.9.0/24", " fd00:9::9/128 "))
		t.Run("B-09 ranges added", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				eventuallyDropped(t, svc, family, stranger.host)
			})
		})
		t.Run("B-07 only who is in a range", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				to := vip(svc, family)
				checkWays(t, []wayIn{{client, to}}, podA, podB)
				eventuallyDropped(t, svc, family, stranger.host, pod.host, process.host)
			})
		})
		t.Run("B-07 not on other addresses", func(t *testing.T) {
			checkWays(t, []wayIn{
				{stranger, nodePortAt(svc, c.nodes[n1], 4)},
				{stranger, clusterIP(t, svc, 6)},
				{c.podCaller(podC), clusterIP(t, svc, 4)},
			}, podA, podB)
		})
		t.Run("B-07 node in a range", func(t *testing.T) {
			testNodeInRange(t, c, ns)
		})
		svc = ns.update(t, "s", sourceRanges())
		t.Run("B-09 ranges removed", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				to := vip(svc, family)
				checkWays(t, []wayIn{{client, to}, {stranger, to}, {pod, to}, {process, to}}, podA, podB)
			})
		})
	})
}

// eventuallyDropped waits until no host gets a word from the Service's VIP.
func eventuallyDropped(t *testing.T, svc *v1.Service, family int, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		eventually(t, fmt.Sprintf("%s to be dropped at %s", h.Name(), vip(svc, family)), func() error {
			return dropped(t.Context(), h, vip(svc, family))
		})
	}
}

// A node in a range may connect, also where it has the VIP itself and connects with
// the VIP as its source.
func testNodeInRange(t *testing.T, c *cluster, ns *namespace) {
	n := c.nodes[n1]
	svc := ns.update(t, "s", sourceRanges(n.addr(4).String()+"/32", n.addr(6).String()+"/128"))
	forEachFamily(t, func(t *testing.T, family int) {
		to := vip(svc, family)
		eventuallyDropped(t, svc, family, c.net.Client)
		checkWays(t, []wayIn{{c.nodeCaller(n1), to}}, podA, podB)

		cidr := fmt.Sprintf("%s/%d", to.Addr(), to.Addr().BitLen())
		if _, err := n.Run(t.Context(), "ip", "addr", "add", cidr, "dev", "lo"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := n.Run(t.Context(), "ip", "addr", "del", cidr, "dev", "lo"); err != nil {
				t.Error(err)
			}
		}()
		checkWays(t, []wayIn{{c.nodeCaller(n1), to}}, podA, podB)
	})
}
