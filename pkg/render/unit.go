package render

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Unit is what one Service port asks of the kernel. It is the smallest thing that
// changes alone.
type Unit struct {
	Name    model.ServicePortName
	Created time.Time
	// Chains are the nat chains that belong to the Service port, those jumped to
	// before those that jump to them.
	Chains []ruleset.Chain
	// Entries lead packets into Chains, or refuse them.
	Entries []Entry
	// NoLocalInternal and NoLocalExternal say that traffic of policy Local is dropped
	// here while other nodes have endpoints for it.
	NoLocalInternal, NoLocalExternal bool
}

// Index names a dispatch chain: a list of entries of all units.
type Index uint8

// The indexes.
const (
	// NATServices leads packets for cluster IPs, external IPs and load balancer IPs
	// to the chains of their Service port.
	NATServices Index = iota
	// NATNodePorts does the same for node ports.
	NATNodePorts
	// FilterServices refuses packets for cluster IPs that have nowhere to go.
	FilterServices
	// FilterExternal refuses packets for all other addresses that have nowhere to go.
	FilterExternal
	// FilterFirewall drops what no source range of a load balancer IP lets in.
	FilterFirewall
	// FilterNodePorts accepts the load balancer's question on a health check node port.
	FilterNodePorts
	indexCount
)

// chain is the dispatch chain of an index.
func (i Index) chain() ruleset.ChainID {
	switch i {
	case NATServices:
		return natChain(servicesChain)
	case NATNodePorts:
		return natChain(nodePortsChain)
	case FilterServices:
		return filterChain(servicesChain)
	case FilterExternal:
		return filterChain(externalServicesChain)
	case FilterFirewall:
		return filterChain(proxyFirewallChain)
	}
	return filterChain(nodePortsChain)
}

// Table is the table that the index is in.
func (i Index) Table() ruleset.Table { return i.chain().Table }

// Root is the chain through which all traffic for Services goes first.
func Root() ruleset.ChainID { return NATServices.chain() }

// Frontend is a place where clients reach a Service port. Addr is the zero Addr
// for a port on the node's own addresses.
type Frontend struct {
	Addr     netip.Addr
	Protocol model.Protocol
	Port     uint16
}

// String returns such as "10.96.0.80:80/TCP", or "node port 30080/TCP".
func (f Frontend) String() string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), f.Protocol)
}

// Entry is a unit's part of a dispatch chain: the rules for one frontend.
type Entry struct {
	Index    Index
	Frontend Frontend
	Rules    []ruleset.Rule
	// Former says that the Service does not ask for the frontend any more, and has the
	// rules only because its new ones cannot be written. Every other one comes first.
	Former bool
}

// entriesOf are the unit's entries for a claim.
func (u *Unit) entriesOf(c claim) []Entry {
	if u == nil {
		return nil
	}
	var entries []Entry
	for _, e := range u.Entries {
		if e.claim() == c {
			entries = append(entries, e)
		}
	}
	return entries
}

// equal reports whether two entries are the same.
func (e Entry) equal(o Entry) bool {
	return e.Index == o.Index && e.Frontend == o.Frontend && slices.EqualFunc(e.Rules, o.Rules, sameRule)
}

func sameRule(a, b ruleset.Rule) bool { return a.String() == b.String() }

// Kept returns the unit for a Service port that has to live with it although it asks
// for another one.
func (u Unit) Kept(asked Unit) Unit {
	claims := map[claim]bool{}
	for _, e := range asked.Entries {
		claims[e.claim()] = true
	}
	u.Entries = slices.Clone(u.Entries)
	for i := range u.Entries {
		e := &u.Entries[i]
		e.Former = !claims[e.claim()]
	}
	return u
}

// isFormer reports whether a claim is one that the Service does not make any more.
func (u *Unit) isFormer(c claim) bool {
	return slices.ContainsFunc(u.Entries, func(e Entry) bool { return e.Former && e.claim() == c })
}

