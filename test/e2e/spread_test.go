package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// chiSquareLimit is what the chi-square statistic of fair draws exceeds once in a
// million times, by degrees of freedom (the number of endpoints less one).
var chiSquareLimit = map[int]float64{1: 23.93, 2: 27.63, 3: 30.66, 4: 33.38}

// chiSquare measures how far counts are from an equal share for each.
func chiSquare(counts map[string]int) float64 {
	var total int
	for _, n := range counts {
		total += n
	}
	want := float64(total) / float64(len(counts))
	var sum float64
	for _, n := range counts {
		d := float64(n) - want
		sum += d * d / want
	}
	return sum
}

// Connections spread evenly over the endpoints. 3000 connections let a share that is
// off by a fifth fail almost surely (B-84).
func TestSpread(t *testing.T) {
	const connections = 3000
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		pods := []string{podA, podA2, podB, podB2}
		for _, pod := range pods {
			ns.pod(t, "s", pod)
		}
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, pods...)
		for _, way := range []struct {
			name string
			from *lab.Host
			to   netip.AddrPort
		}{
			{"cluster IP from a pod, IPv4", c.pods[podC].Host, clusterIP(t, svc, 4)},
			{"cluster IP from a node, IPv6", c.nodes[n1].Host, clusterIP(t, svc, 6)},
			{"node port from outside, IPv4", c.net.Client, nodePortAt(svc, c.nodes[n1], 4)},
		} {
			t.Run(way.name, func(t *testing.T) {
				list, err := fetch(t.Context(), way.from, way.to, connections)
				if err != nil {
					t.Fatal(err)
				}
				counts, err := countAnswers(list)
				if err != nil {
					t.Fatal(err)
				}
				if len(counts) != len(pods) {
					t.Fatalf("answered by %v, want all of %v", counts, pods)
				}
				got, limit := chiSquare(counts), chiSquareLimit[len(pods)-1]
				t.Logf("%v, chi-square %.2f", counts, got)
				if got > limit {
					t.Errorf("%s\nchi-square %.2f, want at most %.2f", fmt.Sprint(counts), got, limit)
				}
			})
		}
	})
}
