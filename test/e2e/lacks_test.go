package e2e

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A kernel without the recent and sctp matches costs session affinity and SCTP ports.
// The Services that ask for them are told, and served otherwise.
func TestServicesAreToldWhatIsLacking(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		script := `sed -e 's/ -m recent / -m ipvs --ipvs&/' -e 's/ -m sctp / -m ipvs --ipvs&/' | real "$@"`
		n.restartAs(t, n.wrap(t, script, "iptables-restore", "ip6tables-restore"))
		n.waitReady(t)
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", func(svc *v1.Service) {
			svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
			svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{
				Name: "sctp", Protocol: v1.ProtocolSCTP, Port: 80, TargetPort: intstr.FromInt32(podPort),
			})
		})
		c.waitForEndpoints(t, svc, podA, podB)
		for _, family := range families {
			// Without affinity one client reaches both.
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, family)}}, podA, podB)
			for _, word := range []string{"-m recent", "sctp"} {
				if err := n.hasNoRule(t, family, word); err != nil {
					t.Error(err)
				}
			}
		}
		ns.waitForEvent(t, "s", "NoSessionAffinity", "lacks recent")
		ns.waitForEvent(t, "s", "NoSCTP", "lacks sctp")
		if err := n.hasRefused(t, "nobody", 0); err != nil {
			t.Error(err)
		}
	})
}
