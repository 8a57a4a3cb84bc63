package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
)

// namespace is a Kubernetes namespace that one case has for itself.
type namespace struct {
	c    *cluster
	name string
}

// newNamespace makes a namespace. When the case ends, its Services and pods are
// removed, and the agents have taken note.
func (c *cluster) newNamespace(t *testing.T) *namespace {
	t.Helper()
	obj, err := c.client().CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "case-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns := &namespace{c: c, name: obj.Name}
	t.Cleanup(func() {
		if err := ns.empty(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return ns
}

// empty removes what a case made.
func (ns *namespace) empty(ctx context.Context) error {
	core := ns.c.client().CoreV1()
	services, err := core.Services(ns.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, svc := range services.Items {
		if err := core.Services(ns.name).Delete(ctx, svc.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	var now int64
	err = core.Pods(ns.name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return ns.c.settle(ctx)
}

// appLabel is the label that Services select pods by.
const appLabel = "app"

// pod makes a Pod of an app that runs in a sandbox, ready.
func (ns *namespace) pod(t *testing.T, app, sandbox string) {
	t.Helper()
	s := ns.c.pods[sandbox]
	obj := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: sandbox, Labels: map[string]string{appLabel: app}},
		Spec: v1.PodSpec{
			NodeName: s.node,
			Containers: []v1.Container{{
				Name: "server", Image: "server",
				Ports: []v1.ContainerPort{{Name: "web", ContainerPort: podPort}},
			}},
		},
	}
	pods := ns.c.client().CoreV1().Pods(ns.name)
	// Admission asks for the namespace's default ServiceAccount, which a controller makes.
	eventually(t, "the pod to be admitted", func() error {
		created, err := pods.Create(t.Context(), obj, metav1.CreateOptions{})
		if err == nil {
			obj = created
		}
		return err
	})
	obj.Status.Phase = v1.PodRunning
	for _, addr := range s.addrs {
		obj.Status.PodIPs = append(obj.Status.PodIPs, v1.PodIP{IP: addr.String()})
	}
	obj.Status.PodIP = obj.Status.PodIPs[0].IP
	obj.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	if _, err := pods.UpdateStatus(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// setReady changes a pod's readiness, as the kubelet does after a probe.
func (ns *namespace) setReady(t *testing.T, name string, ready bool) {
	t.Helper()
	status := v1.ConditionFalse
	if ready {
		status = v1.ConditionTrue
	}
	pods := ns.c.client().CoreV1().Pods(ns.name)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		obj.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: status}}
		_, err = pods.UpdateStatus(t.Context(), obj, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// deletePod removes a pod at once, as the kubelet does when its containers are gone.
func (ns *namespace) deletePod(t *testing.T, name string) {
	t.Helper()
	var now int64
	err := ns.c.client().CoreV1().Pods(ns.name).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		t.Fatal(err)
	}
}

// service makes a dual-stack ClusterIP Service with one TCP port, http 80 -> 8080,
// over the pods of the app with the Service's name. mutate changes it first. It
// returns when all nodes have a rule for it: a connection before that would leave an
// entry in conntrack that says "no translation" and is good for two minutes, and a
// later connection from the same source port would meet it.
func (ns *namespace) service(t *testing.T, name string, mutate ...func(*v1.Service)) *v1.Service {
	t.Helper()
	svc := ns.serviceUnseen(t, name, mutate...)
	ns.c.waitForRules(t, svc, portName(svc))
	return svc
}

// serviceUnseen is service without the wait.
func (ns *namespace) serviceUnseen(t *testing.T, name string, mutate ...func(*v1.Service)) *v1.Service {
	t.Helper()
	dual := v1.IPFamilyPolicyRequireDualStack
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			IPFamilyPolicy: &dual,
			IPFamilies:     []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			Selector:       map[string]string{appLabel: name},
			Ports:          []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(podPort)}},
		},
	}
	for _, m := range mutate {
		m(svc)
	}
	svc, err := ns.c.client().CoreV1().Services(ns.name).Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// waitForRules waits until all nodes have a rule with the text in its comment, in
// each family of the Service.
func (c *cluster) waitForRules(t *testing.T, svc *v1.Service, text string) {
	t.Helper()
	for _, n := range c.nodes {
		for _, family := range familiesOf(svc) {
			if err := n.waitForRule(t.Context(), family, text); err != nil {
				t.Fatalf("on %s: %v", n.Plan.Name, err)
			}
		}
	}
}

// waitForEndpoints waits until all nodes translate to all these pods.
func (c *cluster) waitForEndpoints(t *testing.T, svc *v1.Service, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		for _, family := range familiesOf(svc) {
			text := fmt.Sprintf("%s -> %s", portName(svc), c.pods[pod].addrPort(family))
			for _, n := range c.nodes {
				if err := n.waitForRule(t.Context(), family, text); err != nil {
					t.Fatalf("on %s: %v", n.Plan.Name, err)
				}
			}
		}
	}
}

// familiesOf are the families of a Service's cluster IPs, 4 and 6.
func familiesOf(svc *v1.Service) []int {
	var list []int
	for _, f := range svc.Spec.IPFamilies {
		if f == v1.IPv6Protocol {
			list = append(list, 6)
		} else {
			list = append(list, 4)
		}
	}
	return list
}

// update changes a Service.
func (ns *namespace) update(t *testing.T, name string, mutate func(*v1.Service)) *v1.Service {
	t.Helper()
	services := ns.c.client().CoreV1().Services(ns.name)
	var svc *v1.Service
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if svc, err = services.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		mutate(svc)
		svc, err = services.Update(t.Context(), svc, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// deleteService removes a Service; one that is gone already is fine.
func (ns *namespace) deleteService(t *testing.T, name string) {
	t.Helper()
	err := ns.c.client().CoreV1().Services(ns.name).Delete(t.Context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// The mutations that several cases make.

func nodePort(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort }

func clusterIPOnly(svc *v1.Service) {
	svc.Spec.Type = v1.ServiceTypeClusterIP
	svc.Spec.Ports[0].NodePort = 0
}

// udp makes the Service's port a UDP one, called dns.
func udp(svc *v1.Service) {
	svc.Spec.Ports[0].Name = "dns"
	svc.Spec.Ports[0].Protocol = v1.ProtocolUDP
	svc.Spec.Ports[0].Port = 53
}

// internalLocal keeps in-cluster traffic on the node it comes from.
func internalLocal(svc *v1.Service) {
	local := v1.ServiceInternalTrafficPolicyLocal
	svc.Spec.InternalTrafficPolicy = &local
}

// clusterIP is the address and first port of a Service in a family.
func clusterIP(t *testing.T, svc *v1.Service, family int) netip.AddrPort {
	t.Helper()
	for _, text := range svc.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if addr.Is4() == (family == 4) {
			return netip.AddrPortFrom(addr, uint16(svc.Spec.Ports[0].Port))
		}
	}
	t.Fatalf("Service %s/%s has no cluster IP of family %s", svc.Namespace, svc.Name, familyName(family))
	return netip.AddrPort{}
}

// nodePortAt is a node's address in a family with the Service's node port.
func nodePortAt(svc *v1.Service, n *node, family int) netip.AddrPort {
	return netip.AddrPortFrom(n.addr(family), uint16(svc.Spec.Ports[0].NodePort))
}

// portName is how comments name the Service's first port.
func portName(svc *v1.Service) string {
	name := svc.Namespace + "/" + svc.Name
	if port := svc.Spec.Ports[0].Name; port != "" {
		name += ":" + port
	}
	return name
}
