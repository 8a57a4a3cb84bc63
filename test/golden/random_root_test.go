package golden_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/test/golden"
	"github.com/miniproxy/miniproxy/test/seed"
)

// TestKernelFollowsRandomClusters takes one agent through random clusters on the real
// kernel. After each step the kernel holds, chain by chain, what an agent would write
// that starts then.
func TestKernelFollowsRandomClusters(t *testing.T) {
	labtest.Require(t)
	first := seed.Of(t)
	c, err := golden.Load("dual-stack")
	if err != nil {
		t.Fatal(err)
	}
	l := labtest.New(t)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		for _, family := range model.Families {
			for form, change := range forms {
				t.Run(fmt.Sprintf("%s/%s/%s", backend, family, form), func(t *testing.T) {
					host, err := l.Host(fmt.Sprintf("r%s%d%d", backend, family, len(form)))
					if err != nil {
						t.Fatal(err)
					}
					cluster := randomCluster{rand.New(rand.NewPCG(first, 0)), c.Steps[0].Objects.Nodes, map[int]randomService{}}
					real := newAgent(t, c, family, change, newRealKernel(t, host, family, backend))
					for step := range 25 {
						objects := cluster.next()
						real.follow(objects)
						fresh := newAgent(t, c, family, change, newSimulated(family))
						fresh.follow(objects)
						for _, diff := range ruleset.Diff(real.rules(), fresh.rules()) {
							t.Errorf("step %d: the kernel differs from a fresh start: %v", step+1, diff)
						}
						if t.Failed() {
							return
						}
					}
				})
			}
		}
	}
}

// randomCluster makes and changes up to a dozen Services.
type randomCluster struct {
	*rand.Rand
	nodes    []*v1.Node
	services map[int]randomService
}

type randomService struct {
	service *v1.Service
	slices  []*discoveryv1.EndpointSlice
}

// next changes some Services, and returns all objects.
func (c randomCluster) next() golden.Objects {
	for range 1 + c.IntN(3) {
		n := 1 + c.IntN(12)
		if c.IntN(4) == 0 {
			delete(c.services, n)
			continue
		}
		c.services[n] = randomService{c.service(n), []*discoveryv1.EndpointSlice{c.slice(n, 4), c.slice(n, 6)}}
	}
	objects := golden.Objects{Nodes: c.nodes}
	for n := range 13 {
		if s, exists := c.services[n]; exists {
			objects.Services = append(objects.Services, s.service)
			objects.Slices = append(objects.Slices, s.slices...)
		}
	}
	return objects
}

func (c randomCluster) chance() bool { return c.IntN(2) == 0 }

func (c randomCluster) service(n int) *v1.Service {
	protocol := []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}[c.IntN(3)]
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: fmt.Sprintf("s%d", n)}}
	svc.Spec.Type = v1.ServiceTypeClusterIP
	svc.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%d", n)}
	svc.Spec.Ports = []v1.ServicePort{{Name: "http", Protocol: protocol, Port: int32(80 + c.IntN(2))}}
	if c.chance() {
		svc.Spec.Type = v1.ServiceTypeLoadBalancer
		svc.Spec.Ports[0].NodePort = int32(30000 + n)
		svc.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: fmt.Sprintf("10.50.0.%d", n)}, {IP: fmt.Sprintf("fd00:50::%d", n)}}
		if c.chance() {
			svc.Spec.LoadBalancerSourceRanges = []string{"10.9.0.0/16", "fd00:9::/32"}
		}
		if c.chance() {
			svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
			svc.Spec.HealthCheckNodePort = int32(32000 + n)
		}
	}
	if c.chance() {
		svc.Spec.ExternalIPs = []string{fmt.Sprintf("10.60.0.%d", n), fmt.Sprintf("fd00:60::%d", n)}
	}
	if c.chance() {
		local := v1.ServiceInternalTrafficPolicyLocal
		svc.Spec.InternalTrafficPolicy = &local
	}
	if c.IntN(4) == 0 {
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	return svc
}

// slice makes the endpoints of a Service in one family, few enough to differ from
// step to step.
func (c randomCluster) slice(n, family int) *discoveryv1.EndpointSlice {
	address, kind := "10.244.%d.%d", discoveryv1.AddressTypeIPv4
	if family == 6 {
		address, kind = "fd00:244:%d::%d", discoveryv1.AddressTypeIPv6
	}
	port, name := int32(8080), "http"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1",
			Name:      fmt.Sprintf("s%d-%d", n, family),
			Labels:    map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", n)},
		},
		AddressType: kind,
	}
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	for range c.IntN(6) {
		on := 1 + c.IntN(2)
		node, ready, terminating := fmt.Sprintf("n%d", on), c.IntN(4) > 0, c.IntN(4) == 0
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf(address, on, 10+c.IntN(8))},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating},
		})
	}
	return slice
}
