package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
)

// Without its agent a node goes on with the rules that it has: old Services work, a new
// one appears with the agent's return, and names are the same afterwards (B-85).
func TestAgentGone(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "t", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		before, err := n.rulesWith(t, 4, portName(svc))
		if err != nil {
			t.Fatal(err)
		}
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		late := ns.serviceUnseen(t, "t")
		if err := c.nodes[n2].waitForRule(t.Context(), 4, portName(late)+" -> "+c.pods[podB].addrPort(4).String()); err != nil {
			t.Fatal(err)
		}
		t.Run("B-85 old Services work", func(t *testing.T) {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, 4)}}, podA)
			if err := n.hasNoRule(t, 4, portName(late)); err != nil {
				t.Error(err)
			}
			if err := unreachable(t.Context(), c.pods[podC].Host, clusterIP(t, late, 4)); err != nil {
				t.Error(err)
			}
		})
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		t.Run("B-85 new ones come with the agent", func(t *testing.T) {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, late, 4)}}, podB)
			after, err := n.rulesWith(t, 4, portName(svc))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := fmt.Sprintf("%q", after), fmt.Sprintf("%q", before); got != want {
				t.Errorf("after the restart the rules of %s are\n%s\nwant those from before,\n%s", portName(svc), got, want)
			}
		})
	})
}

// Counters of chains that did not change go on counting when others change: they show
// which rules packets take (B-82).
func TestCountersGoOn(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		const connections = 5
		if _, err := fetch(t.Context(), c.pods[podC].Host, clusterIP(t, svc, 4), connections); err != nil {
			t.Fatal(err)
		}
		chain := chainName("KUBE-SEP-", portName(svc), "tcp", c.pods[podA].addrPort(4).String())
		translations := regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A ` + chain + ` .*-j DNAT`)
		counted := func() int {
			rules, err := n.iptables(t.Context(), "iptables-save", "-c", "-t", "nat")
			if err != nil {
				t.Fatal(err)
			}
			found := translations.FindStringSubmatch(rules)
			if found == nil {
				t.Fatalf("no translation in %s in\n%s", chain, rules)
			}
			packets, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			return packets
		}
		if got := counted(); got != connections {
			t.Errorf("%d connections were counted, want %d", got, connections)
		}
		ns.pod(t, "t", podB)
		other := ns.service(t, "t", nodePort)
		c.waitForEndpoints(t, other, podB)
		if got := counted(); got != connections {
			t.Errorf("B-82 after a change of another Service %d connections are counted, want %d", got, connections)
		}
	})
}
