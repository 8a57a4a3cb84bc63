package e2e

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// Programs of a family that say, as iptables does without the kernel's part, that
// there is no such table: exit status 3.
const unsupported = "exit 3"

// programsOf are the programs that work on a family's tables.
func programsOf(families ...int) []string {
	var list []string
	for _, family := range families {
		list = append(list, tool(family), tool(family)+"-save", tool(family)+"-restore")
	}
	return list
}

// A kernel that lacks one family is served with the other; one that lacks both is not
// (B-76).
func TestFamilyMissing(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)
		for i, missing := range families {
			present := families[1-i]
			t.Run("B-76 only "+familyName(present), func(t *testing.T) {
				said := fileSize(n.log())
				n.restartAs(t, n.wrap(t, unsupported, programsOf(missing)...))
				n.waitReady(t)
				if got := strings.Count(tail(n.log(), said), "One IP family is not supported here"); got != 1 {
					t.Errorf("the agent has said %d times that a family is missing, want once", got)
				}
				before := saveAll(t, n)[missing]
				ns.pod(t, "s", podB)
				way := wayIn{c.podCaller(podC), clusterIP(t, svc, present)}
				checkWays(t, []wayIn{way}, podA, podB)
				ns.deletePod(t, podB)
				checkWays(t, []wayIn{way}, podA)
				if got := saveAll(t, n)[missing]; got != before {
					t.Errorf("%s rules changed:\n%s", familyName(missing), lineDiff(got, before))
				}
			})
		}
		t.Run("B-76 neither family", func(t *testing.T) {
			said := fileSize(n.log())
			n.restartAs(t, n.wrap(t, unsupported, programsOf(families...)...))
			if got := n.exitStatus(t); got != 1 {
				t.Errorf("exit status %d, want 1", got)
			}
			log := tail(n.log(), said)
			if !slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool { return strings.HasPrefix(line, "miniproxy:") }) {
				t.Errorf("no reason given in\n%s", log)
			}
		})
	})
}

// exitStatus waits until the node's agent has ended by itself.
func (n *node) exitStatus(t *testing.T) int {
	t.Helper()
	select {
	case <-n.agent.done:
	case <-time.After(patience):
		t.Fatalf("%s still runs", n.agent.name)
	}
	err := n.agent.err
	n.agent = nil
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return 0
}
