package render

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// n1 is the node under test as a packet sees it.
var n1 = trace.Host{Interfaces: []trace.Interface{
	{Name: "eth0", Addrs: []netip.Prefix{prefix("10.0.0.1/24"), prefix("fd00::1/64")}},
	{Name: "cni0", Addrs: []netip.Prefix{prefix("10.244.1.1/24"), prefix("fd00:244:1::1/64")}},
}}

func (r rendered) tracer(t *testing.T) *trace.Tracer {
	t.Helper()
	addHooks(r.Ruleset, Lacks{})
	tracer, err := trace.New(r.Ruleset, n1)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// TestTreesTreatPacketsAlike: whatever the form of the chains, packets to Services and
// to what lies next to them meet the same fate, with the same probability.
func TestTreesTreatPacketsAlike(t *testing.T) {
	worlds := map[string]world{
		"IPv4, all kinds":         many(60),
		"IPv4, close together":    scattered(200, 10),
		"IPv4, far apart":         scattered(200, 0),
		"IPv6":                    many6(60),
		"one address, many ports": onOneAddress(150),
		"one Service, many pods":  newWorld().with(service("s", nodePort, externalLocal), pods(90)...),
		"affinity, many pods":     newWorld().with(service("s", nodePort, externalLocal, affinity), pods(40)...),
		"refused, close together": withoutEndpoints(scattered(100, 10)),
		"refused and far apart":   withoutEndpoints(scattered(100, 0)),
		"one address, few ports":  onOneAddress(20),
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			o := options()
			if name == "IPv6" {
				o = options(ipv6)
			}
			o.FlatDispatch, o.FlatBalance = 1_000_000, 1_000_000
			flat := w.render(o).tracer(t)
			o.FlatDispatch, o.FlatBalance = 1, 1
			tree := w.render(o).tracer(t)
			differences, err := trace.Compare(tree, flat, packetsFor(w))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range differences {
				t.Error(d)
			}
		})
	}
}

// packetsFor are packets of a pod, the node and a client to every frontend, and to
// the addresses and ports next to it.
func packetsFor(w world) []trace.Packet {
	var packets []trace.Packet
	for name, p := range w.Services {
		destinations := []netip.Addr{p.ClusterIP, p.ClusterIP.Prev(), p.ClusterIP.Next(), addr("10.0.0.1"), addr("10.0.0.2")}
		destinations = append(destinations, p.LoadBalancerVIPs...)
		for _, to := range append(destinations, p.ExternalIPs...) {
			for _, port := range []uint16{p.Port, p.Port + 1, p.NodePort, p.NodePort - 1, p.HealthCheckNodePort} {
				for _, from := range sources(to) {
					from.Destination, from.DestinationPort, from.Protocol = to, port, name.Protocol.Lower()
					packets = append(packets, from)
				}
			}
		}
	}
	return packets
}

// sources are a pod, the node and a client outside.
func sources(to netip.Addr) []trace.Packet {
	if to.Is6() {
		return []trace.Packet{
			{In: "cni0", Source: addr("fd00:244:1::50"), SourcePort: 40000},
			{Source: addr("fd00::1"), SourcePort: 40000},
			{In: "eth0", Source: addr("fd00:9::9"), SourcePort: 40000},
		}
	}
	return []trace.Packet{
		{In: "cni0", Source: addr("10.244.1.50"), SourcePort: 40000},
		{Source: addr("10.0.0.1"), SourcePort: 40000},
		{In: "eth0", Source: addr("10.9.9.9"), SourcePort: 40000},
	}
}

// scattered are Services whose cluster IPs share their first bits.
func scattered(n, shared int) world {
	random := rand.New(rand.NewPCG(uint64(n), uint64(shared)))
	w := newWorld()
	for i := range n {
		b := random.Uint32() >> shared
		clusterIP := netip.AddrFrom4([4]byte{10, byte(b >> 16), byte(b >> 8), byte(b)})
		if shared == 0 {
			clusterIP = netip.AddrFrom4([4]byte{byte(b>>24)&0x7f | 0x20, byte(b >> 16), byte(b >> 8), byte(b)})
		}
		w.with(service(fmt.Sprint("s", i), at(clusterIP.String()), func(p *model.ServicePort) {
			p.NodePort = uint16(1 + random.IntN(65534))
		}), A, B)
	}
	return w
}

// onOneAddress are Services that share a load balancer IP, each with a port of its own.
func onOneAddress(n int) world {
	w := newWorld()
	for i := range n {
		w.with(service(fmt.Sprint("s", i), at(fmt.Sprintf("10.96.%d.%d", i/250, i%250)), loadBalancer, func(p *model.ServicePort) {
			p.Port = uint16(1000 + 2*i)
			p.NodePort = uint16(30000 + i)
		}), A)
	}
	return w
}

func withoutEndpoints(w world) world {
	clear(w.Endpoints)
	return w
}

// A packet to an address that hundreds of Services share, each with a port of its own,
// does not meet them one by one.
func TestManyPortsOnOneAddress(t *testing.T) {
	const most = 24
	for id, chain := range onOneAddress(400).render(options()).Ruleset {
		if n := len(chain.Rules); n > most {
			t.Errorf("%v has %d rules, want at most %d", id, n, most)
		}
	}
}
