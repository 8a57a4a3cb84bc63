// Package render turns what is known of the cluster into rules: a Service port and
// its endpoints into chains and dispatch entries, dispatch entries into dispatch
// chains. It is pure and deterministic: the same snapshot and options give the same
// rules, whatever the order of events or of maps.
//
// Chain names, comments and the shape of the chains are kube-proxy's, so that what
// people have learned, and the tools they have written, for its iptables mode hold
// here too, and so that a node can be handed over in either direction without a flush.
package render

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The chains that exist once. Two of them, KUBE-SERVICES and KUBE-NODEPORTS, exist
// in nat, where they rewrite, and in filter, where they refuse or accept.
const (
	servicesChain         = "KUBE-SERVICES"
	nodePortsChain        = "KUBE-NODEPORTS"
	externalServicesChain = "KUBE-EXTERNAL-SERVICES"
	proxyFirewallChain    = "KUBE-PROXY-FIREWALL"
	forwardChain          = "KUBE-FORWARD"
	postroutingChain      = "KUBE-POSTROUTING"
	markMasqChain         = "KUBE-MARK-MASQ"

	// CanaryChain is the chain that tells by its loss, or by that of its one rule, that a
	// table was flushed.
	CanaryChain = "KUBE-PROXY-CANARY"
	// FirewallChain guards 127.0.0.0/8. The kubelet has the same chain with the same
	// rule, so it is not removed where a kubelet runs.
	FirewallChain = "KUBE-FIREWALL"
)

// The chains that exist per Service port, or per endpoint (SEP), carry a hash after
// one of these prefixes.
const (
	clusterPrefix  = "KUBE-SVC-"
	localPrefix    = "KUBE-SVL-"
	externalPrefix = "KUBE-EXT-"
	firewallPrefix = "KUBE-FW-"
	endpointPrefix = "KUBE-SEP-"
	// retiredPrefix is what kube-proxy before 1.24 called its KUBE-EXT and KUBE-SVL
	// chains; a node that is taken over may still have some.
	retiredPrefix = "KUBE-XLB-"
)

// Tables are the tables that hold rules for Services, in the order in which they are
// committed.
func Tables() []ruleset.Table { return []ruleset.Table{ruleset.Filter, ruleset.NAT} }

var ownedChains = map[ruleset.Table][]string{
	ruleset.Mangle: {CanaryChain},
	ruleset.NAT:    {CanaryChain, servicesChain, nodePortsChain, postroutingChain, markMasqChain},
	ruleset.Filter: {CanaryChain, servicesChain, nodePortsChain, externalServicesChain, proxyFirewallChain, forwardChain},
}

var perServicePrefixes = []string{clusterPrefix, localPrefix, externalPrefix, firewallPrefix, endpointPrefix, retiredPrefix}

// Owns reports whether a chain belongs to the proxy, this one or a kube-proxy
// before it, judged by its name alone: a restarted agent has no other memory.
func Owns(id ruleset.ChainID) bool {
	for _, name := range ownedChains[id.Table] {
		if id.Name == name {
			return true
		}
	}
	return IsPerService(id)
}

// IsPerService reports whether a chain exists for the sake of some Services, and is
// to be removed when no Service needs it any more.
func IsPerService(id ruleset.ChainID) bool {
	switch id.Table {
	case ruleset.NAT:
		return slices.ContainsFunc(perServicePrefixes, func(prefix string) bool { return strings.HasPrefix(id.Name, prefix) })
	case ruleset.Filter:
		// Dispatch trees.
		return strings.HasPrefix(id.Name, clusterPrefix)
	}
	return false
}

func natChain(name string) ruleset.ChainID {
	return ruleset.ChainID{Table: ruleset.NAT, Name: name}
}

func filterChain(name string) ruleset.ChainID {
	return ruleset.ChainID{Table: ruleset.Filter, Name: name}
}

// hash shortens text to the 16 characters that leave room for a prefix in the 28
// that iptables allows a chain name.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	var encoded [56]byte
	base32.StdEncoding.Encode(encoded[:], sum[:])
	return string(encoded[:16])
}

// serviceHash is the part after the prefix in the names of a Service port's chains.
func serviceHash(name model.ServicePortName) string {
	return hash(name.String() + name.Protocol.Lower())
}

// endpointChain is the name of the chain that sends a Service port's packets to one
// endpoint.
func endpointChain(name model.ServicePortName, addr netip.AddrPort) string {
	return endpointPrefix + hash(name.String()+name.Protocol.Lower()+addr.String())
}
