package e2e

import (
	"errors"
	"syscall"
	"testing"
)

// Traffic does not notice that the agent ends and starts, by whatever means and at
// whatever moment (B-60).
func TestRestartsUnderLoad(t *testing.T) {
	const restarts = 20
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA, podB)
		// Two clients of 50 connections per second each, both through this node.
		inside := startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4))
		outside := startLoad(t, c, c.net.Client, nodePortAt(svc, n, 6))
		for i := range restarts {
			signal := syscall.SIGKILL
			if i%4 == 3 {
				signal = syscall.SIGTERM
			}
			if err := n.agent.alive(); err != nil {
				t.Fatal(err)
			}
			_ = n.agent.end(signal) // how it ends is the subject of another test
			inside.waitForMore(t, 3)
			outside.waitForMore(t, 3)
			if err := n.startAgent(); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				if err := c.settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			// Every other agent is ended in the middle of its start, each time a little later.
			inside.waitForMore(t, 2*i)
		}
		if err := c.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		inside.stop(t)
		outside.stop(t)
	})
}

// On SIGTERM the agent ends well and leaves its rules as they are.
func TestTerminate(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		to := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
		checkWays(t, []wayIn{to}, podA)
		before := saveAll(t, n)
		if err := n.agent.end(syscall.SIGTERM); err != nil {
			t.Errorf("the agent ended with %v, want exit status 0", err)
		}
		for family, want := range before {
			if got := saveAll(t, n)[family]; got != want {
				t.Errorf("%s rules changed at exit:\n%s", familyName(family), lineDiff(got, want))
			}
		}
		checkWays(t, []wayIn{to}, podA)
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		if err := c.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// saveAll is what a node's kernel holds, by family.
func saveAll(t *testing.T, n *node) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, family := range families {
		rules, err := n.save(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		all[family] = rules
	}
	return all
}

// Without the API server traffic goes on, through a restart of the agent too, and what
// changes after its return arrives.
func TestAPIServerOutage(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA, podB)
		way := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
		l := startLoad(t, c, way.host, way.to)

		c.cp.stopAPIServer()
		l.waitForMore(t, loadRate)
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		before := saveAll(t, n)
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		l.waitForMore(t, 2*loadRate)
		for family, want := range before {
			if got := saveAll(t, n)[family]; got != want {
				t.Errorf("%s rules changed without an API server:\n%s", familyName(family), lineDiff(got, want))
			}
		}

		if err := c.cp.startAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		ns.setReady(t, podA, false)
		checkWays(t, []wayIn{way, {c.clientCaller(n2), nodePortAt(svc, c.nodes[n2], 4)}}, podB)
		l.stop(t)
	})
}

// Nothing is written before both Services and EndpointSlices are complete: rules from
// one of them alone would cut off what the other one brings a moment later (B-61).
func TestNothingWrittenEarly(t *testing.T) {
	for _, withheld := range []string{"endpointslices", "services"} {
		t.Run(withheld, func(t *testing.T) {
			onBothBackends(t, func(t *testing.T, c *cluster) { testNothingWrittenEarly(t, c, withheld) })
		})
	}
}

func testNothingWrittenEarly(t *testing.T, c *cluster, withheld string) {
	n := c.nodes[n1]
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	svc := ns.service(t, "s")
	way := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
	checkWays(t, []wayIn{way}, podA)

	if err := n.killAgent(); err != nil {
		t.Fatal(err)
	}
	// Something to write, so that writing shows.
	ns.pod(t, "s", podB)
	late := ns.serviceUnseen(t, "late")
	before := saveAll(t, n)
	front := newAPIFront(t, c, withheld)
	if err := n.startAgentWith(front.kubeconfig); err != nil {
		t.Fatal(err)
	}
	// The agent has everything but what is withheld, and hears of more. Each change
	// that it was told of was an occasion to write.
	front.waitForTraffic(t, n)
	for range 5 {
		told := front.delivered()
		if withheld == "services" {
			ns.setReady(t, podB, false)
			ns.setReady(t, podB, true)
		} else {
			ns.update(t, "late", nodePort)
			ns.update(t, "late", clusterIPOnly)
		}
		eventually(t, "the agent to be told", func() error {
			if front.delivered() == told {
				return errors.New("nothing was sent to the agent")
			}
			return n.agent.alive()
		})
	}
	for family, want := range before {
		if got := saveAll(t, n)[family]; got != want {
			t.Errorf("%s rules changed while %s were withheld:\n%s", familyName(family), withheld, lineDiff(got, want))
		}
	}
	if err := servedBy(t.Context(), way.host, way.to, podA); err != nil {
		t.Error(err)
	}

	front.release()
	c.waitForRules(t, late, portName(late))
	checkWays(t, []wayIn{way}, podA, podB)

	// Back to the direct way.
	if err := n.killAgent(); err != nil {
		t.Fatal(err)
	}
	if err := n.startAgent(); err != nil {
		t.Fatal(err)
	}
	if err := c.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
}
