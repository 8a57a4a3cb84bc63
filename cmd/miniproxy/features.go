package main

import (
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// feature is a match, a target, or an option of one, that the rules of one family use
// and that its kernel or iptables may lack, with what becomes of the rules then. Most
// of docs/operations.md's table is this one in other words.
type feature struct {
	iptables.Feature
	// without takes it out of the rules; nil for what is no part of render.Lacks.
	without func(*render.Lacks)
	// loses says what users lose.
	loses string
	// reason is that of the event about it; empty for what is not worth one.
	reason string
	// concerns says which Service ports the event is about; nil if it is the node.
	concerns func(model.ServicePort) bool
}

// The features that more than the table below knows.
const (
	featureDNAT        = "dnat"
	featureConntrack   = "conntrack"
	featureRandomFully = "random-fully"
	featureNFAcct      = "nfacct"
	featureSCTP        = "sctp"
)

// features lists them for a family. Those of the nat table come last, so that halving
// the list soon has them all accepted together: on iptables-legacy that table may be
// large, and each look at it long.
func features(family model.Family) []feature {
	const (
		mark = 0x4000 // any will do
		list = "KUBE-PROXY-PROBE"
	)
	mask, port, rejectWith := netip.MustParseAddr("255.255.255.255"), netip.MustParseAddrPort("192.0.2.1:80"), "icmp-port-unreachable"
	if family == model.IPv6 {
		mask, port, rejectWith = netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), netip.MustParseAddrPort("[2001:db8::1]:80"), "icmp6-port-unreachable"
	}
	return []feature{
		{
			Feature: using("comment", ruleset.Filter, ruleset.Rule{Comment: "probe"}),
			without: func(l *render.Lacks) { l.Comment = true },
			loses:   "rules have no comments that name their Service",
		},
		{
			Feature: using(featureConntrack, ruleset.Filter,
				matching(ruleset.Conntrack{States: ruleset.Invalid}),
				matching(ruleset.Conntrack{States: ruleset.New}),
				matching(ruleset.Conntrack{States: ruleset.Related | ruleset.Established | ruleset.DNATed, Not: true})),
			without: func(l *render.Lacks) { l.Conntrack = true },
			loses: "packets that conntrack cannot place are not dropped, forwarded answers are not accepted against a policy of DROP, " +
				"and node ports do not answer on 127.0.0.1",
			reason: "NoConntrackMatch",
		},
		{
			Feature: using("statistic", ruleset.Filter, matching(ruleset.Chance(2))),
			without: func(l *render.Lacks) { l.Statistic = true },
			loses:   "each Service port has one endpoint only, the first one",
			reason:  "NoLoadBalancing",
		},
		{
			Feature: using("recent", ruleset.Filter,
				matching(ruleset.RecentSet{Name: list, Mask: mask}),
				matching(ruleset.RecentCheck{Name: list, Seconds: 10800, Reap: true, Mask: mask})),
			without:  func(l *render.Lacks) { l.Recent = true },
			loses:    "clients do not stay with the endpoint that they were given: there is no session affinity",
			reason:   "NoSessionAffinity",
			concerns: func(p model.ServicePort) bool { return p.AffinityTimeout > 0 },
		},
		{
			Feature: using("addrtype", ruleset.Filter,
				matching(ruleset.AddrType{Destination: "LOCAL"}), matching(ruleset.AddrType{Source: "LOCAL"})),
			without: func(l *render.Lacks) { l.AddrType = true },
			loses: "node ports answer on the addresses only that the node had at the last sync, and do not refuse where there is no endpoint; " +
				"where the external policy is Local, the node itself uses endpoints on it only",
			reason: "NoAddrTypeMatch",
		},
		{
			Feature: using("reject", ruleset.Filter, ruleset.Rule{Action: ruleset.Reject{With: rejectWith}}),
			without: func(l *render.Lacks) { l.Reject = true },
			loses:   "clients of Services without endpoints wait instead of being refused",
			reason:  "NoReject",
		},
		{
			Feature: using(featureNFAcct, ruleset.Filter, matching(ruleset.NFAcct{Name: nfacct.InvalidDropped})),
			loses:   "the metrics of dropped packets and of node ports on 127.0.0.1 are absent",
		},
		{
			Feature: using(featureSCTP, ruleset.Filter,
				matching(ruleset.Protocol{Name: "sctp"}, ruleset.DestinationPort{Protocol: "sctp", First: 80, Last: 80})),
			without:  func(l *render.Lacks) { l.SCTP = true },
			loses:    "SCTP ports are not served",
			reason:   "NoSCTP",
			concerns: func(p model.ServicePort) bool { return p.Name.Protocol == model.SCTP },
		},
		{
			Feature: using(featureDNAT, ruleset.NAT, ruleset.Rule{
				Matches: []ruleset.Match{ruleset.Protocol{Name: "tcp"}},
				Action:  ruleset.DNAT{To: port},
			}),
			loses:  "no Service works",
			reason: "NoDNAT",
		},
		{
			Feature: using("masquerade", ruleset.NAT,
				matching(ruleset.Mark{Value: mark, Mask: mark, Not: true}),
				ruleset.Rule{Action: ruleset.SetMark{Value: mark, Mask: mark}},
				ruleset.Rule{Action: ruleset.Masquerade{}}),
			without: func(l *render.Lacks) { l.Masquerade = true },
			loses: "no packet gets the node's address as its source: connections fail that need it, such as those from outside " +
				"to endpoints on other nodes and those of a pod to itself",
			reason: "NoMasquerading",
		},
		{
			Feature: using(featureRandomFully, ruleset.NAT, ruleset.Rule{Action: ruleset.Masquerade{RandomFully: true}}),
			loses:   "masqueraded connections get their source ports one after the other, and may race for one",
		},
	}
}

func using(name string, table ruleset.Table, rules ...ruleset.Rule) iptables.Feature {
	return iptables.Feature{Name: name, Table: table, Rules: rules}
}

// matching is a rule that only matches.
func matching(matches ...ruleset.Match) ruleset.Rule { return ruleset.Rule{Matches: matches} }
