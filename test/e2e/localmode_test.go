package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// Each way to tell pods from others: whose address is kept shows whom it takes for a
// pod. Pods of the node reach all endpoints at a node port of policy Local, others those
// of the node only.
func TestDetectLocalMode(t *testing.T) {
	modes := []struct {
		name string
		args []string
		// Who is masqueraded at a cluster IP.
		masksPods, masksStrangers bool
		// knowsPods is whether pods of the node count as such at a node port.
		knowsPods bool
		// otherNodes is whether pods of other nodes count as pods.
		otherNodes bool
	}{
		{"ClusterCIDR", nil, false, true, true, true},
		{"NodeCIDR", []string{"--detect-local-mode=NodeCIDR"}, false, true, true, false},
		{"BridgeInterface", []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=" + lab.PodBridge}, false, true, true, false},
		{"InterfaceNamePrefix", []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cni"}, false, true, true, false},
		{"B-02 none", []string{"--cluster-cidr="}, false, false, false, false},
		{"B-03 masquerade all", []string{"--masquerade-all"}, true, true, true, true},
	}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		ns.pod(t, "here", podA2)
		svc := ns.service(t, "s", nodePort, externalLocal)
		here := ns.service(t, "here")
		c.waitForEndpoints(t, here, podA2)
		c.restoreAgent(t, n)
		pod, client, otherPod := c.podCaller(podC), c.clientCaller(n1), c.podCaller(podD)
		for _, mode := range modes {
			t.Run(mode.name, func(t *testing.T) {
				n.restart(t, mode.args...)
				forEachFamily(t, func(t *testing.T, family int) {
					atClusterIP, fromOutside := pod, client
					if mode.masksPods {
						atClusterIP = maskedBy(n, pod.name, pod.host)
					}
					if !mode.masksStrangers {
						fromOutside = c.keptClient(n1)
					}
					checkWays(t, []wayIn{{atClusterIP, clusterIP(t, svc, family)}}, podA, podB)
					// The answer of a pod elsewhere would not come back through this node.
					checkWays(t, []wayIn{{fromOutside, clusterIP(t, here, family)}}, podA2)

					reached := []string{podA}
					if mode.knowsPods {
						reached = []string{podA, podB}
					}
					checkWays(t, []wayIn{{pod, nodePortAt(svc, n, family)}}, reached...)
					if !mode.otherNodes {
						checkWays(t, []wayIn{{otherPod, nodePortAt(svc, n, family)}}, podA)
					}
				})
			})
		}
	})
}

// Node ports answer on the addresses that the configuration selects, and so do the
// health-check node ports (B-17).
func TestNodePortAddresses(t *testing.T) {
	localhost, gateway := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.244.1.1")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", loadBalancer, externalLocal)
		c.waitForEndpointsLocal(t, svc, podA)
		c.restoreAgent(t, n)
		tests := []struct {
			name, addresses   string
			answers, deafness []netip.Addr
		}{
			{"B-17 a range", "10.0.0.0/24", []netip.Addr{n.addr(4), n.addr(6)}, []netip.Addr{localhost, gateway}},
			{"B-17 localhost", "localhost", []netip.Addr{localhost}, []netip.Addr{n.addr(4), n.addr(6), gateway}},
			{"B-17 primary", "primary", []netip.Addr{n.addr(4), n.addr(6)}, []netip.Addr{localhost, gateway}},
			{"B-17 all", "all", []netip.Addr{localhost, n.addr(4), n.addr(6), gateway}, nil},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				n.restart(t, "--nodeport-addresses="+tt.addresses)
				for _, addr := range tt.answers {
					eventually(t, "the ports to answer on "+addr.String(), func() error {
						return n.servesAt(t, addr, svc.Spec.Ports[0].NodePort, svc.Spec.HealthCheckNodePort)
					})
				}
				for _, addr := range tt.deafness {
					if err := n.deafAt(t, addr, svc.Spec.Ports[0].NodePort, svc.Spec.HealthCheckNodePort); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})
}

// servesAt returns nil when a node port and a health-check node port answer on one of
// the node's addresses.
func (n *node) servesAt(t *testing.T, addr netip.Addr, port, check int32) error {
	t.Helper()
	_, err := fetchOne(t.Context(), n.Host, netip.AddrPortFrom(addr, uint16(port)))
	return errors.Join(err, n.answers(t, netip.AddrPortFrom(addr, uint16(check)).String(), "/", 200))
}

// deafAt returns nil when both are refused there.
func (n *node) deafAt(t *testing.T, addr netip.Addr, port, check int32) error {
	t.Helper()
	var errs []error
	for _, p := range []int32{port, check} {
		if err := refused(t.Context(), n.Host, netip.AddrPortFrom(addr, uint16(p))); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		}
	}
	return errors.Join(errs...)
}
