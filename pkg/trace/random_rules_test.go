package trace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// randomRules makes rulesets of everything that package ruleset has a type for but
// chance, so that each packet has one fate.
type randomRules struct {
	*rand.Rand
	family
	// lists makes the names of recent's lists unique to a ruleset.
	lists string
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (r randomRules) oneIn(n int) bool { return r.IntN(n) == 0 }

// ruleset returns rules in which markers pass, and the answers to rejected packets
// come back.
func (r randomRules) ruleset() ruleset.Ruleset {
	rs := ruleset.Ruleset{}
	hooks := map[ruleset.Table][]string{
		ruleset.Mangle: {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
		ruleset.NAT:    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
		ruleset.Filter: {"INPUT", "FORWARD", "OUTPUT"},
	}
	for _, table := range []ruleset.Table{ruleset.Mangle, ruleset.NAT, ruleset.Filter} {
		for _, side := range []string{"A", "N", "Z"} {
			for i := range chainsPerSide {
				r.addChain(rs, table, side, i)
			}
		}
		for _, hook := range hooks[table] {
			// In nat the kernel refuses MASQUERADE but in POSTROUTING, and DNAT there and in INPUT.
			side := map[string]string{"POSTROUTING": "Z", "INPUT": "N"}[hook]
			if side == "" {
				side = "A"
			}
			c := &ruleset.Chain{ChainID: ruleset.ChainID{Table: table, Name: hook}, Policy: "ACCEPT", Rules: r.prelude(hook)}
			if table == ruleset.Filter && r.oneIn(5) {
				c.Policy = "DROP"
			}
			for range 1 + r.IntN(3) {
				c.Rules = append(c.Rules, r.rule(table, side, hook, -1))
			}
			rs[c.ChainID] = c
		}
	}
	return rs
}

const chainsPerSide = 4

// prelude are the rules that the test itself needs in every hook: markers pass, and
// so does what the host answers of its own accord, which must reach the sender and
// must not end up on a list.
func (r randomRules) prelude(hook string) []ruleset.Rule {
	accept := func(matches ...ruleset.Match) ruleset.Rule {
		return ruleset.Rule{Matches: matches, Action: ruleset.Accept{}}
	}
	marker := accept(ruleset.Source{Prefix: netip.PrefixFrom(r.marker, r.marker.BitLen())})
	const errors = ruleset.Invalid | ruleset.Related
	answers := ruleset.Conntrack{States: errors | ruleset.Established}
	switch hook {
	case "PREROUTING", "INPUT":
		return []ruleset.Rule{marker, accept(ruleset.InInterface{Pattern: "lo"}, answers)}
	case "OUTPUT":
		return []ruleset.Rule{marker, accept(answers)}
	case "POSTROUTING":
		return []ruleset.Rule{marker, accept(ruleset.Conntrack{States: errors}), accept(ruleset.AddrType{Source: "LOCAL"}, answers)}
	}
	return []ruleset.Rule{marker}
}

func (r randomRules) addChain(rs ruleset.Ruleset, table ruleset.Table, side string, i int) {
	c := &ruleset.Chain{ChainID: ruleset.ChainID{Table: table, Name: fmt.Sprint(side, i)}}
	for range 1 + r.IntN(5) {
		c.Rules = append(c.Rules, r.rule(table, side, "", i))
	}
	rs[c.ChainID] = c
}

// rule returns a rule for the i-th chain of a side; only later chains are jumped to.
func (r randomRules) rule(table ruleset.Table, side, hook string, i int) ruleset.Rule {
	rule := ruleset.Rule{Comment: "random"}
	protocol := ""
	if r.oneIn(3) {
		prefix, not := r.prefix(), r.oneIn(4)
		rule.Matches = append(rule.Matches, ruleset.Source{Prefix: prefix, Not: not})
	}
	if r.oneIn(3) {
		prefix, not := r.prefix(), r.oneIn(4)
		rule.Matches = append(rule.Matches, ruleset.Destination{Prefix: prefix, Not: not})
	}
	interfaces := []string{"eth0", "pod+", "lo", "e+"}
	if hook == "" && r.oneIn(6) {
		rule.Matches = append(rule.Matches, ruleset.InInterface{Pattern: pick(r.Rand, interfaces), Not: r.oneIn(3)})
	}
	if hook == "" && r.oneIn(6) {
		rule.Matches = append(rule.Matches, ruleset.OutInterface{Pattern: pick(r.Rand, interfaces), Not: r.oneIn(3)})
	}
	if r.oneIn(2) {
		protocol = pick(r.Rand, []string{"tcp", "udp"})
		rule.Matches = append(rule.Matches, ruleset.Protocol{Name: protocol})
	} else if r.oneIn(4) {
		rule.Matches = append(rule.Matches, ruleset.Protocol{Name: pick(r.Rand, []string{"tcp", "udp", r.icmp}), Not: r.oneIn(2)})
	}
	if protocol != "" && r.oneIn(2) {
		first := pick(r.Rand, []uint16{53, 80, 8080})
		rule.Matches = append(rule.Matches, ruleset.DestinationPort{Protocol: protocol, First: first, Last: first + uint16(r.IntN(2)*40), Not: r.oneIn(4)})
	}
	if r.oneIn(4) {
		rule.Matches = append(rule.Matches, r.module(table))
	}
	rule.Action = r.action(table, side, protocol, i)
	return rule
}

func (r randomRules) prefix() netip.Prefix {
	a := pick(r.Rand, pick(r.Rand, [][]netip.Addr{r.outside, r.pods, r.services, r.own}))
	bits := pick(r.Rand, []int{a.BitLen(), a.BitLen(), a.BitLen() - 8, a.BitLen() / 4})
	p, _ := a.Prefix(bits)
	return p
}

func (r randomRules) module(table ruleset.Table) ruleset.Match {
	bit := uint32(1) << r.IntN(3)
	mask := netip.MustParseAddr("255.255.255.255")
	if r.marker.Is6() {
		mask = netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	}
	list := fmt.Sprint(r.lists, r.IntN(2))
	switch r.IntN(8) {
	case 0:
		return ruleset.AddrType{Source: "LOCAL", NotSource: r.oneIn(2)}
	case 1:
		return ruleset.AddrType{Destination: "LOCAL", NotDestination: r.oneIn(2)}
	case 2:
		return ruleset.Conntrack{States: ruleset.ConntrackState(1 + r.IntN(127)), Not: r.oneIn(3)}
	case 3:
		return ruleset.Conntrack{States: pick(r.Rand, []ruleset.ConntrackState{ruleset.New, ruleset.Invalid, ruleset.DNATed, ruleset.SNATed}), Not: r.oneIn(3)}
	case 4:
		return ruleset.RecentSet{Name: list, Mask: mask}
	case 5:
		return ruleset.RecentCheck{Name: list, Seconds: 10000, Reap: r.oneIn(2), Mask: mask}
	}
	return ruleset.Mark{Value: bit * uint32(r.IntN(2)), Mask: bit, Not: r.oneIn(3)}
}

func (r randomRules) action(table ruleset.Table, side, protocol string, i int) ruleset.Action {
	jump := func() ruleset.Action {
		if i+1 >= chainsPerSide {
			return ruleset.Return{}
		}
		target := fmt.Sprint(side, i+1+r.IntN(chainsPerSide-i-1))
		if r.oneIn(3) {
			return ruleset.Goto{Chain: target}
		}
		return ruleset.Jump{Chain: target}
	}
	if i == -1 {
		return jump()
	}
	choices := 10
	if table == ruleset.NAT {
		choices = 16 // more verdicts: few packets get as far as to be translated
	}
	switch r.IntN(choices) {
	case 0:
		return nil
	case 1:
		return ruleset.Return{}
	case 2:
		return ruleset.Accept{}
	case 3, 4, 5:
		return jump()
	case 6, 7:
		return ruleset.SetMark{Value: uint32(r.IntN(8)), Mask: uint32(r.IntN(8))}
	}
	return r.verdict(table, side, protocol)
}

// verdict returns what only one table can do.
func (r randomRules) verdict(table ruleset.Table, side, protocol string) ruleset.Action {
	switch {
	case table == ruleset.NAT && side == "Z":
		return ruleset.Masquerade{RandomFully: r.oneIn(2)}
	case table == ruleset.NAT && side == "A" && protocol != "":
		to := pick(r.Rand, pick(r.Rand, [][]netip.Addr{r.outside, r.pods, r.pods, r.own[:2]}))
		return ruleset.DNAT{To: netip.AddrPortFrom(to, pick(r.Rand, []uint16{0, 53, 8080, 9000}))}
	case table == ruleset.NAT:
		return ruleset.Return{}
	case table == ruleset.Mangle && r.oneIn(2):
		return ruleset.SetMark{Value: 1, Mask: 7}
	case table == ruleset.Mangle:
		return ruleset.Drop{}
	case protocol == "tcp" && r.oneIn(2):
		return ruleset.Reject{With: "tcp-reset"}
	case r.oneIn(2):
		return ruleset.Reject{With: r.reject}
	}
	return ruleset.Drop{}
}

// packet returns a packet with a source port of its own.
func (r randomRules) packet(port uint16) trace.Packet {
	p := trace.Packet{
		In:              pick(r.Rand, []string{"", "eth0", "eth0", "pod0"}),
		Destination:     pick(r.Rand, pick(r.Rand, [][]netip.Addr{r.outside, r.pods, r.services, r.own})),
		Protocol:        pick(r.Rand, []string{"udp", "udp", "tcp", "tcp", r.icmp}),
		SourcePort:      port,
		DestinationPort: pick(r.Rand, []uint16{53, 80, 90, 8080, 9999}),
	}
	switch p.In {
	case "":
		p.Source = pick(r.Rand, pick(r.Rand, [][]netip.Addr{r.own, r.own, r.services}))
	default:
		p.Source = pick(r.Rand, pick(r.Rand, [][]netip.Addr{r.outside, r.pods, r.services}))
	}
	if p.Protocol == "tcp" && p.In != "" && r.oneIn(5) {
		p.State = ruleset.Invalid
	}
	if p.Protocol == r.icmp {
		p.SourcePort, p.DestinationPort = 0, 0
	}
	return p
}
