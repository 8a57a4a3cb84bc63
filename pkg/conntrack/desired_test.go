package conntrack

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// The address plan of the tests: ns1/dns is a UDP Service with every kind of
// frontend, A and B are its endpoints, C is a pod with no role.
var (
	clusterIP  = netip.MustParseAddr("10.96.0.53")
	vip        = netip.MustParseAddr("10.50.0.10")
	externalIP = netip.MustParseAddr("10.60.0.10")
	nodeIP     = netip.MustParseAddr("10.0.0.1")
	otherIP    = netip.MustParseAddr("10.96.0.99")
	endpointA  = netip.MustParseAddrPort("10.244.1.10:5353")
	endpointB  = netip.MustParseAddrPort("10.244.2.10:5353")
	client     = netip.MustParseAddrPort("10.244.1.50:40000")
)

const (
	servicePort = 53
	nodePort    = 30053
)

var dns = model.ServicePortName{ServiceName: model.ServiceName{Namespace: "ns1", Name: "dns"}, Port: "dns", Protocol: model.UDP}

func dnsPort() model.ServicePort {
	return model.ServicePort{
		Name: dns, ClusterIP: clusterIP, Port: servicePort, NodePort: nodePort,
		ExternalIPs: []netip.Addr{externalIP}, LoadBalancerVIPs: []netip.Addr{vip},
	}
}

func serving(addrs ...netip.AddrPort) []model.Endpoint {
	var eps []model.Endpoint
	for _, addr := range addrs {
		eps = append(eps, model.Endpoint{Addr: addr, Ready: true, Serving: true})
	}
	return eps
}

// snapshot has ns1/dns with these endpoints.
func snapshot(eps ...model.Endpoint) model.Snapshot {
	return model.Snapshot{
		Services:  map[model.ServicePortName]model.ServicePort{dns: dnsPort()},
		Endpoints: map[model.ServicePortName][]model.Endpoint{dns: eps},
	}
}

func to(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }

// flow is an entry from the client to a frontend that leads somewhere.
func flow(frontend, leadsTo netip.AddrPort) Entry {
	return Entry{Protocol: unix.IPPROTO_UDP, Source: client, Destination: frontend, ReplySource: leadsTo}
}

