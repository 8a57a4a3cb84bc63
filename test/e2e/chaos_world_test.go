package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// world is what a chaos has in the API server: steady Services, which clients connect
// to and which keep an endpoint that serves, and wild ones, which are anything. No
// Service has a selector, so that the slices are the test's own.
type world struct {
	*rand.Rand
	ns *namespace
	// steady are the steady Services, as first made: their addresses do not change.
	steady []*v1.Service
	// talking is the UDP one of them, and serving are the endpoints that may keep a flow:
	// it stays with one that ends as long as that serves.
	talking *v1.Service
	serving []string
}

// wildNames are the wild Services, of which some exist, and wildPorts the ports that
// each has some of. The slices have all.
var (
	wildNames = []string{"w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"}
	wildPorts = []v1.ServicePort{
		{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}, {Name: "more", Protocol: v1.ProtocolTCP, Port: 81},
		{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53}, {Name: "sig", Protocol: v1.ProtocolSCTP, Port: 80},
	}
)

func newWorld(t *testing.T, c *cluster, r *rand.Rand) *world {
	t.Helper()
	w := &world{Rand: r, ns: c.newNamespace(t)}
	t.Cleanup(func() {
		err := c.client().DiscoveryV1().EndpointSlices(w.ns.name).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		for name, zone := range zones {
			if err := w.label(context.Background(), name, zone); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// populate makes the steady Services, with endpoints.
func (w *world) populate(t *testing.T) {
	t.Helper()
	for name, mutate := range map[string]func(*v1.Service){
		"steady-cluster":  func(*v1.Service) {},
		"steady-node":     nodePort,
		"steady-balancer": func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeLoadBalancer },
		"steady-udp":      udp,
	} {
		svc := w.ns.serviceUnseen(t, name, mutate, func(svc *v1.Service) { svc.Spec.Selector = nil })
		if svc.Spec.Type == v1.ServiceTypeLoadBalancer {
			svc.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: steadyBalancer[4].String()}, {IP: steadyBalancer[6].String()}}
			if _, err := w.ns.c.client().CoreV1().Services(w.ns.name).UpdateStatus(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w.steady = append(w.steady, svc)
		if name == "steady-udp" {
			w.talking = svc
		}
	}
	// Maps have no order, and the random numbers are to mean the same each time.
	slices.SortFunc(w.steady, func(a, b *v1.Service) int { return cmpNames(a, b) })
	for _, svc := range w.steady {
		if _, err := w.changeSteadySlices(t.Context(), svc); err != nil {
			t.Fatal(err)
		}
	}
}

func cmpNames(a, b *v1.Service) int {
	if a.Name < b.Name {
		return -1
	}
	return 1
}

// steadyBalancer are the load balancer's addresses of the steady Service that has one.
var steadyBalancer = map[int]netip.Addr{4: netip.MustParseAddr("10.50.1.1"), 6: netip.MustParseAddr("fd00:50::1:1")}

func (w *world) chance() bool { return w.IntN(2) == 0 }

func (w *world) oneOf(values ...string) string { return values[w.IntN(len(values))] }

// event changes something, and says what.
func (w *world) event(ctx context.Context) (what string, err error) {
	switch w.IntN(12) {
	case 0, 1, 2:
		return w.changeSteadySlices(ctx, w.steady[w.IntN(len(w.steady))])
	case 3:
		return w.changeSteady(ctx, w.steady[w.IntN(len(w.steady))].Name)
	case 4, 5, 6:
		return w.changeWild(ctx, w.oneOf(wildNames...))
	case 7:
		node := w.oneOf(n1, n2)
		zone := w.oneOf("zone-a", "zone-b", "zone-c", "")
		return fmt.Sprintf("node %s moves to zone %q", node, zone), w.label(ctx, node, zone)
	default:
		return w.changeWildSlice(ctx, w.oneOf(wildNames...))
	}
}

// label puts a node into a zone, none if it is empty.
func (w *world) label(ctx context.Context, node, zone string) error {
	var value any
	if zone != "" {
		value = zone
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{v1.LabelTopologyZone: value}}})
	if err != nil {
		return err
	}
	_, err = w.ns.c.client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// changeSteady changes of a steady Service what its clients do not notice.
func (w *world) changeSteady(ctx context.Context, name string) (what string, err error) {
	what = "change " + name
	services := w.ns.c.client().CoreV1().Services(w.ns.name)
	svc, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return what, err
	}
	w.setAffinity(svc)
	svc.Spec.ExternalIPs = w.externalIPs()
	svc.Spec.Ports = svc.Spec.Ports[:1]
	if w.chance() {
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: "more", Port: 81, TargetPort: intstr.FromInt32(podPort)})
	}
	if w.chance() {
		svc.Spec.TrafficDistribution = new(v1.ServiceTrafficDistributionPreferSameZone)
	}
	if svc.Spec.Type == v1.ServiceTypeLoadBalancer {
		svc.Spec.LoadBalancerSourceRanges = [][]string{nil, {"10.9.0.0/16", "fd00:9::/32"}, {"0.0.0.0/0", "::/0"}}[w.IntN(3)]
	}
	_, err = services.Update(ctx, svc, metav1.UpdateOptions{})
	return what, err
}

