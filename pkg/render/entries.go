package render

import (
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// addClusterIP leads cluster IP traffic to its policy's chain, or refuses it.
func (b *unitBuilder) addClusterIP() {
	if chain, endpoints := b.internal(); len(endpoints) > 0 {
		b.addEntry(NATServices, b.port.ClusterIP, b.port.Port, b.comment+" cluster IP", ruleset.Jump{Chain: chain})
		return
	}
	action, why := b.refuse()
	b.addEntry(FilterServices, b.port.ClusterIP, b.port.Port, why, action)
}

// addExternalIPs does the same for spec.externalIPs.
func (b *unitBuilder) addExternalIPs() {
	for _, ip := range b.port.ExternalIPs {
		if b.use.Anywhere {
			b.addEntry(NATServices, ip, b.port.Port, b.comment+" external IP", ruleset.Jump{Chain: b.externalChain()})
		}
		b.refuseExternal(ip, b.port.Port)
	}
}

// addLoadBalancerVIPs does the same for load balancer IPs, through the firewall
// chain if source ranges are given.
func (b *unitBuilder) addLoadBalancerVIPs() {
	chain := b.externalChain()
	if b.hasFirewall() {
		chain = b.firewallChain()
	}
	for _, vip := range b.port.LoadBalancerVIPs {
		if b.use.Anywhere {
			b.addEntry(NATServices, vip, b.port.Port, b.comment+" loadbalancer IP", ruleset.Jump{Chain: chain})
		}
		if b.hasFirewall() {
			why := b.comment + " traffic not accepted by " + chain
			b.addEntry(FilterFirewall, vip, b.port.Port, why, ruleset.Drop{})
		}
		b.refuseExternal(vip, b.port.Port)
	}
}

// addNodePort does the same for the node port, which source ranges do not restrict.
func (b *unitBuilder) addNodePort() {
	if b.port.NodePort == 0 {
		return
	}
	if b.use.Anywhere {
		jump := ruleset.Jump{Chain: b.externalChain()}
		var rules []ruleset.Rule
		if b.opts.LocalhostAccount != "" {
			// The same as the next rule, but counted: how much traffic would be lost if node
			// ports on localhost were switched off.
			rules = append(rules, ruleset.Rule{
				Matches: append(b.to(netip.Addr{}, b.port.NodePort, ruleset.Destination{Prefix: b.opts.Family.Loopback()}),
					ruleset.NFAcct{Name: b.opts.LocalhostAccount}),
				Comment: b.comment,
				Action:  jump,
			})
		}
		rules = append(rules, ruleset.Rule{
			Matches: b.to(netip.Addr{}, b.port.NodePort),
			Comment: b.comment,
			Action:  jump,
		})
		b.enter(NATNodePorts, Frontend{Protocol: b.port.Name.Protocol, Port: b.port.NodePort}, rules...)
	}
	b.refuseExternal(netip.Addr{}, b.port.NodePort)
}

// refuseExternal refuses traffic from outside if it has no endpoint to go to. What
// was let through to an endpoint all the same has another destination by then.
func (b *unitBuilder) refuseExternal(addr netip.Addr, port uint16) {
	if _, endpoints := b.external(); len(endpoints) > 0 {
		return
	}
	action, why := b.refuse()
	if addr.IsValid() {
		b.addEntry(FilterExternal, addr, port, why, action)
		return
	}
	if b.opts.Lacks.AddrType {
		return
	}
	protocol := b.port.Name.Protocol.Lower()
	b.enter(FilterExternal, Frontend{Protocol: b.port.Name.Protocol, Port: port}, ruleset.Rule{
		Matches: []ruleset.Match{
			ruleset.Protocol{Name: protocol},
			ruleset.AddrType{Destination: "LOCAL"},
			ruleset.DestinationPort{Protocol: protocol, First: port, Last: port},
		},
		Comment: why,
		Action:  action,
	})
}

// addHealthCheckNodePort lets the load balancer ask this node whether it has
// endpoints; without any the answer is needed all the more.
func (b *unitBuilder) addHealthCheckNodePort() {
	port := b.port.HealthCheckNodePort
	if port == 0 {
		return
	}
	b.enter(FilterNodePorts, Frontend{Protocol: model.TCP, Port: port}, ruleset.Rule{
		Matches: []ruleset.Match{
			ruleset.Protocol{Name: "tcp"},
			ruleset.DestinationPort{Protocol: "tcp", First: port, Last: port},
		},
		Comment: b.comment + " health check node port",
		Action:  ruleset.Accept{},
	})
}
