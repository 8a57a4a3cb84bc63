// Package hostile feeds objects and configurations, as the API serves them and as it
// never would, through the whole way from parser to rules. Whatever comes in, nothing
// panics, the rules that come out are rules that iptables takes, no text in an object
// gets out of its quotes, and no object changes what another one gets.
package hostile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// choices is where objects get their content from: from the bytes, and 0 after their
// end.
type choices struct{ bytes []byte }

// pick returns one of 0 to n-1.
func (c *choices) pick(n int) int {
	if len(c.bytes) == 0 {
		return 0
	}
	choice := int(c.bytes[0]) % n
	c.bytes = c.bytes[1:]
	return choice
}

func one[T any](c *choices, values []T) T { return values[c.pick(len(values))] }

// some returns none to three values of make.
func some[T any](c *choices, make func() T) []T {
	var all []T
	for range c.pick(4) {
		all = append(all, make())
	}
	return all
}

// names are texts where a name should be. The first ones are those of good Services.
var names = []string{
	"a", "b", "a:b", "a/b", "", "-", "!", "-j", "--comment", "COMMIT", "*nat", ":INPUT ACCEPT [0:0]", "# no rule",
	`"`, `'`, `\`, `\"`, `x" -j ACCEPT -m comment --comment "y`, "two words", " a", "a ", "\t", "\n", "\r", "\x00", "\x7f", "\u0085", "\u2028",
	"x\n-A KUBE-SERVICES -j ACCEPT", "x\r\nCOMMIT\n*filter\n-A INPUT -j ACCEPT\nCOMMIT\n", "$(reboot)", "`reboot`", "%s%n%d",
	"\xff\xfe", "é漢字", strings.Repeat("x", 255), strings.Repeat("x", 254) + `"`, strings.Repeat(`\`, 300), strings.Repeat("é", 200), strings.Repeat("\n", 300),
}

// addresses are texts where an address should be. None is one of a good Service.
var addresses = []string{
	"10.99.0.1", "fd00:99::1", "10.99.0.2", "fd00:99::2", "", "None", "none", "0.0.0.0", "::", "127.0.0.1", "::1", "255.255.255.255",
	"224.0.0.1", "ff02::1", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:10.99.0.3", "64:ff9b::10.99.0.4", "010.099.000.005", "1.2.3",
	"10.99.0.1/24", "10.99.0.1 -j ACCEPT", "10.99.0.1\n-A INPUT -j ACCEPT", "localhost", "1.2.3.4.5", "::1::", "0x0a630001", strings.Repeat("1", 300),
}

// ranges are texts where a range should be.
var ranges = append([]string{
	"10.0.0.0/8", "fd00::/8", "0.0.0.0/0", "::/0", "10.9.8.7/16", "10.0.0.0/33", "10.0.0.0/-1", "fd00::/129", "::ffff:10.0.0.0/104", "::ffff:10.0.0.0/8",
	" 10.0.0.0/8 ", "10.0.0.0/8,10.1.0.0/16", "!10.0.0.0/8", "10.0.0.0/08",
}, addresses...)

var (
	numbers   = []int32{80, 8080, 0, -1, 1, 65535, 65536, math.MaxInt32, math.MinInt32, 30080, 53}
	protocols = []corev1.Protocol{
		corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, "", "tcp", "Udp", "ICMP", "all", "0", "6", "-1", "!tcp",
		"TCP ", "TCP\n-A INPUT -j ACCEPT", "tcp -j ACCEPT", `"`, "TCP,UDP",
	}
	seconds = []int32{10800, 0, -1, 1, 86400, 86401, math.MaxInt32, math.MinInt32}
)

func (c *choices) name() string    { return one(c, names) }
func (c *choices) address() string { return one(c, addresses) }

// yes returns a pointer to true or false, or nil.
func (c *choices) yes() *bool {
	return one(c, []*bool{new(true), new(false), nil})
}

