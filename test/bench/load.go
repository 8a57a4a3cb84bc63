package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The address plan:
//
//	10.0.0.1       the node n1, where the program and the client are
//	10.0.0.2       where all pods are
//	10.244.0.0/14  pods; every address answers. 10.247.255.1 to .9 are not in the load:
//	               the endpoints that the changing Service switches between, and the
//	               one for direct connections
//	10.96.0.0/12   cluster IPs: 10.96.0.2 is the Service that changes, the upper half
//	               are the others
var (
	nodeAddr     = netip.MustParseAddr("10.0.0.1")
	podsAddr     = netip.MustParseAddr("10.0.0.2")
	podRange     = netip.MustParsePrefix("10.244.0.0/14")
	serviceRange = netip.MustParsePrefix("10.96.0.0/12")

	probeService   = netip.MustParseAddrPort("10.96.0.2:80")
	probeEndpoints = [2]netip.Addr{netip.MustParseAddr("10.247.255.1"), netip.MustParseAddr("10.247.255.2")}
	directEndpoint = netip.MustParseAddrPort("10.247.255.9:8080")
)

const (
	nodeName    = "n1"
	podPort     = 8080
	maxServices = 1 << 19
	maxPods     = 1<<18 - 1<<10
)

// load is what the cluster holds: Services with one TCP port, each with one
// EndpointSlice.
type load struct{ services, endpoints int }

func (l load) check() error {
	if l.services < 1 || l.endpoints < 1 || l.services > maxServices || l.services*l.endpoints > maxPods {
		return fmt.Errorf("%d Services with %d endpoints: want at least one of each, and at most %d endpoints in all", l.services, l.endpoints, maxPods)
	}
	return nil
}

// serviceAddr is where Service i is reached. An odd factor spreads consecutive numbers
// over the range, as a random allocator does, and gives no two of them the same address.
func serviceAddr(i int) netip.AddrPort {
	const factor = 0x9E3779B1
	offset := maxServices + uint32(i)*factor%maxServices
	return netip.AddrPortFrom(offsetAddr(serviceRange, offset), 80)
}

// podAddr is the address of pod n.
func podAddr(n int) netip.Addr { return offsetAddr(podRange, 256+uint32(n)) }

func offsetAddr(p netip.Prefix, offset uint32) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+offset)
	return netip.AddrFrom4(b)
}

// node is the Node that the program runs on.
func node() *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: meta("", nodeName),
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: nodeAddr.String()},
			{Type: corev1.NodeHostName, Address: nodeName},
		}},
	}
}

// service is a Service as an API server returns it, with the defaults filled in.
func service(name string, addr netip.AddrPort) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta("default", name),
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			Selector:              map[string]string{"app": name},
			ClusterIP:             addr.Addr().String(),
			ClusterIPs:            []string{addr.Addr().String()},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(addr.Port())}},
		},
	}
}

// slice is the EndpointSlice of a Service whose endpoints are all ready and on other
// nodes.
func slice(service string, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  meta("default", service+"-1"),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(podPort))}},
	}
	s.Labels = map[string]string{
		discoveryv1.LabelServiceName: service,
		discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
	}
	for i, addr := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addr.String()},
			NodeName:   new(fmt.Sprintf("n%d", 2+i%10)),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-%d", service, i), UID: uid(addr.String())},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	return s
}

// meta is an object's metadata as in a real cluster: what programs do not use of it
// must be read by them and thrown away all the same.
func meta(namespace, name string) metav1.ObjectMeta {
	created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		UID:               uid(namespace + "/" + name),
		CreationTimestamp: created,
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "controller", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created,
			FieldsType: "FieldsV1",
			FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`),
		}},
	}
}

// uid has the length of a real one.
func uid(name string) types.UID { return types.UID(fmt.Sprintf("%036.36x", name)) }
