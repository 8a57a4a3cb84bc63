package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Protocol is a transport protocol as the Kubernetes API spells it.
type Protocol string

// The protocols a Service port can have.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Lower returns the protocol as iptables spells it: "tcp", "udp", "sctp".
func (p Protocol) Lower() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return strings.ToLower(string(p))
}

// ServiceName names a Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// ServicePortName names one port of one Service. It is the key of everything that
// can change alone.
type ServicePortName struct {
	ServiceName
	// Port is the port's name; empty for the only port of a Service.
	Port     string
	Protocol Protocol
}

// String returns "namespace/name:port", without the colon for an unnamed port:
// the spelling from which kube-proxy's chain names are hashed and that its rule
// comments carry.
func (n ServicePortName) String() string {
	if n.Port == "" {
		return n.ServiceName.String()
	}
	return n.ServiceName.String() + ":" + n.Port
}

// Compare orders names by namespace, name, port and protocol.
func (n ServicePortName) Compare(o ServicePortName) int {
	return cmp.Or(
		cmp.Compare(n.Namespace, o.Namespace),
		cmp.Compare(n.Name, o.Name),
		cmp.Compare(n.Port, o.Port),
		cmp.Compare(n.Protocol, o.Protocol),
	)
}

// ServicePort is what one family needs to know of one port of a Service. Every
// address in it belongs to that family.
type ServicePort struct {
	Name ServicePortName
	// UID is the Service object's, for events about it.
	UID       string
	ClusterIP netip.Addr
	// Port is the port on ClusterIP, ExternalIPs and LoadBalancerVIPs.
	Port uint16
	// NodePort is the port on the node's addresses, 0 for none.
	NodePort uint16
	// ExternalIPs is spec.externalIPs, in the order of the object.
	ExternalIPs []netip.Addr
	// LoadBalancerVIPs are the ingress IPs with ipMode VIP (or none), in the order
	// of the object.
	LoadBalancerVIPs []netip.Addr
	// SourceRanges is spec.loadBalancerSourceRanges, masked; empty lets everybody in.
	SourceRanges []netip.Prefix
	// RangesOfOtherFamily says that there are source ranges, and that none of them is
	// of this family. Then they restrict nobody in it, as in kube-proxy, which cloud
	// providers rely on.
	RangesOfOtherFamily bool
	// HealthCheckNodePort is where the load balancer asks whether this node has
	// endpoints, 0 for none.
	HealthCheckNodePort uint16
	// InternalLocal and ExternalLocal say that the traffic policy is Local.
	InternalLocal bool
	ExternalLocal bool
	// AffinityTimeout is how long a client keeps its endpoint; 0 without session affinity.
	AffinityTimeout time.Duration
	// Created is the Service's creationTimestamp: of two Services that claim the
	// same address and port the older one has it.
	Created time.Time
}

// Equal reports whether two Service ports are the same in every respect.
func (p ServicePort) Equal(o ServicePort) bool {
	return p.Name == o.Name && p.UID == o.UID && p.Created.Equal(o.Created) &&
		p.ClusterIP == o.ClusterIP && p.Port == o.Port && p.NodePort == o.NodePort &&
		slices.Equal(p.ExternalIPs, o.ExternalIPs) && slices.Equal(p.LoadBalancerVIPs, o.LoadBalancerVIPs) &&
		slices.Equal(p.SourceRanges, o.SourceRanges) && p.RangesOfOtherFamily == o.RangesOfOtherFamily &&
		p.HealthCheckNodePort == o.HealthCheckNodePort && p.AffinityTimeout == o.AffinityTimeout &&
		p.InternalLocal == o.InternalLocal && p.ExternalLocal == o.ExternalLocal
}

// IsExternal reports whether the port can be reached by something else than its
// cluster IP.
func (p ServicePort) IsExternal() bool {
	return p.NodePort != 0 || len(p.ExternalIPs) > 0 || len(p.LoadBalancerVIPs) > 0
}

// UsesClusterEndpoints reports whether any traffic may go to endpoints on every
// node. External traffic of policy Local needs them too: what pods and the node
// itself send to an external address is not external.
func (p ServicePort) UsesClusterEndpoints() bool { return !p.InternalLocal || p.IsExternal() }

// UsesLocalEndpoints reports whether any traffic is restricted to endpoints on
// this node.
func (p ServicePort) UsesLocalEndpoints() bool {
	return p.InternalLocal || (p.ExternalLocal && p.IsExternal())
}
