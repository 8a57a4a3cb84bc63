package lab

import (
	"fmt"
	"net/netip"
	"os"
)

// Names of interfaces in a cluster.
const (
	// Uplink is the interface of a machine towards the others, and of a pod.
	Uplink = "eth0"
	// PodBridge is the bridge of a node that its pods are connected to.
	PodBridge = "cni0"

	underlayBridge = "br0"
)

// Cluster is a lab laid out as a small cluster: nodes with pods behind a bridge, and
// a client outside, joined by a network that is a host of its own.
type Cluster struct {
	Lab  *Lab
	Plan Plan
	// Underlay is the network between the machines.
	Underlay *Host
	Client   *Host
	Nodes    []*Node
}

// Node is a machine of the cluster that has pods.
type Node struct {
	*Host
	Plan NodePlan

	lab  *Lab
	pods int
}

// NewCluster builds the machines of a plan in the lab, without pods. After an error
// the lab holds what was built so far; Lab.Close removes it.
func NewCluster(l *Lab, plan Plan) (*Cluster, error) {
	c := &Cluster{Lab: l, Plan: plan}
	steps := []func() error{c.addUnderlay, c.addNodes, c.addClient}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("build cluster %s: %w", l.name, err)
		}
	}
	return c, nil
}

func (c *Cluster) addUnderlay() (err error) {
	if c.Underlay, err = c.Lab.Host("underlay"); err != nil {
		return err
	}
	if err := c.Underlay.Bridge(underlayBridge, c.Plan.Gateway...); err != nil {
		return err
	}
	// A router without a route answers "unreachable"; a host would stay silent, and
	// the sender would wait for its timeout. (After five quick ones the kernel answers
	// once a second.)
	if err := c.Underlay.forward(); err != nil {
		return err
	}
	routes := onLink(c.Plan.Client, underlayBridge)
	for _, node := range c.Plan.Nodes {
		// So that its "unreachable" finds back to a pod.
		routes = append(routes, via(node.PodCIDRs, node.Addrs, underlayBridge)...)
	}
	return c.Underlay.AddRoutes(routes...)
}

func (c *Cluster) addNodes() error {
	for _, plan := range c.Plan.Nodes {
		host, err := c.AddMachine(plan.Name, plan.Addrs...)
		if err != nil {
			return err
		}
		node := &Node{Host: host, Plan: plan, lab: c.Lab}
		if err := c.setUpNode(node); err != nil {
			return fmt.Errorf("node %s: %w", plan.Name, err)
		}
		c.Nodes = append(c.Nodes, node)
	}
	return nil
}

func (c *Cluster) setUpNode(n *Node) error {
	if err := n.forward(); err != nil {
		return err
	}
	var gateways []netip.Prefix
	for i, cidr := range n.Plan.PodCIDRs {
		gateways = append(gateways, netip.PrefixFrom(n.Plan.PodAddrs(1)[i], cidr.Bits()))
	}
	if err := n.Bridge(PodBridge, gateways...); err != nil {
		return err
	}
	if err := n.passBridgedFrames(); err != nil {
		return err
	}
	routes := onLink(c.Plan.Client, Uplink)
	routes = append(routes, via(c.Plan.Virtual, c.Plan.Gateway, Uplink)...)
	for _, other := range c.Plan.Nodes {
		if other.Name != n.Plan.Name {
			routes = append(routes, via(other.PodCIDRs, other.Addrs, Uplink)...)
		}
	}
	return n.AddRoutes(routes...)
}

func (c *Cluster) addClient() (err error) {
	if c.Client, err = c.AddMachine("client", c.Plan.Client...); err != nil {
		return err
	}
	first := c.Plan.Nodes[0].Addrs
	return c.Client.AddRoutes(append(onLink(first, Uplink), via(c.Plan.Virtual, first, Uplink)...)...)
}

// AddMachine adds a host to the network between the nodes, with no routes but those
// to its neighbours.
func (c *Cluster) AddMachine(name string, addrs ...netip.Prefix) (*Host, error) {
	host, err := c.Lab.Host(name)
	if err != nil {
		return nil, err
	}
	err = c.Lab.Link(
		End{Host: host, Name: Uplink, Addrs: addrs},
		End{Host: c.Underlay, Name: portName(name), Bridge: underlayBridge})
	return host, err
}

// Node returns the node of that name, nil when there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Plan.Name == name {
			return n
		}
	}
	return nil
}

// AddPod adds a pod behind the node's bridge, with the addresses PodAddrs(number).
func (n *Node) AddPod(name string, number int) (*Host, error) {
	pod, err := n.lab.Host(name)
	if err != nil {
		return nil, err
	}
	// The pod has its address alone on the link and reaches everybody, its neighbours
	// too, through the node. With a range on the link, the answer of a neighbour behind
	// a Service would pass the bridge without meeting the node's conntrack, unless the
	// machine has br_netfilter loaded.
	addrs, gateways := n.Plan.PodAddrs(number), n.Plan.PodAddrs(1)
	eth0 := End{Host: pod, Name: Uplink}
	var routes []Route
	for i, addr := range addrs {
		eth0.Addrs = append(eth0.Addrs, netip.PrefixFrom(addr, addr.BitLen()))
		everybody := netip.PrefixFrom(unspecified(addr), 0)
		routes = append(routes, Route{To: everybody, Via: gateways[i], Dev: Uplink})
	}
	n.pods++
	port := End{Host: n.Host, Name: fmt.Sprintf("veth%d", n.pods), Bridge: PodBridge, Hairpin: true}
	if err := n.lab.Link(eth0, port); err != nil {
		return nil, err
	}
	return pod, pod.AddRoutes(routes...)
}

// forward makes the host a router.
func (h *Host) forward() error {
	settings := []Setting{{"net/ipv4/ip_forward", "1"}}
	if HasIPv6() {
		settings = append(settings, Setting{"net/ipv6/conf/all/forwarding", "1"})
	}
	return h.Sysctl(settings...)
}

// passBridgedFrames sends what passes the bridge through iptables as well, as every
// Kubernetes node does, where the kernel can.
func (h *Host) passBridgedFrames() error {
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		return nil
	}
	return h.Sysctl(
		Setting{"net/bridge/bridge-nf-call-iptables", "1"},
		Setting{"net/bridge/bridge-nf-call-ip6tables", "1"})
}

// portName names a switch port after the machine behind it, within the 15 bytes
// that an interface's name may have.
func portName(machine string) string {
	name := "to-" + machine
	return name[:min(len(name), 15)]
}

// onLink are routes to the ranges of addrs over an interface.
func onLink(addrs []netip.Prefix, dev string) []Route {
	routes := make([]Route, len(addrs))
	for i, addr := range addrs {
		routes[i] = Route{To: addr.Masked(), Dev: dev}
	}
	return routes
}

// via are routes to ranges over an interface, each by the hop of its family. A range
// of a family without a hop gets none.
func via(ranges, hops []netip.Prefix, dev string) []Route {
	var routes []Route
	for _, r := range ranges {
		for _, hop := range hops {
			if hop.Addr().Is4() == r.Addr().Is4() {
				routes = append(routes, Route{To: r, Via: hop.Addr(), Dev: dev})
			}
		}
	}
	return routes
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
