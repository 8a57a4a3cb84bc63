package render

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// A testCase is a snapshot and the options that it is rendered with. Every case is
// rendered, compared with its golden file, and checked.
type testCase struct {
	name    string
	options Options
	world   world
}

// cases are one of each kind of Service, node and configuration.
func cases() []testCase {
	return []testCase{
		{"empty", options(), newWorld()},
		{"clusterip", options(), newWorld().with(service("s"), A, B)},
		{"clusterip-ipv6", options(ipv6), newWorld().with(service("s", at("fd00:96::80")), A6, B6)},
		{"clusterip-unready-only", options(), newWorld().with(service("s"), unready(A))},
		{"clusterip-draining-only", options(), newWorld().with(service("s"), draining(A), draining(B))},
		{"clusterip-local", options(), newWorld().with(service("s", internalLocal), A, B)},
		{"clusterip-local-elsewhere", options(), newWorld().with(service("s", internalLocal), B)},
		{"affinity", options(), newWorld().with(service("s", affinity), A, B)},
		{"affinity-both-policies", options(), newWorld().with(service("s", affinity, nodePort, externalLocal), A, B)},
		{"nodeport", options(), newWorld().with(service("s", nodePort), A, B)},
		{"nodeport-local", options(), newWorld().with(service("s", nodePort, externalLocal), A, B)},
		{"nodeport-local-elsewhere", options(), newWorld().with(service("s", nodePort, externalLocal), B)},
		{"nodeport-no-endpoints", options(), newWorld().with(service("s", nodePort))},
		{"nodeport-addresses", options(func(o *Options) {
			o.NodePorts = NodePortAddresses{Loopback: true, Addresses: []netip.Addr{addr("10.0.0.1"), addr("127.0.0.1")}}
		}), newWorld().with(service("s", nodePort), A)},
		{"nodeport-no-localhost", options(func(o *Options) { o.NodePorts.Loopback = false }), newWorld().with(service("s", nodePort), A)},
		{"nodeport-protocols", options(), newWorld().
			with(service("s", nodePort, externalLocal), A).
			with(service("t", at("10.96.0.81"), nodePort, udp), B).
			with(service("u", at("10.96.0.82"), nodePort, sctp), B)},
		{"external-ip", options(), newWorld().with(service("s", externalIP), A, B)},
		{"external-ip-local-elsewhere", options(), newWorld().with(service("s", externalIP, externalLocal), B)},
		{"loadbalancer", options(), newWorld().with(service("s", loadBalancer), A, B)},
		{"loadbalancer-local", options(), newWorld().with(service("s", loadBalancer, externalLocal, healthCheck), A, B)},
		{"loadbalancer-local-elsewhere", options(), newWorld().with(service("s", loadBalancer, externalLocal, healthCheck), B)},
		{"loadbalancer-local-no-detector", options(noDetector), newWorld().with(service("s", loadBalancer, externalLocal), A)},
		{"loadbalancer-local-bridge", options(func(o *Options) { o.Local = LocalTraffic{Interface: "cni0"} }),
			newWorld().with(service("s", loadBalancer, externalLocal), A)},
		{"loadbalancer-everything-local", options(), newWorld().with(service("s", loadBalancer, externalLocal, internalLocal), A, draining(B))},
		{"loadbalancer-source-ranges", options(), newWorld().with(service("s", loadBalancer, ranges("10.9.0.0/16")), A)},
		{"loadbalancer-source-ranges-node-inside", options(), newWorld().with(service("s", loadBalancer, ranges("10.9.0.0/16", "10.0.0.0/24")), A)},
		{"loadbalancer-source-ranges-no-endpoints", options(), newWorld().with(service("s", loadBalancer, ranges("10.9.0.0/16")))},
		{"loadbalancer-ipv6", options(ipv6), newWorld().with(everything6("ns1", "s", "http"), A6, B6)},
		{"masquerade-all", options(func(o *Options) { o.MasqueradeAll, o.RandomFully, o.DropInvalid = true, false, false }), newWorld().with(service("s"), A)},
		{"accounts", options(func(o *Options) { o.InvalidAccount, o.LocalhostAccount = "invalid", "localhost" }), newWorld().with(service("s", nodePort), A)},
		{"conflict", options(), newWorld().
			with(service("s", externalIP, nodePort), A).
			with(service("t", at("10.96.0.81"), externalIP, nodePort), B)},
		{"longest-names", options(ipv6), newWorld().with(everything6(strings.Repeat("n", 63), strings.Repeat("s", 63), strings.Repeat("p", 63)), longest6)},
		{"dispatch-tree", options(func(o *Options) { o.FlatDispatch = 4 }), many(24)},
		{"dispatch-tree-ipv6", options(ipv6, func(o *Options) { o.FlatDispatch = 4 }), many6(24)},
		{"balance-groups", options(func(o *Options) { o.FlatBalance = 4 }), newWorld().with(service("s", nodePort, externalLocal, affinity), pods(12)...)},
	}
}

func udp(p *model.ServicePort)         { p.Name.Protocol = model.UDP }
func sctp(p *model.ServicePort)        { p.Name.Protocol = model.SCTP }
func healthCheck(p *model.ServicePort) { p.HealthCheckNodePort = 32000 }

var (
	A6 = endpoint("[fd00:244:1::10]:8080")
	B6 = endpoint("[fd00:244:2::10]:8080")
	// longest6 is the longest an address with a port can be.
	longest6 = endpoint("[fd00:2440:1000:1000:1000:1000:1000:1000]:65535")
)

// everything6 is an IPv6 Service port with every kind of rule.
func everything6(namespace, name, port string) model.ServicePort {
	return service(name, loadBalancer, externalLocal, internalLocal, affinity, healthCheck, func(p *model.ServicePort) {
		p.Name.Namespace, p.Name.Port = namespace, port
		p.ClusterIP = addr("fd00:96::80")
		p.LoadBalancerVIPs = []netip.Addr{addr("fd00:50::10")}
		p.ExternalIPs = []netip.Addr{addr("fd00:60::10")}
		p.SourceRanges = []netip.Prefix{prefix("fd00:9::/32"), prefix("fd00::/64")}
	})
}

// many are Services of all kinds, every third without endpoints.
func many(n int) world {
	w := newWorld()
	for i := range n {
		port := service(fmt.Sprintf("s%02d", i), at(fmt.Sprintf("10.96.%d.%d", i%3, i)), func(p *model.ServicePort) {
			p.NodePort = uint16(30000 + 7*i)
			if i%4 == 0 {
				p.LoadBalancerVIPs = []netip.Addr{addr(fmt.Sprintf("10.50.0.%d", i))}
				p.SourceRanges = []netip.Prefix{prefix("10.9.0.0/16")}
			}
			if i%8 == 0 {
				p.ExternalLocal, p.HealthCheckNodePort = true, uint16(32000+i)
			}
			if i%5 == 0 {
				udp(p)
			}
		})
		if i%3 == 0 {
			w.with(port)
		} else {
			w.with(port, A, B)
		}
	}
	return w
}

func many6(n int) world {
	w := newWorld()
	for i := range n {
		port := service(fmt.Sprintf("s%02d", i), at(fmt.Sprintf("fd00:96::%x:%x", i%3, 0x100*i)), nodePort)
		port.NodePort += uint16(i)
		w.with(port, A6)
	}
	return w
}

// pods are n ready endpoints, half of them on this node.
func pods(n int) []model.Endpoint {
	var all []model.Endpoint
	for i := range n {
		all = append(all, endpoint(fmt.Sprintf("10.244.%d.%d:8080", 1+i%2, 100+i/2)))
	}
	return all
}
