package e2e

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// updateNode changes a Node's metadata and spec.
func (c *cluster) updateNode(ctx context.Context, name string, mutate func(*v1.Node)) error {
	nodes := c.client().CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		mutate(obj)
		_, err = nodes.Update(ctx, obj, metav1.UpdateOptions{})
		return err
	})
}

// changeNode is updateNode, within a case.
func (c *cluster) changeNode(t *testing.T, name string, mutate func(*v1.Node)) {
	t.Helper()
	if err := c.updateNode(t.Context(), name, mutate); err != nil {
		t.Fatal(err)
	}
}

// setNodeAddresses changes the addresses in a Node's status.
func (c *cluster) setNodeAddresses(ctx context.Context, name string, addrs ...netip.Addr) error {
	nodes := c.client().CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		obj.Status.Addresses = nil
		for _, addr := range addrs {
			obj.Status.Addresses = append(obj.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: addr.String()})
		}
		_, err = nodes.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		return err
	})
}

// zoned makes a Service's slice by hand, each pod with a hint for its node's zone.
func (ns *namespace) zoned(t *testing.T, service string, pods ...string) {
	t.Helper()
	name, port, protocol := "http", int32(podPort), v1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   sliceName(service),
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "e2e"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, pod := range pods {
		s := ns.c.pods[pod]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{s.addr(4).String()},
			NodeName:  &s.node,
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zones[s.node]}}},
		})
	}
	if _, err := ns.c.client().DiscoveryV1().EndpointSlices(ns.name).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// sliceName is the name of a Service's slice that is made by hand.
func sliceName(service string) string { return service + "-by-hand" }

// ipv4Only makes a Service of one family, without a selector: its endpoints are made
// by hand.
func ipv4Only(svc *v1.Service) {
	single := v1.IPFamilyPolicySingleStack
	svc.Spec.IPFamilyPolicy = &single
	svc.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol}
	svc.Spec.Selector = nil
}

// Hints are for a zone, and the zone is that of the Node as it is now.
func TestZoneFollowsNode(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		svc := ns.service(t, "s", ipv4Only)
		ns.zoned(t, "s", podA, podB)
		way := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
		setZone := func(zone string) func(*v1.Node) {
			return func(obj *v1.Node) {
				if delete(obj.Labels, v1.LabelTopologyZone); zone != "" {
					obj.Labels[v1.LabelTopologyZone] = zone
				}
			}
		}
		t.Cleanup(func() {
			if err := c.updateNode(context.Background(), n1, setZone(zones[n1])); err != nil {
				t.Error(err)
			}
		})
		steps := []struct {
			name, zone string
			want       []string
		}{
			{"B-74 zone of one pod", zones[n1], []string{podA}},
			{"B-74 zone of the other", zones[n2], []string{podB}},
			{"B-74 zone of nobody", "zone-c", []string{podA, podB}},
			{"B-74 label gone", "", []string{podA, podB}},
			{"B-74 label back", zones[n1], []string{podA}},
		}
		for _, step := range steps {
			c.changeNode(t, n1, setZone(step.zone))
			t.Run(step.name, func(t *testing.T) { checkWays(t, []wayIn{way}, step.want...) })
		}
	})
}

// The node's address is that of the Node as it is now: node ports on the primary
// address move with it (B-64).
func TestNodeAddressFollowsNode(t *testing.T) {
	moved := map[int]netip.Prefix{4: netip.MustParsePrefix("10.0.0.3/24"), 6: netip.MustParsePrefix("fd00::3/64")}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)
		n.restart(t, "--nodeport-addresses=primary")
		at := func(addr netip.Addr) netip.AddrPort {
			return netip.AddrPortFrom(addr, uint16(svc.Spec.Ports[0].NodePort))
		}
		client := caller{name: "client", host: c.net.Client, source: func(netip.Addr) bool { return true }}

		for _, family := range families {
			checkWays(t, []wayIn{{client, at(n.addr(family))}}, podA)
			if err := n.AddAddrs(lab.Uplink, moved[family]); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := n.Run(context.Background(), "ip", "addr", "del", moved[family].String(), "dev", lab.Uplink); err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(func() {
			if err := c.setNodeAddresses(context.Background(), n1, n.addr(4), n.addr(6)); err != nil {
				t.Error(err)
			}
		})
		if err := c.setNodeAddresses(t.Context(), n1, moved[4].Addr(), moved[6].Addr()); err != nil {
			t.Fatal(err)
		}
		t.Run("B-64 address changes", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{{client, at(moved[family].Addr())}}, podA)
				eventually(t, "the old address to be left", func() error {
					return refused(t.Context(), c.net.Client, at(n.addr(family)))
				})
			})
		})
	})
}