func (w *world) setAffinity(svc *v1.Service) {
	svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = v1.ServiceAffinityNone, nil
	if w.IntN(3) == 0 {
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
}

// externalIPs are few, so that Services take them from each other.
func (w *world) externalIPs() []string {
	if w.chance() {
		return nil
	}
	n := 1 + w.IntN(3)
	return []string{fmt.Sprintf("10.60.0.%d", n), fmt.Sprintf("fd00:60::%d", n)}
}

// changeSteadySlices gives a steady Service other endpoints. What is added is added
// first, so that there is always one that serves.
func (w *world) changeSteadySlices(ctx context.Context, svc *v1.Service) (what string, err error) {
	pods := []string{podA, podA2, podB, podB2}
	w.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	keep := 1 + w.IntN(len(pods))
	// A Service without a ready endpoint is served by those that end, if they serve.
	ending := w.IntN(6) == 0
	var ready, serving []string
	var all []discoveryv1.Endpoint
	for i, pod := range pods {
		switch {
		case i >= keep && w.chance():
			continue
		case i >= keep && w.chance():
			all = append(all, w.endpoint(pod, false, true, w.chance()))
			serving = append(serving, pod)
		case i >= keep:
			all = append(all, w.endpoint(pod, false, false, w.chance()))
		case ending:
			all = append(all, w.endpoint(pod, false, true, true))
			ready = append(ready, pod)
		default:
			all = append(all, w.endpoint(pod, true, true, false))
			ready = append(ready, pod)
		}
	}
	cut := w.IntN(len(all) + 1)
	parts := map[string][]discoveryv1.Endpoint{"1": all[:cut], "2": all[cut:]}
	order := []string{"1", "2"}
	if w.chance() {
		order = []string{"2", "1"}
	}
	if svc.Name == w.talking.Name {
		w.serving = append(serving, ready...)
	}
	what = fmt.Sprintf("%s is served by %v, ending: %v, of %d endpoints, %d in the first slice", svc.Name, ready, ending, len(all), cut)
	for _, family := range families {
		// First everything in one slice, then what the other one had has moved.
		if err := w.writeSlice(ctx, svc.Name, order[0], family, all); err != nil {
			return what, err
		}
		for _, part := range []string{order[1], order[0]} {
			if err := w.writeSlice(ctx, svc.Name, part, family, parts[part]); err != nil {
				return what, err
			}
		}
	}
	return what, nil
}

// endpoint is one of the pods; writeSlice gives it the family's address.
func (w *world) endpoint(pod string, ready, serving, terminating bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{pod},
		NodeName:   new(w.ns.c.pods[pod].node),
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}
	if w.IntN(3) == 0 {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: w.oneOf("zone-a", "zone-b")}}}
	}
	return e
}

// writeSlice makes or changes a slice of a Service.
func (w *world) writeSlice(ctx context.Context, service, part string, family int, endpoints []discoveryv1.Endpoint) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("%s-%d-%s", service, family, part),
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "chaos"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if family == 6 {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, e := range endpoints {
		e.Addresses = []string{w.ns.c.pods[e.Addresses[0]].addr(family).String()}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	for _, port := range wildPorts {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: new(int32(podPort))})
	}
	api := w.ns.c.client().DiscoveryV1().EndpointSlices(w.ns.name)
	_, err := api.Update(ctx, slice, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, slice, metav1.CreateOptions{})
	}
	return err
}

