package e2e

import (
	"context"
	"fmt"
	"testing"
)

// halfWritten is what an older version, or another proxy, may have left when it was
// killed: a Service that is gone, chains that nothing leads to, one that refers to
// itself through another, empty ones, and entries that lead to pods of the past. %s is
// an address of the family.
const halfWritten = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SVC-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-SVC-UNREACHABLE0UNRE - [0:0]
:KUBE-SVC-T10.96.0.0/19 - [0:0]
:KUBE-SVL-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-EXT-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-FW-OLDOLDOLDOLDOLDOL - [0:0]
:KUBE-XLB-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-SEP-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-SEP-EMPTYEMPTYEMPTYE - [0:0]
-A KUBE-SERVICES -p tcp -m tcp --dport 1 -j KUBE-SVC-OLDOLDOLDOLDOLDO
-A KUBE-SERVICES -p tcp -m tcp --dport 2 -j KUBE-XLB-OLDOLDOLDOLDOLDO
-A KUBE-SVC-OLDOLDOLDOLDOLDO -j KUBE-SEP-OLDOLDOLDOLDOLDO
-A KUBE-SVC-UNREACHABLE0UNRE -j KUBE-EXT-OLDOLDOLDOLDOLDO
-A KUBE-EXT-OLDOLDOLDOLDOLDO -j KUBE-SVL-OLDOLDOLDOLDOLDO
-A KUBE-FW-OLDOLDOLDOLDOLDOL -j KUBE-EXT-OLDOLDOLDOLDOLDO
-A KUBE-XLB-OLDOLDOLDOLDOLDO -j KUBE-SEP-EMPTYEMPTYEMPTYE
-A KUBE-SEP-OLDOLDOLDOLDOLDO -p tcp -m tcp -j DNAT --to-destination %[1]s
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-SVC-OLDOLDOLDOLDOLDO - [0:0]
-A KUBE-SERVICES -p tcp -m tcp --dport 3 -j KUBE-SVC-OLDOLDOLDOLDOLDO
-A KUBE-SVC-OLDOLDOLDOLDOLDO -d %[2]s -j DROP
COMMIT
`

// whollyOther is what a proxy leaves in the backend that it used before.
const whollyOther = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-OLDOLDOLDOLDOLDO - [0:0]
-A KUBE-SERVICES -p tcp -m tcp --dport 1 -j KUBE-SVC-OLDOLDOLDOLDOLDO
COMMIT
`

// Whatever a former life has left, half written, the agent's start ends with the rules
// of every other start.
func TestLeftovers(t *testing.T) {
	notForKubeProxy(t, "it keeps chains in the table filter that it does not know")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)
		n.restart(t)
		want := map[int]string{}
		for _, family := range families {
			want[family] = n.saveOurs(t, family)
		}

		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			gone := c.pods[podA2].addrPort(family)
			if err := n.restore(t.Context(), family, fmt.Sprintf(halfWritten, gone, gone.Addr()), "--noflush"); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		n.waitReady(t)
		for _, family := range families {
			if got := n.saveOurs(t, family); got != want[family] {
				t.Errorf("%s rules differ from those of a clean start:\n%s", familyName(family), lineDiff(got, want[family]))
			}
		}
		checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, 4)}, {c.clientCaller(n1), nodePortAt(svc, n, 6)}}, podA)
	})
}

// What is in the other backend is reported and not touched. This is a test for n2: a
// node on which iptables-legacy was ever used has its tables for good, and one without
// CAP_NET_RAW may not look into them (TestLeastPrivilege).
func TestOtherBackendIsLeftAlone(t *testing.T) {
	notForKubeProxy(t, "it says nothing of it")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n2]
		c.restoreAgent(t, n)
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		other := *n
		other.backend = "nft"
		if n.backend == "nft" {
			other.backend = "legacy"
		}
		want := map[int]string{}
		for _, family := range families {
			if err := other.restore(t.Context(), family, whollyOther, "--noflush"); err != nil {
				t.Fatal(err)
			}
			want[family] = other.saveOurs(t, family)
		}
		t.Cleanup(func() {
			for _, family := range families {
				for _, verb := range []string{"-F", "-X"} {
					if _, err := other.iptables(context.Background(), tool(family), "-w", "-t", "nat", verb); err != nil {
						t.Error(err)
					}
				}
			}
		})
		said := fileSize(n.log())
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		n.waitReady(t)
		n.waitForLog(t, said, "The other iptables backend holds chains of a Service proxy too")
		for _, family := range families {
			if got := other.saveOurs(t, family); got != want[family] {
				t.Errorf("%s rules of the other backend have changed:\n%s", familyName(family), lineDiff(got, want[family]))
			}
		}
	})
}