func TestStale(t *testing.T) {
	withNodePorts := func(d desired) desired {
		d.addresses = []netip.Prefix{netip.PrefixFrom(nodeIP, 32), netip.MustParsePrefix("127.0.0.0/8")}
		return d
	}
	withA := withNodePorts(wanted(snapshot(serving(endpointA)...)))
	withNone := withNodePorts(wanted(snapshot()))
	gone := withNodePorts(wanted(model.Snapshot{})).with(withA)
	tcpOnly := snapshot(serving(endpointA)...)
	tcpOnly.Services = map[model.ServicePortName]model.ServicePort{{ServiceName: dns.ServiceName, Protocol: model.TCP}: dnsPort()}
	draining := model.Endpoint{Addr: endpointA, Serving: true, Terminating: true}
	published := model.Endpoint{Addr: endpointA, Ready: true}
	dead := model.Endpoint{Addr: endpointA, Terminating: true}
	inZone := flow(to(clusterIP, servicePort), to(clusterIP, servicePort))
	inZone.Zone = 7

	for _, tc := range []struct {
		name  string
		want  desired
		entry Entry
		stale bool
	}{
		{"cluster IP to a serving endpoint (B-25)", withA, flow(to(clusterIP, servicePort), endpointA), false},
		{"cluster IP to an endpoint that left (B-24)", withA, flow(to(clusterIP, servicePort), endpointB), true},
		{"VIP to an endpoint that left", withA, flow(to(vip, servicePort), endpointB), true},
		{"external IP to an endpoint that left", withA, flow(to(externalIP, servicePort), endpointB), true},
		{"node port to an endpoint that left", withA, flow(to(nodeIP, nodePort), endpointB), true},
		{"node port on loopback to an endpoint that left", withA, flow(to(netip.MustParseAddr("127.0.0.5"), nodePort), endpointB), true},
		{"node port to a serving endpoint", withA, flow(to(nodeIP, nodePort), endpointA), false},
		{"the endpoint's address with another port", withA, flow(to(clusterIP, servicePort), to(endpointA.Addr(), 9)), true},

		{"draining endpoint keeps its flows", wanted(snapshot(draining)), flow(to(clusterIP, servicePort), endpointA), false},
		{"published, not serving endpoint keeps its flows", wanted(snapshot(published)), flow(to(clusterIP, servicePort), endpointA), false},
		{"endpoint that does not serve any more", wanted(snapshot(dead)), flow(to(clusterIP, servicePort), endpointA), true},

		{"no endpoints left (B-21)", withNone, flow(to(clusterIP, servicePort), endpointA), true},
		{"no endpoints left, node port", withNone, flow(to(nodeIP, nodePort), endpointA), true},
		{"Service gone (B-22)", gone, flow(to(clusterIP, servicePort), endpointA), true},
		{"Service gone, VIP", gone, flow(to(vip, servicePort), endpointA), true},
		{"Service gone, external IP", gone, flow(to(externalIP, servicePort), endpointA), true},
		{"Service gone, node port", gone, flow(to(nodeIP, nodePort), endpointA), true},
		{"Service gone, not translated", gone, flow(to(clusterIP, servicePort), to(clusterIP, servicePort)), false},

		{"sent to the node port before the rule (B-23)", withA, flow(to(nodeIP, nodePort), to(nodeIP, nodePort)), true},
		{"sent to the VIP before the rule (B-23)", withA, flow(to(vip, servicePort), to(vip, servicePort)), true},
		{"to a program on the node while there are no endpoints", withNone, flow(to(nodeIP, nodePort), to(nodeIP, nodePort)), false},
		{"sent to the VIP, still no endpoints", withNone, flow(to(vip, servicePort), to(vip, servicePort)), false},
		{"endpoint is the node port's own address and port", withNodePorts(wanted(snapshot(serving(to(nodeIP, nodePort))...))),
			flow(to(nodeIP, nodePort), to(nodeIP, nodePort)), false},

		{"other cluster IP, port as the node port (B-27)", withA, flow(to(otherIP, nodePort), endpointB), false},
		{"other host, port as the node port (B-27)", withA, flow(to(netip.MustParseAddr("192.0.2.9"), nodePort), to(netip.MustParseAddr("192.0.2.9"), nodePort)), false},
		{"other port of the VIP (B-27)", withA, flow(to(vip, 54), endpointB), false},
		{"node port number on an address without node ports", wanted(snapshot(serving(endpointA)...)), flow(to(nodeIP, nodePort), endpointB), false},
		{"TCP Service's address and port number in UDP", wanted(tcpOnly), flow(to(clusterIP, servicePort), endpointB), false},
		{"other conntrack zone", withA, inZone, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.want.stale(tc.entry); got != tc.stale {
				t.Errorf("%+v: stale is %v, want %v", tc.entry, got, tc.stale)
			}
		})
	}
}

// Two Services on one external address keep each other's flows, whichever the rules
// prefer, and neither sees the other's endpoints on its own frontends.
func TestFrontendOfTwoServices(t *testing.T) {
	snap := snapshot(serving(endpointA)...)
	second := model.ServicePortName{ServiceName: model.ServiceName{Namespace: "ns1", Name: "dns2"}, Protocol: model.UDP}
	snap.Services[second] = model.ServicePort{Name: second, ClusterIP: otherIP, Port: servicePort, ExternalIPs: []netip.Addr{externalIP}}
	snap.Endpoints[second] = serving(endpointB)
	d := wanted(snap)
	for _, tc := range []struct {
		name  string
		entry Entry
		stale bool
	}{
		{"shared address to the first's endpoint", flow(to(externalIP, servicePort), endpointA), false},
		{"shared address to the second's endpoint", flow(to(externalIP, servicePort), endpointB), false},
		{"first's own address to the second's endpoint", flow(to(clusterIP, servicePort), endpointB), true},
		{"second's own address to the first's endpoint", flow(to(otherIP, servicePort), endpointA), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := d.stale(tc.entry); got != tc.stale {
				t.Errorf("stale is %v, want %v", got, tc.stale)
			}
		})
	}
}
