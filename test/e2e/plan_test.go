// Package e2e tests the built miniproxy binary with real packets: on nodes that are
// network namespaces, against a real API server, with Services whose EndpointSlices
// the real controller makes.
//
// Everything a case says of addresses refers to one plan, which is that of
// lab.DefaultPlan with a control plane added:
//
//	n1      10.0.0.1    fd00::1     node, pods 10.244.1.0/24 fd00:244:1::/64, zone-a
//	n2      10.0.0.2    fd00::2     node, pods 10.244.2.0/24 fd00:244:2::/64, zone-b
//	cp      10.0.0.100  fd00::64    etcd, API server, controllers
//	client  10.9.9.9    fd00:9::9   outside of the cluster, routes virtual addresses to n1
//	a, a2   10.244.1.10, .11        pods on n1
//	b, b2   10.244.2.10, .11        pods on n2
//	c       10.244.1.50             pod on n1 that is nobody's endpoint
//	d       10.244.2.50             pod on n2 that is nobody's endpoint
//
// Cluster IPs are from 10.96.0.0/16 and fd00:96::/112. Pods serve HTTP and UDP on
// port 8080 and answer with their own name and the address they saw.
package e2e

import "net/netip"

// Names of machines.
const (
	n1           = "n1"
	n2           = "n2"
	controlName  = "cp"
	podA, podA2  = "a", "a2"
	podB, podB2  = "b", "b2"
	podC, podD   = "c", "d"
	podPort      = 8080
	apiPort      = 6443
	clusterCIDRs = "10.244.0.0/16,fd00:244::/32"
	serviceCIDRs = "10.96.0.0/16,fd00:96::/112"
)

var (
	controlAddrs = []netip.Prefix{netip.MustParsePrefix("10.0.0.100/24"), netip.MustParsePrefix("fd00::64/64")}
	// kubernetesIP is the cluster IP of the API server itself, the first of the range.
	kubernetesIP = netip.MustParseAddr("10.96.0.1")
)

// zones are the zone labels of the nodes.
var zones = map[string]string{n1: "zone-a", n2: "zone-b"}

// podPlan says which pods a cluster has: the node and the number in its range.
var podPlan = []struct {
	name   string
	node   string
	number int
}{
	{podA, n1, 10}, {podA2, n1, 11}, {podC, n1, 50},
	{podB, n2, 10}, {podB2, n2, 11}, {podD, n2, 50},
}
