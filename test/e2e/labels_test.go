package e2e

import (
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// proxyName is the label of what another Service proxy looks after.
const proxyName = "service.kubernetes.io/service-proxy-name"

// A Service with the label is somebody else's, also where that somebody has no name:
// nothing is written for it, and what was is taken away.
func TestLabelHidesService(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA)
		ns.update(t, "s", func(svc *v1.Service) { svc.Labels = map[string]string{proxyName: ""} })
		forEachFamily(t, func(t *testing.T, family int) {
			eventually(t, "the Service to be left alone", func() error {
				return errors.Join(
					c.nodes[n1].hasNoRule(t, family, portName(svc)),
					unreachable(t.Context(), c.pods[podC].Host, clusterIP(t, svc, family)))
			})
		})
		ns.update(t, "s", func(svc *v1.Service) { svc.Labels = nil })
		forEachFamily(t, func(t *testing.T, family int) {
			checkWays(t, []wayIn{
				{c.podCaller(podC), clusterIP(t, svc, family)},
				{c.clientCaller(n1), nodePortAt(svc, c.nodes[n1], family)},
			}, podA)
		})
	})
}

// A slice with the label of headless Services is not used, and one with the other label
// is, as with kube-proxy.
func TestLabelHidesSlice(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		svc := ns.service(t, "s", ipv4Only)
		ns.zoned(t, "s", podA)
		way := wayIn{c.podCaller(podC), clusterIP(t, svc, 4)}
		checkWays(t, []wayIn{way}, podA)

		ns.labelSlice(t, "s", v1.IsHeadlessService, true)
		eventually(t, "the slice to be left out", func() error { return refused(t.Context(), way.host, way.to) })
		ns.labelSlice(t, "s", v1.IsHeadlessService, false)
		checkWays(t, []wayIn{way}, podA)
		ns.labelSlice(t, "s", proxyName, true)
		if err := c.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkWays(t, []wayIn{way}, podA)
	})
}

// labelSlice gives a label to a slice that was made by hand, or takes it away.
func (ns *namespace) labelSlice(t *testing.T, service, label string, set bool) {
	t.Helper()
	list := ns.c.client().DiscoveryV1().EndpointSlices(ns.name)
	slice, err := list.Get(t.Context(), sliceName(service), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if delete(slice.Labels, label); set {
		slice.Labels[label] = "" // whatever it says
	}
	if _, err := list.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A Service's type and addresses change, and change back; each time the old ways in are
// closed (B-86).
func TestTypeChanges(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.balancer(t, "s", withExternalIPs)
		c.waitForEndpoints(t, svc, podA)
		pod, client, n := c.podCaller(podC), c.clientCaller(n1), c.nodes[n1]
		gone := func(t *testing.T, to netip.AddrPort) {
			t.Helper()
			eventually(t, to.String()+" to be nobody's", func() error { return unreachable(t.Context(), client.host, to) })
		}
		vip, external := vip(svc, 4), externalIP(svc, 4)
		checkWays(t, []wayIn{{client, vip}, {client, external}, {client, nodePortAt(svc, n, 4)}, {pod, clusterIP(t, svc, 4)}}, podA)

		t.Run("B-86 node port changes", func(t *testing.T) {
			old := nodePortAt(svc, n, 4)
			svc = ns.update(t, "s", func(svc *v1.Service) { svc.Spec.Ports[0].NodePort = freeNodePort })
			checkWays(t, []wayIn{{client, nodePortAt(svc, n, 4)}}, podA)
			eventually(t, "the old node port to be closed", func() error { return refused(t.Context(), client.host, old) })
		})
		t.Run("B-86 external address changes", func(t *testing.T) {
			svc = ns.update(t, "s", func(svc *v1.Service) { svc.Spec.ExternalIPs = []string{external.Addr().Next().String()} })
			checkWays(t, []wayIn{{client, netip.AddrPortFrom(external.Addr().Next(), 80)}}, podA)
			gone(t, external)
		})
		t.Run("B-86 no load balancer any more", func(t *testing.T) {
			svc = ns.update(t, "s", func(svc *v1.Service) {
				clusterIPOnly(svc)
				svc.Spec.ExternalIPs = nil
			})
			gone(t, vip)
			gone(t, netip.AddrPortFrom(external.Addr().Next(), 80))
			eventually(t, "the node port to be closed", func() error {
				return refused(t.Context(), client.host, netip.AddrPortFrom(n.addr(4), freeNodePort))
			})
			checkWays(t, []wayIn{{pod, clusterIP(t, svc, 4)}}, podA)
		})
		ip := clusterIP(t, svc, 4)
		t.Run("B-86 a name only", func(t *testing.T) {
			ns.update(t, "s", func(svc *v1.Service) {
				svc.Spec.Type, svc.Spec.ExternalName = v1.ServiceTypeExternalName, "elsewhere.example"
				svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
				svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = nil, nil
			})
			eventually(t, "the cluster IP to be nobody's", func() error { return unreachable(t.Context(), pod.host, ip) })
		})
		t.Run("B-86 a cluster IP again", func(t *testing.T) {
			svc = ns.update(t, "s", func(svc *v1.Service) {
				svc.Spec.Type, svc.Spec.ExternalName = v1.ServiceTypeClusterIP, ""
			})
			checkWays(t, []wayIn{{pod, clusterIP(t, svc, 4)}}, podA)
		})
	})
}

// freeNodePort is a node port that no other case asks for.
const freeNodePort = 30081
