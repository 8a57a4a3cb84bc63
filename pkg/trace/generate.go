package trace

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Extra names addresses and ports to ask about that appear in no ruleset and do not
// belong to the host: pods, nodes, clients, addresses of before, addresses of
// nobody. Those of the other family are left out.
type Extra struct {
	Addrs []netip.Addr
	Ports []uint16
}

// The ports that packets are sent from and that no Service should use.
const (
	clientPort = 45678
	unusedPort = 9
)

// manyAddrs is the number of translated-to addresses up to which each is asked about
// in every combination; more of them only enter where they belong.
const manyAddrs = 12

// Packets returns packets that reach every rule of the rulesets that any packet can
// reach, as far as addresses, ports, protocols and interfaces go: each source with
// each destination, by each interface it may enter by, to each port, and some of
// them in every conntrack state. All are of one family, that of the rulesets'
// addresses, or of the extra addresses for want of those. The order is always the
// same.
func Packets(host Host, extra Extra, rulesets ...ruleset.Ruleset) []Packet {
	g := generator{host: host, named: map[netip.Addr]bool{}, targets: map[netip.Addr]bool{}, ports: map[uint16]bool{unusedPort: true}}
	for _, rs := range rulesets {
		g.collect(rs)
	}
	g.family = g.chooseFamily(extra)
	for a := range g.targets {
		delete(g.named, a) // is a source in its own rules, which does not make it a Service
	}
	for _, a := range extra.Addrs {
		g.named[a] = true
	}
	for _, a := range host.Addrs(g.family) {
		g.named[a] = true
	}
	g.named[g.loopback()] = true
	for _, p := range extra.Ports {
		g.ports[p] = true
	}
	return g.packets()
}

type generator struct {
	host   Host
	family netip.Addr
	// named are the addresses in matches, inside and just outside of ranges, and
	// the extra ones; targets are those that packets are translated to.
	named, targets map[netip.Addr]bool
	ports          map[uint16]bool
}

// collect takes the addresses and ports out of a ruleset.
func (g *generator) collect(rs ruleset.Ruleset) {
	for _, c := range rs {
		for _, r := range c.Rules {
			for _, m := range r.Matches {
				switch m := m.(type) {
				case ruleset.Source:
					g.collectRange(m.Prefix)
				case ruleset.Destination:
					g.collectRange(m.Prefix)
				case ruleset.DestinationPort:
					g.ports[m.First], g.ports[m.Last] = true, true
				}
			}
			if a, ok := r.Action.(ruleset.DNAT); ok {
				g.targets[a.To.Addr()] = true
				g.ports[a.To.Port()] = true
			}
		}
	}
}

// collectRange takes the ends of a range and their neighbours outside.
func (g *generator) collectRange(p netip.Prefix) {
	first := p.Masked().Addr()
	bytes := first.AsSlice()
	for i := p.Bits(); i < first.BitLen(); i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	g.named[first] = true
	if p.IsSingleIP() {
		return
	}
	for _, a := range []netip.Addr{last, first.Prev(), last.Next()} {
		if a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() {
			g.named[a] = true
		}
	}
}

func (g *generator) chooseFamily(extra Extra) netip.Addr {
	for _, set := range []map[netip.Addr]bool{g.targets, g.named} {
		for a := range set {
			return a
		}
	}
	if len(extra.Addrs) > 0 {
		return extra.Addrs[0]
	}
	return netip.IPv4Unspecified()
}

func (g *generator) packets() []Packet {
	named, targets := g.sorted(g.named), g.sorted(g.targets)
	few := targets[:min(len(targets), manyAddrs)]
	var packets []Packet
	for _, s := range union(named, few) {
		for _, d := range union(named, few) {
			packets = append(packets, g.between(s, d)...)
		}
	}
	for _, t := range targets[len(few):] {
		for _, d := range named {
			packets = append(packets, g.protocols(Packet{In: g.host.Out(t), Source: t, Destination: d})...)
		}
		for _, s := range few {
			packets = append(packets, g.protocols(Packet{In: g.host.Out(s), Source: s, Destination: t})...)
		}
	}
	return append(packets, g.inStates(few)...)
}

// sorted returns the set's addresses of the family, in order.
func (g *generator) sorted(set map[netip.Addr]bool) []netip.Addr {
	addrs := slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !sameFamily(a, g.family) })
}

func union(a, b []netip.Addr) []netip.Addr {
	all := slices.Concat(a, b)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// between returns the packets from one address to another, by every way in.
func (g *generator) between(source, destination netip.Addr) []Packet {
	p := Packet{Source: source, Destination: destination}
	var packets []Packet
	for _, in := range g.waysIn() {
		p.In = in
		packets = append(packets, g.protocols(p)...)
	}
	return packets
}

// waysIn returns the interfaces that packets enter by, and "" for the host itself.
// Sources are not held to the interface that they belong to: nobody keeps a
// neighbour from forging them.
func (g *generator) waysIn() []string {
	ways := []string{""}
	for _, i := range g.host.Interfaces {
		ways = append(ways, i.Name)
	}
	for _, r := range g.host.Routes {
		if !slices.Contains(ways, r.Dev) {
			ways = append(ways, r.Dev)
		}
	}
	for _, b := range g.host.BridgePorts {
		ways = append(ways, b.Name)
	}
	return ways
}

func (g *generator) protocols(p Packet) []Packet {
	var packets []Packet
	p.SourcePort = clientPort
	for _, p.Protocol = range []string{"tcp", "udp", "sctp"} {
		for _, p.DestinationPort = range slices.Sorted(maps.Keys(g.ports)) {
			packets = append(packets, p)
		}
	}
	p.SourcePort, p.DestinationPort = 0, 0
	p.Protocol = "icmp"
	if !g.family.Is4() {
		p.Protocol = "ipv6-icmp"
	}
	return append(packets, p)
}

// inStates returns packets that conntrack knows, from some of the addresses to each
// that has a name.
func (g *generator) inStates(targets []netip.Addr) []Packet {
	named := g.sorted(g.named)
	one := targets[:min(len(targets), 1)]
	sources := union(spread(named, 2), append([]netip.Addr{g.loopback()}, one...))
	var packets []Packet
	for _, s := range sources {
		for _, d := range union(named, one) {
			for _, in := range g.waysIn() {
				for _, state := range knownStates {
					p := Packet{In: in, Source: s, Destination: d, Protocol: "tcp", SourcePort: clientPort, State: state}
					for _, p.DestinationPort = range slices.Sorted(maps.Keys(g.ports)) {
						packets = append(packets, p)
					}
				}
			}
		}
	}
	return packets
}

// knownStates are the states of packets that nat does not see.
var knownStates = []ruleset.ConntrackState{
	ruleset.Invalid, ruleset.Invalid | ruleset.DNATed,
	ruleset.Established, ruleset.Established | ruleset.DNATed,
	ruleset.Related, ruleset.Related | ruleset.DNATed,
}

// spread returns at most n of the elements, from the first to the last.
func spread[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	var few []T
	for i := range n {
		few = append(few, all[i*(len(all)-1)/(n-1)])
	}
	return few
}

func (g *generator) loopback() netip.Addr {
	if g.family.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
