package e2e

import (
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// externalTrafficPolicy Local concerns who comes from outside: it stays on the node it
// came to, with its own address. Pods and nodes reach all endpoints (B-05).
func TestExternalTrafficPolicyLocal(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podB)
		svc := ns.balancer(t, "s", externalLocal, withExternalIPs)
		c.waitForEndpoints(t, svc, podB)
		first, second := c.nodes[n1], c.nodes[n2]

		t.Run("B-05 no endpoint on the node", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				outer := []netip.AddrPort{vip(svc, family), externalIP(svc, family), nodePortAt(svc, first, family)}
				for _, to := range outer {
					checkWays(t, []wayIn{{c.podCaller(podC), to}, {c.nodeCaller(n1), to}}, podB)
					eventually(t, "the client outside to be dropped at "+to.String(), func() error {
						return dropped(t.Context(), c.net.Client, to)
					})
				}
				checkWays(t, []wayIn{
					{c.keptClient(n2), nodePortAt(svc, second, family)},
					{c.clientCaller(n1), clusterIP(t, svc, family)},
				}, podB)
			})
		})

		ns.pod(t, "s", podA)
		t.Run("B-05 endpoints on both nodes", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				at := nodePortAt(svc, first, family)
				checkWays(t, []wayIn{{c.keptClient(n1), vip(svc, family)}, {c.keptClient(n1), at}}, podA)
				checkWays(t, []wayIn{{c.keptClient(n2), nodePortAt(svc, second, family)}}, podB)
				checkWays(t, []wayIn{
					{c.podCaller(podC), vip(svc, family)}, {c.podCaller(podC), at},
					{c.nodeCaller(n1), vip(svc, family)}, {c.nodeCaller(n1), at},
				}, podA, podB)
			})
		})
		t.Run("B-11 a node's own 127.0.0.1", func(t *testing.T) {
			local := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), nodePortAt(svc, first, 4).Port())
			checkWays(t, []wayIn{{c.nodeCaller(n1), local}}, podA, podB)
		})

		ns.deletePod(t, podA)
		ns.deletePod(t, podB)
		t.Run("B-13 no endpoint anywhere", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				for _, w := range []wayIn{
					{c.clientCaller(n1), vip(svc, family)},
					{c.clientCaller(n1), nodePortAt(svc, first, family)},
					{c.podCaller(podC), vip(svc, family)},
				} {
					eventually(t, w.name+" to be refused", func() error { return refused(t.Context(), w.host, w.to) })
				}
			})
		})
	})
}

// internalTrafficPolicy Local binds who comes from outside to a cluster IP as well
// (B-13).
func TestInternalTrafficPolicyLocalFromOutside(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", internalLocal, nodePort)
		c.waitForEndpointsLocal(t, svc, podA)
		to := clusterIP(t, svc, 4)
		t.Run("B-13 endpoint on the node", func(t *testing.T) {
			checkWays(t, []wayIn{{c.clientCaller(n1), to}}, podA)
			// The other policy is another matter.
			checkWays(t, []wayIn{{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], 4)}}, podA, podB)
		})
		ns.deletePod(t, podA)
		t.Run("B-13 endpoint elsewhere", func(t *testing.T) {
			eventually(t, "the client to be dropped", func() error { return dropped(t.Context(), c.net.Client, to) })
			checkWays(t, []wayIn{{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], 4)}}, podB)
		})
	})
}