// changeWildSlice gives a wild Service other endpoints, or takes a slice of it away. The
// Service need not exist.
func (w *world) changeWildSlice(ctx context.Context, name string) (what string, err error) {
	family, part := families[w.IntN(len(families))], w.oneOf("1", "2")
	if w.IntN(4) == 0 {
		err := w.ns.c.client().DiscoveryV1().EndpointSlices(w.ns.name).Delete(ctx, fmt.Sprintf("%s-%d-%s", name, family, part), metav1.DeleteOptions{})
		return fmt.Sprintf("delete slice %s of %s, %s", part, name, familyName(family)), ignoreNotFound(err)
	}
	var endpoints []discoveryv1.Endpoint
	for _, pod := range []string{podA, podA2, podB, podB2, podC, podD} {
		if w.chance() {
			endpoints = append(endpoints, w.endpoint(pod, w.IntN(4) > 0, w.chance(), w.IntN(4) == 0))
		}
	}
	what = fmt.Sprintf("slice %s of %s has %d endpoints, %s", part, name, len(endpoints), familyName(family))
	return what, w.writeSlice(ctx, name, part, family, endpoints)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// changeWild makes, changes or deletes a wild Service.
func (w *world) changeWild(ctx context.Context, name string) (what string, err error) {
	services := w.ns.c.client().CoreV1().Services(w.ns.name)
	svc, err := services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		svc = &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.shape(svc)
		what = fmt.Sprintf("make %s, %s", name, svc.Spec.Type)
		if svc, err = services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return what, err
		}
		return what, w.giveAddress(ctx, svc)
	case err != nil:
		return "look at " + name, err
	case w.IntN(3) == 0:
		return "delete " + name, services.Delete(ctx, name, metav1.DeleteOptions{})
	}
	w.shape(svc)
	what = fmt.Sprintf("change %s to %s", name, svc.Spec.Type)
	if svc, err = services.Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		return what, err
	}
	return what, w.giveAddress(ctx, svc)
}

// shape makes a Service one of any kind.
func (w *world) shape(svc *v1.Service) {
	spec := &svc.Spec
	spec.Type = v1.ServiceType(w.oneOf(string(v1.ServiceTypeClusterIP), string(v1.ServiceTypeNodePort), string(v1.ServiceTypeLoadBalancer)))
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = new(v1.IPFamilyPolicyRequireDualStack)
		if w.IntN(5) == 0 {
			spec.IPFamilyPolicy = new(v1.IPFamilyPolicySingleStack)
			spec.IPFamilies = []v1.IPFamily{v1.IPFamily(w.oneOf(string(v1.IPv4Protocol), string(v1.IPv6Protocol)))}
		}
	}
	spec.Ports = nil
	for _, port := range wildPorts {
		if w.chance() || port.Name == "sig" && len(spec.Ports) == 0 {
			port.TargetPort = intstr.FromInt32(podPort)
			spec.Ports = append(spec.Ports, port)
		}
	}
	w.setAffinity(svc)
	spec.ExternalIPs = w.externalIPs()
	spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicy(w.oneOf("Cluster", "Cluster", "Local")))
	spec.ExternalTrafficPolicy, spec.LoadBalancerSourceRanges = "", nil
	if spec.Type == v1.ServiceTypeClusterIP {
		if len(spec.ExternalIPs) > 0 {
			spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		}
		spec.HealthCheckNodePort = 0
		return
	}
	spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicy(w.oneOf("Cluster", "Local"))
	if spec.Type != v1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type == v1.ServiceTypeLoadBalancer && w.chance() {
		spec.LoadBalancerSourceRanges = []string{w.oneOf("10.9.0.0/16", "10.244.0.0/16"), w.oneOf("fd00:9::/32", "fd00:244::/32")}
	}
}

// giveAddress does what a cloud does for a Service of type LoadBalancer.
func (w *world) giveAddress(ctx context.Context, svc *v1.Service) error {
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer || w.IntN(4) == 0 {
		return nil
	}
	n := 1 + w.IntN(4)
	svc.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: fmt.Sprintf("10.50.0.%d", n)}, {IP: fmt.Sprintf("fd00:50::%d", n)}}
	_, err := w.ns.c.client().CoreV1().Services(w.ns.name).UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	return err
}
