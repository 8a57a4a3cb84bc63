package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// killsEnv is how many times TestKilledAtRandom kills the agent on each backend.
const killsEnv = "MINIPROXY_E2E_KILLS"

// Killed at any moment of its start or of a write, the agent leaves rules that every
// client can live with, and the next start makes them right (B-60).
func TestKilledAtRandom(t *testing.T) {
	kills := 10
	if text := os.Getenv(killsEnv); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", killsEnv, err)
		}
	}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA, podB)
		c.restoreAgent(t, n)
		loads := []*load{
			startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4)),
			startLoad(t, c, c.net.Client, nodePortAt(svc, n, 6)),
		}
		// How long a start takes here, until everything is written.
		begin := time.Now()
		n.restart(t)
		start := time.Since(begin)

		for i := range kills {
			if err := n.killAgent(); err != nil {
				t.Fatal(err)
			}
			// Something that each start has to write, and something to remove.
			ns.serviceUnseen(t, fmt.Sprintf("s%d", i), nodePort, func(svc *v1.Service) { svc.Spec.Selector = map[string]string{appLabel: "s"} })
			if i > 0 {
				ns.deleteService(t, fmt.Sprintf("s%d", i-1))
			}
			if err := n.startAgent(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(rand.N(start * 5 / 4)) // the moment is what is tested
		}
		if err := c.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, l := range loads {
			l.stop(t)
		}
		n.mustHaveNoOrphans(t)
		got := map[int]string{}
		for _, family := range families {
			eventually(t, "the mark of settle to be gone", func() error {
				if got[family] = n.saveOurs(t, family); strings.Contains(got[family], metav1.NamespaceDefault+"/marker-") {
					return errors.New("it is still there")
				}
				return n.agent.alive()
			})
		}
		n.restart(t)
		for _, family := range families {
			if want := n.saveOurs(t, family); got[family] != want {
				t.Errorf("%s rules are not those of a quiet start:\n%s", familyName(family), lineDiff(got[family], want))
			}
		}
	})
}