// service makes a Service that is called anything.
func (c *choices) service() *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: one(c, append([]string{goodNamespace}, names...)), Name: c.name(),
		UID: "hostile", CreationTimestamp: metav1.Time{Time: time.Unix(int64(c.pick(3)), 0)},
	}}
	svc.Spec = corev1.ServiceSpec{
		Type:                     one(c, []corev1.ServiceType{corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, "", "x"}),
		ClusterIPs:               append([]string{c.address()}, some(c, c.address)...),
		ClusterIP:                c.address(),
		ExternalIPs:              some(c, c.address),
		LoadBalancerSourceRanges: some(c, func() string { return one(c, ranges) }),
		ExternalTrafficPolicy:    one(c, []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal, "", "x"}),
		InternalTrafficPolicy:    one(c, []*corev1.ServiceInternalTrafficPolicy{nil, new(corev1.ServiceInternalTrafficPolicyLocal), new(corev1.ServiceInternalTrafficPolicy("x"))}),
		SessionAffinity:          one(c, []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone, "x"}),
		HealthCheckNodePort:      one(c, numbers),
		Ports: some(c, func() corev1.ServicePort {
			return corev1.ServicePort{Name: c.name(), Protocol: one(c, protocols), Port: one(c, numbers), NodePort: one(c, numbers)}
		}),
	}
	if c.pick(2) == 0 {
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(one(c, seconds))}}
	}
	svc.Status.LoadBalancer.Ingress = some(c, func() corev1.LoadBalancerIngress {
		return corev1.LoadBalancerIngress{
			IP: c.address(), Hostname: c.name(),
			IPMode: one(c, []*corev1.LoadBalancerIPMode{nil, new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy), new(corev1.LoadBalancerIPMode("x"))}),
		}
	})
	return svc
}

// slice makes an EndpointSlice for a Service.
func (c *choices) slice(svc *corev1.Service, number int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: svc.Namespace, Name: fmt.Sprint(c.name(), number), Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: one(c, []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN, "", "x"}),
		Endpoints: some(c, func() discoveryv1.Endpoint {
			return discoveryv1.Endpoint{
				Addresses:  append([]string{c.address()}, some(c, c.address)...),
				Conditions: discoveryv1.EndpointConditions{Ready: c.yes(), Serving: c.yes(), Terminating: c.yes()},
				NodeName:   one(c, []*string{nil, new("n1"), new(c.name())}),
			}
		}),
	}
	for _, p := range svc.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: new(one(c, numbers))})
	}
	return slice
}

// world makes up to three Services with their slices.
func (c *choices) world() (services []*corev1.Service, endpoints []*discoveryv1.EndpointSlice) {
	for range 1 + c.pick(3) {
		svc := c.service()
		if slices.ContainsFunc(services, func(s *corev1.Service) bool { return s.Namespace == svc.Namespace && s.Name == svc.Name }) || isGood(svc) {
			continue
		}
		services = append(services, svc)
		for i := range c.pick(3) {
			endpoints = append(endpoints, c.slice(svc, 10*len(services)+i))
		}
	}
	return services, endpoints
}

// goodNamespace is where the Services are that the others must leave alone.
const goodNamespace = "good"

func isGood(svc *corev1.Service) bool {
	return svc.Namespace == goodNamespace && (svc.Name == "a" || svc.Name == "b")
}

// good makes the two Services that must not change, whatever else there is. Their
// names and ports are close to those of others.
func good() (services []*corev1.Service, endpoints []*discoveryv1.EndpointSlice) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	for i, name := range []string{"a", "b"} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: goodNamespace, Name: name, UID: "good", CreationTimestamp: metav1.Time{Time: time.Unix(5, 0)}}}
		svc.Spec = corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeLoadBalancer,
			ClusterIPs:               []string{fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd00:96::%d", i+1)},
			ExternalIPs:              []string{fmt.Sprintf("10.60.0.%d", i+1), fmt.Sprintf("fd00:60::%d", i+1)},
			LoadBalancerSourceRanges: []string{"10.9.0.0/16", "fd00:9::/32"},
			SessionAffinity:          corev1.ServiceAffinityClientIP,
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:    &local,
			Ports: []corev1.ServicePort{
				{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: int32(31000 + i)},
				{Name: "b", Protocol: corev1.ProtocolTCP, Port: 8080, NodePort: int32(31010 + i)},
				{Name: "b:b", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: int32(31020 + i)},
			},
		}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("10.50.0.%d", i+1)}, {IP: fmt.Sprintf("fd00:50::%d", i+1)}}
		services = append(services, svc)
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			endpoints = append(endpoints, goodSlice(svc, family))
		}
	}
	return services, endpoints
}

func goodSlice(svc *corev1.Service, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name + "-" + string(family), Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: family,
	}
	for _, p := range svc.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: new(int32(8080))})
	}
	for i, node := range []string{"n1", "n2", "n1"} {
		address := fmt.Sprintf("10.244.1.%d", 10+i)
		if family == discoveryv1.AddressTypeIPv6 {
			address = fmt.Sprintf("fd00:244:1::%d", 10+i)
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node})
	}
	return slice
}