// A Node that is deleted takes no rules with it. Balancers are told to send nothing
// new, and the agent is not to be restarted for it (B-64, B-68).
func TestNodeDeleted(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", internalLocal, nodePort)
		c.waitForEndpointsLocal(t, svc, podA)
		way := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
		checkWays(t, []wayIn{way}, podA)
		before := saveAll(t, n)

		if err := c.client().CoreV1().Nodes().Delete(t.Context(), n1, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.registerNode(t.Context(), n.Plan); err != nil {
				t.Error(err)
			}
			eventually(t, "the Node to be seen again", func() error { return n.answers(t, healthAddr, "/healthz", http.StatusOK) })
		}()
		t.Run("B-68 unfit but alive", func(t *testing.T) {
			eventually(t, "balancers to be told", func() error { return n.answers(t, healthAddr, "/healthz", http.StatusServiceUnavailable) })
			for _, path := range []string{"/livez", "/readyz"} {
				if err := n.answers(t, healthAddr, path, http.StatusOK); err != nil {
					t.Error(err)
				}
			}
		})
		t.Run("B-64 rules stay", func(t *testing.T) {
			checkWays(t, []wayIn{way}, podA)
			if err := n.agent.alive(); err != nil {
				t.Error(err)
			}
			for family, want := range before {
				if got := saveAll(t, n)[family]; got != want {
					t.Errorf("%s rules changed:\n%s", familyName(family), lineDiff(got, want))
				}
			}
		})
	})
}

// In mode NodeCIDR nothing is written before the Node has a pod CIDR: every pod would
// be taken for a stranger (B-64).
func TestNodeCIDRComesLate(t *testing.T) {
	const name = "late"
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podB)
		nodes := c.client().CoreV1().Nodes()
		// A pod CIDR cannot be taken away, so that this is another Node.
		obj := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := nodes.Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		c.restoreAgent(t, n)
		said := fileSize(n.log())
		n.restartAs(t, n.command(n.agentArgs(n.kubeconfig, "--hostname-override="+name, "--detect-local-mode=NodeCIDR")...))
		n.waitForLog(t, said, "Writing no rules before the Node has a podCIDR")
		before := saveAll(t, n)
		late := ns.serviceUnseen(t, "t")
		if err := c.nodes[n2].waitForRule(t.Context(), 4, portName(late)); err != nil {
			t.Fatal(err)
		}
		t.Run("B-64 nothing before", func(t *testing.T) {
			if err := n.answers(t, healthAddr, "/readyz", http.StatusServiceUnavailable); err != nil {
				t.Error(err)
			}
			for family, want := range before {
				if got := saveAll(t, n)[family]; got != want {
					t.Errorf("%s rules changed:\n%s", familyName(family), lineDiff(got, want))
				}
			}
		})
		c.changeNode(t, name, func(obj *v1.Node) {
			for _, cidr := range n.Plan.PodCIDRs {
				obj.Spec.PodCIDRs = append(obj.Spec.PodCIDRs, cidr.String())
			}
			obj.Spec.PodCIDR = obj.Spec.PodCIDRs[0]
		})
		t.Run("B-64 everything after", func(t *testing.T) {
			n.waitReady(t)
			if err := n.waitForRule(t.Context(), 4, portName(late)); err != nil {
				t.Fatal(err)
			}
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, family)}, {c.clientCaller(n1), clusterIP(t, svc, family)}}, podB)
			})
		})
	})
}

// A name that no Node has is an error in the log, and no reason not to work. Policy
// Local then finds no endpoint that is local (B-65).
func TestUnknownNodeName(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		local := ns.service(t, "s-local", internalLocal, func(svc *v1.Service) { svc.Spec.Selector = map[string]string{appLabel: "s"} })
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)

		said := fileSize(n.log())
		n.restart(t, "--hostname-override=nobody")
		t.Run("B-65 name of no Node", func(t *testing.T) {
			n.waitForLog(t, said, "There is no Node object of this name")
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, 4)}}, podA)
			eventually(t, "policy Local to find nothing", func() error {
				return dropped(t.Context(), c.pods[podC].Host, clusterIP(t, local, 4))
			})
		})
		n.restart(t, "--hostname-override= N1 ")
		t.Run("B-65 name in capitals and with spaces", func(t *testing.T) {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, local, 4)}}, podA)
		})
	})
}
