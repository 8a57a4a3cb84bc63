// Package ruleset holds netfilter rules as values: tables, chains, rules, matches
// and actions, with one encoder to iptables-restore text and one decoder from
// iptables-save (or restore) text. It runs nothing.
//
// A rule has one canonical spelling, the one in which iptables-save prints it, so
// that two rules are the same exactly when their text is.
package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
)

// Table is the name of a netfilter table.
type Table string

// The tables that miniproxy writes to.
const (
	Mangle Table = "mangle"
	NAT    Table = "nat"
	Filter Table = "filter"
)

// MaxChainName is the longest chain name that iptables takes, in bytes.
const MaxChainName = 28

// MaxComment is the longest comment that the comment match takes, in bytes.
const MaxComment = 255

// ChainID names a chain within one family.
type ChainID struct {
	Table Table
	Name  string
}

// String returns "table/chain".
func (id ChainID) String() string { return string(id.Table) + "/" + id.Name }

// Compare orders chains by table, then by name.
func (id ChainID) Compare(o ChainID) int {
	return cmp.Or(cmp.Compare(id.Table, o.Table), cmp.Compare(id.Name, o.Name))
}

// Chain is a chain with all its rules.
type Chain struct {
	ChainID
	// Policy is the verdict of a built-in chain's end ("ACCEPT", "DROP"); empty for
	// a chain of one's own, and for one whose policy is not to be touched.
	Policy string
	Rules  []Rule
}

// Rule is one rule: all matches must hold for the action to be taken.
type Rule struct {
	// Matches are kept in the order in which iptables-save prints them: addresses,
	// interfaces, protocol, then everything loaded with -m.
	Matches []Match
	// Comment is the text of the comment match, empty for none.
	Comment string
	// Action is what happens to a packet that matched; nil lets it go on to the next
	// rule, so that the rule only counts, or only notes something.
	Action Action
}

// Match is one condition of a rule. Its types are the ones in this package.
type Match interface {
	appendMatch(b []byte) []byte
}

// Action is a rule's target. Its types are the ones in this package.
type Action interface {
	appendAction(b []byte) []byte
}

// The matches. Not negates where a type has it.
type (
	// Source matches the source address: -s.
	Source struct {
		Prefix netip.Prefix
		Not    bool
	}
	// Destination matches the destination address: -d.
	Destination struct {
		Prefix netip.Prefix
		Not    bool
	}
	// InInterface matches the interface the packet came in by; a trailing + matches
	// any rest: -i.
	InInterface struct {
		Pattern string
		Not     bool
	}
	// OutInterface matches the interface the packet leaves by: -o.
	OutInterface struct {
		Pattern string
		Not     bool
	}
	// Protocol matches the transport protocol by its iptables name ("tcp", "udp",
	// "sctp", "icmp", "ipv6-icmp"): -p.
	Protocol struct {
		Name string
		Not  bool
	}
	// SourcePort matches a range of source ports of a protocol: -m tcp --sport.
	SourcePort struct {
		Protocol    string
		First, Last uint16
		Not         bool
	}
	// DestinationPort matches a range of destination ports of a protocol: -m tcp --dport.
	DestinationPort struct {
		Protocol    string
		First, Last uint16
		Not         bool
	}
	// AddrType matches addresses by what they are to this host, such as "LOCAL"; an
	// empty field is not asked: -m addrtype --src-type --dst-type.
	AddrType struct {
		Source, Destination       string
		NotSource, NotDestination bool
	}
	// Conntrack matches the connection's state: -m conntrack --ctstate.
	Conntrack struct {
		States ConntrackState
		Not    bool
	}
	// Mark matches packet mark & Mask == Value: -m mark --mark.
	Mark struct {
		Value, Mask uint32
		Not         bool
	}
	// Random matches a packet with probability Steps / 2^31, the fraction that the
	// kernel keeps: -m statistic --mode random --probability.
	Random struct {
		Steps uint32
	}
	// RecentCheck matches a source address that was put on the list Name in the last
	// Seconds (0: ever); Reap drops older entries on the way: -m recent --rcheck.
	RecentCheck struct {
		Name    string
		Seconds uint32
		Reap    bool
		Mask    netip.Addr
	}
	// RecentSet puts the source address on the list Name and always matches: -m
	// recent --set.
	RecentSet struct {
		Name string
		Mask netip.Addr
	}
	// NFAcct counts the packet on an accounting object and always matches: -m nfacct.
	NFAcct struct {
		Name string
	}
	// UnknownMatch is a match that this package has no type for, as text. It can be
	// carried and written, but not reasoned about.
	UnknownMatch struct {
		Text string
	}
)

// The actions.
type (
	// Jump goes on in another chain and comes back at its end: -j.
	Jump struct{ Chain string }
	// Goto goes on in another chain and does not come back here: -g.
	Goto struct{ Chain string }
	// Accept ends the table's hook and lets the packet pass.
	Accept struct{}
	// Drop discards the packet without a word.
	Drop struct{}
	// Return goes back to the calling chain.
	Return struct{}
	// Reject discards the packet and answers With (an --reject-with value).
	Reject struct{ With string }
	// DNAT rewrites the destination of the connection.
	DNAT struct{ To netip.AddrPort }
	// Masquerade rewrites the source of the connection to an address of the
	// interface it leaves by.
	Masquerade struct{ RandomFully bool }
	// SetMark sets the packet mark to (mark &^ Mask) ^ Value: -j MARK --set-xmark.
	SetMark struct{ Value, Mask uint32 }
	// UnknownAction is a target that this package has no type for, as text.
	UnknownAction struct{ Text string }
)

// ConntrackState is a set of connection states.
type ConntrackState uint8

// The states that -m conntrack --ctstate knows, in the order in which
// iptables-save prints them.
const (
	Invalid ConntrackState = 1 << iota
	New
	Related
	Established
	Untracked
	SNATed
	DNATed
)

// Chance returns the match that holds for one packet in n; n must not be 0.
func Chance(n int) Random { return Share(1, n) }

// Share returns the match that holds for a packet with probability part/whole.
func Share(part, whole int) Random {
	// Rounded to the nearest step, as iptables itself does with the decimal it reads.
	return Random{Steps: uint32((uint64(part)<<32/uint64(whole) + 1) / 2)}
}

// Ruleset is the state of some tables, by chain.
type Ruleset map[ChainID]*Chain

// Hook is a rule of ours in a chain that is not ours: the way in from a built-in
// chain.
type Hook struct {
	From ChainID
	Rule Rule
}

// HookedChains lists the chains that hooks are in, in the order of the hooks.
func HookedChains(hooks []Hook) []ChainID {
	var ids []ChainID
	for _, h := range hooks {
		if !slices.Contains(ids, h.From) {
			ids = append(ids, h.From)
		}
	}
	return ids
}

// HooksIn lists the rules of the hooks that are in one chain.
func HooksIn(hooks []Hook, from ChainID) []Rule {
	var rules []Rule
	for _, h := range hooks {
		if h.From == from {
			rules = append(rules, h.Rule)
		}
	}
	return rules
}