// waitForEndpointsLocal waits until the pods' own nodes translate to them.
func (c *cluster) waitForEndpointsLocal(t *testing.T, svc *v1.Service, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		for _, family := range familiesOf(svc) {
			text := portName(svc) + " -> " + c.pods[pod].addrPort(family).String()
			if err := c.nodes[c.pods[pod].node].waitForRule(t.Context(), family, text); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A load balancer in mode Proxy wants to see the traffic itself: no rule takes its
// address. One that has a name only has no address (B-10).
func TestIPModeProxy(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.balancer(t, "s", sourceRanges("0.0.0.0/1", "8000::/1", "::/1", "128.0.0.0/1"))
		c.waitForEndpoints(t, svc, podA)
		pod := maskedBy(c.nodes[n1], "pod c", c.pods[podC].Host)
		steps := []struct {
			name    string
			ingress []v1.LoadBalancerIngress
			taken   bool
		}{
			{"B-10 no mode", ingress(""), true},
			{"B-10 Proxy", ingress(v1.LoadBalancerIPModeProxy), false},
			{"B-10 VIP", ingress(v1.LoadBalancerIPModeVIP), true},
			{"B-10 name only", []v1.LoadBalancerIngress{{Hostname: "lb.example"}}, false},
		}
		for _, step := range steps {
			ns.balance(t, "s", step.ingress...)
			t.Run(step.name, func(t *testing.T) {
				forEachFamily(t, func(t *testing.T, family int) {
					if step.taken {
						// What comes before the rules has an entry that says "no translation",
						// and the source ranges drop it from then on.
						eventually(t, "the VIP to be known", func() error { return c.nodes[n1].mentions(t, family, vips[family]) })
						checkWays(t, []wayIn{{pod, vip(svc, family)}}, podA)
					} else {
						eventually(t, "the VIP to be left alone", func() error {
							return errors.Join(
								c.nodes[n1].hasNoRule(t, family, vips[family].String()),
								unreachable(t.Context(), pod.host, vip(svc, family)))
						})
					}
					checkWays(t, []wayIn{{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], family)}}, podA)
				})
			})
		}
	})
}

// Two Services want one external address: the older has it, and the younger takes over
// when the older goes. Who gets nothing is told by an Event.
func TestConflict(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		// By name they would be the other way round.
		const elder, junior = "z", "a"
		ns.pod(t, elder, podA)
		ns.pod(t, junior, podB)
		older := ns.service(t, elder, withExternalIPs)
		c.waitForEndpoints(t, older, podA)
		younger := ns.youngerService(t, older, junior, withExternalIPs)
		c.waitForEndpoints(t, younger, podB)
		client := c.clientCaller(n1)
		t.Run("older wins", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{{client, externalIP(older, family)}}, podA)
			})
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, younger, 4)}}, podB)
		})
		t.Run("event", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				ns.waitForEvent(t, junior, "FrontendTaken", externalIP(younger, family).String())
			})
		})
		ns.deleteService(t, elder)
		t.Run("younger takes over", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{{client, externalIP(younger, family)}}, podB)
			})
		})
	})
}

// At an external address everybody is masqueraded under policy Cluster, as with
// kube-proxy; under policy Local pods keep their source (B-04).
func TestExternalIP(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort, withExternalIPs)
		c.waitForEndpoints(t, svc, podA, podB)
		t.Run("B-04 policy Cluster", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				to := externalIP(svc, family)
				checkWays(t, []wayIn{
					{maskedBy(c.nodes[n1], "pod c", c.pods[podC].Host), to},
					{c.nodeCaller(n1), to},
					{c.clientCaller(n1), to},
				}, podA, podB)
			})
		})
		ns.update(t, "s", externalLocal)
		t.Run("B-04 policy Local", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				to := externalIP(svc, family)
				checkWays(t, []wayIn{{c.podCaller(podC), to}, {c.nodeCaller(n1), to}}, podA, podB)
				checkWays(t, []wayIn{{c.keptClient(n1), to}}, podA)
			})
		})
	})
}

// Ranges of the other family only leave the load balancer open, which an Event says
// (B-08).
func TestSourceRangesOfOtherFamily(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.balancer(t, "s", sourceRanges("fd00:9::9/128"))
		c.waitForEndpoints(t, svc, podA)
		stranger := maskedBy(c.nodes[n1], "stranger", c.stranger(t))
		t.Run("B-08 open in one family", func(t *testing.T) {
			checkWays(t, []wayIn{{stranger, vip(svc, 4)}}, podA)
			ns.waitForEvent(t, "s", "SourceRangesNotUsed", "IPv4")
		})
		t.Run("B-08 closed in the other", func(t *testing.T) {
			checkWays(t, []wayIn{{c.clientCaller(n1), vip(svc, 6)}}, podA)
			eventuallyDropped(t, svc, 6, stranger.host)
		})
	})
}