// ServicePort renders one Service port with its endpoints.
func ServicePort(port model.ServicePort, endpoints []model.Endpoint, opts Options) Unit {
	if port.Name.Protocol == model.SCTP && opts.Lacks.SCTP {
		return Unit{Name: port.Name, Created: port.Created}
	}
	b := unitBuilder{
		unit:    Unit{Name: port.Name, Created: port.Created},
		port:    port,
		use:     opts.Lacks.reachable(model.Choose(port, endpoints, opts.Node)),
		opts:    opts,
		comment: port.Name.String(),
		hash:    serviceHash(port.Name),
	}
	b.addEndpoints()
	b.addPolicies()
	b.addExternal()
	b.addFirewall()
	b.addClusterIP()
	b.addExternalIPs()
	b.addLoadBalancerVIPs()
	b.addNodePort()
	b.addHealthCheckNodePort()
	_, internal := b.internal()
	_, external := b.external()
	b.unit.NoLocalInternal = b.use.Anywhere && len(internal) == 0
	b.unit.NoLocalExternal = b.use.Anywhere && len(external) == 0 && port.IsExternal()
	return b.unit
}

// unitBuilder holds what the steps of rendering one Service port share.
type unitBuilder struct {
	unit    Unit
	port    model.ServicePort
	use     model.Reachable
	opts    Options
	comment string // the Service port's name, with which every comment begins
	hash    string
}

func (b *unitBuilder) clusterChain() string  { return clusterPrefix + b.hash }
func (b *unitBuilder) localChain() string    { return localPrefix + b.hash }
func (b *unitBuilder) externalChain() string { return externalPrefix + b.hash }
func (b *unitBuilder) firewallChain() string { return firewallPrefix + b.hash }

// internal is what cluster IP traffic may use: the chain and its endpoints.
func (b *unitBuilder) internal() (chain string, endpoints []model.Endpoint) {
	if b.port.InternalLocal {
		return b.localChain(), b.use.Local
	}
	return b.clusterChain(), b.use.Cluster
}

// external is what traffic from outside to every other address may use.
func (b *unitBuilder) external() (chain string, endpoints []model.Endpoint) {
	if b.port.ExternalLocal {
		return b.localChain(), b.use.Local
	}
	return b.clusterChain(), b.use.Cluster
}

// hasFirewall reports whether load balancer traffic is held against source ranges.
func (b *unitBuilder) hasFirewall() bool {
	return b.use.Anywhere && len(b.port.LoadBalancerVIPs) > 0 && len(b.port.SourceRanges) > 0
}

// addChain adds a nat chain of the Service port.
func (b *unitBuilder) addChain(name string, rules []ruleset.Rule) {
	b.unit.Chains = append(b.unit.Chains, ruleset.Chain{ChainID: natChain(name), Rules: b.opts.uncomment(rules)})
}

// addEntry adds an entry that sends what is for (addr, port) to action.
func (b *unitBuilder) addEntry(index Index, addr netip.Addr, port uint16, comment string, action ruleset.Action) {
	rule := ruleset.Rule{Matches: b.to(addr, port), Comment: comment, Action: action}
	b.enter(index, Frontend{Addr: addr, Protocol: b.port.Name.Protocol, Port: port}, rule)
}

// enter adds an entry.
func (b *unitBuilder) enter(index Index, frontend Frontend, rules ...ruleset.Rule) {
	b.unit.Entries = append(b.unit.Entries, Entry{Index: index, Frontend: frontend, Rules: b.opts.Lacks.uncomment(rules)})
}

// to matches packets of the Service port's protocol to an address and port.
func (b *unitBuilder) to(addr netip.Addr, port uint16, first ...ruleset.Match) []ruleset.Match {
	protocol := b.port.Name.Protocol.Lower()
	matches := make([]ruleset.Match, 0, len(first)+3)
	matches = append(matches, first...)
	if addr.IsValid() {
		matches = append(matches, ruleset.Destination{Prefix: single(addr)})
	}
	return append(matches,
		ruleset.Protocol{Name: protocol},
		ruleset.DestinationPort{Protocol: protocol, First: port, Last: port})
}

// single is the prefix that holds one address.
func single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// refuse is what happens to traffic that has no endpoint to go to, and the comment
// that says why. A client learns at once that a Service has no endpoints at all; if
// only this node has none, it is left to try again and reach another node.
func (b *unitBuilder) refuse() (ruleset.Action, string) {
	if b.use.Anywhere {
		return ruleset.Drop{}, b.comment + " has no local endpoints"
	}
	if b.opts.Lacks.Reject {
		return ruleset.Drop{}, b.comment + " has no endpoints"
	}
	with := "icmp-port-unreachable"
	if b.opts.Family == model.IPv6 {
		with = "icmp6-port-unreachable"
	}
	return ruleset.Reject{With: with}, b.comment + " has no endpoints"
}
