package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestClusterIP(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s")
		forEachFamily(t, func(t *testing.T, family int) {
			to := clusterIP(t, svc, family)
			checkWays(t, []wayIn{
				{c.podCaller(podC), to},
				{c.podCaller(podD), to},
				{c.nodeCaller(n1), to},
				{c.nodeCaller(n2), to},
				{c.clientCaller(n1), to}, // B-03
			}, podA, podB)
		})
	})
}

func TestNodePort(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		forEachFamily(t, func(t *testing.T, family int) {
			first, second := c.nodes[n1], c.nodes[n2]
			ways := []wayIn{
				{c.clientCaller(n1), nodePortAt(svc, first, family)},
				{c.clientCaller(n2), nodePortAt(svc, second, family)},
				{c.nodeCaller(n1), nodePortAt(svc, first, family)},
				{maskedBy(second, "process on n1 through n2", first.Host), nodePortAt(svc, second, family)},
				{maskedBy(first, "pod c through n1", c.pods[podC].Host), nodePortAt(svc, first, family)},
			}
			if family == 4 {
				// IPv6 has no route_localnet: ::1 never leaves the host.
				localhost := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), nodePortAt(svc, first, 4).Port())
				ways = append(ways, wayIn{c.nodeCaller(n1), localhost})
			}
			checkWays(t, ways, podA, podB)
		})
	})
}

// A pod that connects to its own Service and is given itself must see a sender that is
// not itself, or it would answer into its own loopback (B-01).
func TestHairpin(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		forEachFamily(t, func(t *testing.T, family int) {
			itself := maskedBy(c.nodes[n1], "pod a to itself", c.pods[podA].Host)
			checkWays(t, []wayIn{
				{itself, clusterIP(t, svc, family)},
				{itself, nodePortAt(svc, c.nodes[n1], family)},
			}, podA)
		})
	})
}

// Without any endpoint a connection is refused at once, instead of hanging until the
// client's timeout.
func TestNoEndpoints(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		svc := ns.service(t, "s", nodePort)
		forEachFamily(t, func(t *testing.T, family int) {
			vip := clusterIP(t, svc, family)
			for _, w := range []wayIn{
				{c.podCaller(podC), vip},
				{c.nodeCaller(n1), vip},
				{c.clientCaller(n1), vip},
				{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], family)},
				{c.podCaller(podC), nodePortAt(svc, c.nodes[n1], family)},
			} {
				eventually(t, w.name+" to be refused", func() error { return refused(t.Context(), w.host, w.to) })
			}
		})
	})
}

func TestEndpointsComeAndGo(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		svc := ns.service(t, "s", nodePort)
		// Both families follow the same events; one of each shows that.
		ways := []wayIn{
			{c.podCaller(podC), clusterIP(t, svc, 4)},
			{c.clientCaller(n2), nodePortAt(svc, c.nodes[n2], 6)},
		}
		steps := []struct {
			name string
			do   func()
			want []string
		}{
			{"first pod", func() { ns.pod(t, "s", podA) }, []string{podA}},
			{"second pod", func() { ns.pod(t, "s", podB) }, []string{podA, podB}},
			{"first pod loses readiness", func() { ns.setReady(t, podA, false) }, []string{podB}},
			{"nobody is ready", func() { ns.setReady(t, podB, false) }, nil},
			{"both are back", func() { ns.setReady(t, podA, true); ns.setReady(t, podB, true) }, []string{podA, podB}},
			{"second pod is deleted", func() { ns.deletePod(t, podB) }, []string{podA}},
			{"last pod is deleted", func() { ns.deletePod(t, podA) }, nil},
		}
		for _, step := range steps {
			step.do()
			if step.want != nil {
				checkWays(t, ways, step.want...)
				continue
			}
			for _, w := range ways {
				eventually(t, step.name+": "+w.name+" to be refused", func() error {
					return refused(t.Context(), w.host, w.to)
				})
			}
		}
	})
}

// What a Service no longer has must go, and not only what it now has must come (B-86).
func TestServiceChanges(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		ip := clusterIP(t, svc, 4)
		pod := c.podCaller(podC)
		checkWays(t, []wayIn{{pod, ip}}, podA)

		svc = ns.update(t, "s", nodePort)
		port := nodePortAt(svc, c.nodes[n1], 4)
		checkWays(t, []wayIn{{c.clientCaller(n1), port}}, podA)

		ns.update(t, "s", clusterIPOnly)
		// Nobody listens on the node's port, so the node itself refuses.
		eventually(t, "the node port to be gone", func() error { return refused(t.Context(), c.net.Client, port) })

		ns.update(t, "s", func(svc *v1.Service) { svc.Spec.Ports[0].Port = 81 })
		checkWays(t, []wayIn{{pod, netip.AddrPortFrom(ip.Addr(), 81)}}, podA)
		// No rule takes the packet, so it follows the default route to nobody (B-80).
		eventually(t, "the old port to be gone", func() error { return unreachable(t.Context(), pod.host, ip) })

		// Another Service takes the address over.
		ns.deleteService(t, "s")
		ns.pod(t, "t", podB)
		ns.service(t, "t", func(svc *v1.Service) {
			svc.Spec.ClusterIP = ip.Addr().String()
			svc.Spec.ClusterIPs = []string{ip.Addr().String()}
		})
		checkWays(t, []wayIn{{pod, ip}}, podB)
	})
}

// Several ports of one Service, one of them by the name of the pod's port, and two
// Services with one port number are kept apart.
func TestPorts(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "t", podB)
		s := ns.service(t, "s", func(svc *v1.Service) {
			svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: "alt", Port: 8080, TargetPort: intstr.FromString("web")})
		})
		other := ns.service(t, "t")
		pod := c.podCaller(podC)
		ip := clusterIP(t, s, 4)
		checkWays(t, []wayIn{{pod, ip}, {pod, netip.AddrPortFrom(ip.Addr(), 8080)}}, podA)
		checkWays(t, []wayIn{{pod, clusterIP(t, other, 4)}}, podB)
	})
}

// The API server's own Service, made by the API server itself.
func TestKubernetesService(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		for _, from := range []caller{c.podCaller(podC), c.podCaller(podD), c.nodeCaller(n1)} {
			eventually(t, from.name+" to reach the API server", func() error {
				out, err := from.host.Run(t.Context(), "curl", "--silent", "--show-error", "--insecure", "--noproxy", "*",
					"--max-time", "30", fmt.Sprintf("https://%s/livez", kubernetesIP))
				if err == nil && out != "ok" {
					err = fmt.Errorf("GET /livez answered %q", out)
				}
				return err
			})
		}
	})
}

// internalTrafficPolicy Local: only endpoints of the client's own node, and where there
// are none but others exist, silence rather than a refusal (B-13).
func TestInternalTrafficPolicyLocal(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", internalLocal)
		forEachFamily(t, func(t *testing.T, family int) {
			to := clusterIP(t, svc, family)
			checkWays(t, []wayIn{{c.podCaller(podC), to}, {c.nodeCaller(n1), to}}, podA)
			checkWays(t, []wayIn{{c.podCaller(podD), to}, {c.nodeCaller(n2), to}}, podB)
		})
		ns.deletePod(t, podB)
		to := clusterIP(t, svc, 4)
		checkWays(t, []wayIn{{c.podCaller(podC), to}}, podA)
		eventually(t, "the node without endpoints to drop", func() error {
			return dropped(t.Context(), c.pods[podD].Host, to)
		})
		ns.deletePod(t, podA)
		eventually(t, "no endpoint at all to be refused", func() error {
			return refused(t.Context(), c.pods[podD].Host, to)
		})
	})
}
