package e2e

import (
	"syscall"
	"testing"
)

// Cleanup leaves what was there before the agent ever ran, rules of other programs and
// the kubelet's chains included, and is content with having nothing to do.
func TestCleanup(t *testing.T) {
	commands := map[string]func(n *node) []string{
		"command": func(n *node) []string { return []string{"cleanup", "--iptables-backend=" + n.backend} },
		"flag":    func(n *node) []string { return []string{"--cleanup"} },
	}
	if *agentFlag == agentKubeProxy {
		delete(commands, "command")
	}
	for name, args := range commands {
		t.Run(name, func(t *testing.T) {
			onBothBackends(t, func(t *testing.T, c *cluster) {
				ns := c.newNamespace(t)
				ns.pod(t, "s", podA)
				svc := ns.service(t, "s", nodePort)
				c.waitForEndpoints(t, svc, podA)
				way := wayIn{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], 4)}
				checkWays(t, []wayIn{way}, podA)
				for _, n := range c.nodes {
					_ = n.agent.end(syscall.SIGTERM) // how it ends is the subject of another test
					n.cleanUp(t, args(n), "first")
					n.cleanUp(t, args(n), "second")
					if err := n.startAgent(); err != nil {
						t.Fatal(err)
					}
				}
				checkWays(t, []wayIn{way}, podA)
			})
		})
	}
}

// cleanUp runs one cleanup and compares what it leaves with what was there at first.
func (n *node) cleanUp(t *testing.T, args []string, which string) {
	t.Helper()
	if out, err := n.command(args...).CombinedOutput(); err != nil {
		t.Errorf("%s cleanup on %s: %v\n%s", which, n.Plan.Name, err, out)
	}
	for family, want := range n.pristine {
		got, err := n.save(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s cleanup on %s, %s:\n%s", which, n.Plan.Name, familyName(family), lineDiff(got, want))
		}
	}
}
