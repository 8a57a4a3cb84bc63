package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Packet is a packet at the moment it enters the host or is made by it.
type Packet struct {
	// In is the interface that the packet enters by; empty for one that the host
	// itself sends.
	In          string
	Source      netip.Addr
	Destination netip.Addr
	// Protocol is the transport protocol by its iptables name: "tcp", "udp",
	// "sctp", "icmp", "ipv6-icmp".
	Protocol string
	// SourcePort and DestinationPort are 0 for a protocol without ports.
	SourcePort      uint16
	DestinationPort uint16
	// State is what conntrack knows of the packet: one of Invalid, New, Related,
	// Established and Untracked, with DNATed and SNATed if the connection's first
	// packet was translated; 0 is New. Only new connections are shown to nat.
	State ruleset.ConntrackState
}

// String returns the packet as "eth0: tcp 10.0.0.2:40000 -> 10.96.0.80:80".
func (p Packet) String() string {
	return fmt.Sprintf("%s: %s %s -> %s%s", cmp.Or(p.In, "host"), p.Protocol,
		netip.AddrPortFrom(p.Source, p.SourcePort), netip.AddrPortFrom(p.Destination, p.DestinationPort), p.stateText())
}

func (p Packet) stateText() string {
	if p.State == 0 || p.State == ruleset.New {
		return ""
	}
	return " (" + p.State.String() + ")"
}

// Fate is the end of a packet's walk.
type Fate string

// The fates.
const (
	// Pass is the fate of a packet that goes where it was sent to.
	Pass Fate = "pass"
	// Translated is the fate of a packet that goes to another address or port.
	Translated Fate = "DNAT"
	// Rejected is the fate of a packet that is answered with an error.
	Rejected Fate = "REJECT"
	// Dropped is the fate of a packet that is discarded without a word.
	Dropped Fate = "DROP"
)

// Outcome is what happens to a packet, as far as anybody outside can tell. Two
// outcomes are the same if they are equal. Of a rejected or dropped packet only
// the fate is set.
type Outcome struct {
	Fate Fate
	// To is the new destination of a translated packet.
	To netip.AddrPort
	// Masquerade says that the packet's source was rewritten.
	Masquerade bool
	// Accept says that a rule of table filter accepted the packet, so that it would
	// also pass where the policy is DROP.
	Accept bool
	// Mark is the packet mark with which the packet leaves the host, 0 for a packet
	// that stays.
	Mark uint32
}

// String returns the outcome as "DNAT 10.244.1.10:8080 masquerade accept".
func (o Outcome) String() string {
	words := []string{string(o.Fate)}
	if o.To.IsValid() {
		words = append(words, o.To.String())
	}
	if o.Masquerade {
		words = append(words, "masquerade")
	}
	if o.Accept {
		words = append(words, "accept")
	}
	if o.Mark != 0 {
		words = append(words, fmt.Sprintf("mark %#x", o.Mark))
	}
	return strings.Join(words, " ")
}

// Step is a rule that matched.
type Step struct {
	Chain ruleset.ChainID
	// Index is the rule's place in the chain, from 0.
	Index int
	Rule  ruleset.Rule
}

// String returns the step as "nat/KUBE-SERVICES[3] RULE".
func (s Step) String() string { return fmt.Sprintf("%s[%d] %s", s.Chain, s.Index, s.Rule) }

// Branch is one way that a packet can take.
type Branch struct {
	Outcome Outcome
	// Probability is the share of packets with this outcome and these lists. The
	// shares of all branches add up to 1, within what rounding of float64 does: for
	// 5000 endpoints less than 1e-12.
	Probability float64
	// Out is the interface that the packet leaves by, empty if the host keeps it.
	Out string
	// Lists are the lists of match recent as the packet leaves them.
	Lists Lists

	path *pathStep
}

// Steps returns the rules that matched, in order, on one of the ways that lead to
// the branch.
func (b Branch) Steps() []Step {
	var steps []Step
	for p := b.path; p != nil; p = p.before {
		steps = append(steps, Step{Chain: p.chain.ChainID, Index: p.index, Rule: p.chain.rules[p.index].Rule})
	}
	slices.Reverse(steps)
	return steps
}

// Distribution is how probable each outcome is.
type Distribution map[Outcome]float64

// Distribute adds up the branches by outcome.
func Distribute(branches []Branch) Distribution {
	d := Distribution{}
	for _, b := range branches {
		d[b.Outcome] += b.Probability
	}
	return d
}

// tolerance is how far two probabilities may be apart and still count as the same:
// far more than the 2^-31 in which the kernel counts them, times any number of
// endpoints, and far less than anybody could measure.
const tolerance = 1e-6

// Equal reports whether two distributions agree.
func (d Distribution) Equal(o Distribution) bool {
	for outcome, p := range d {
		if diff := p - o[outcome]; diff > tolerance || diff < -tolerance {
			return false
		}
	}
	for outcome, p := range o {
		if _, ok := d[outcome]; !ok && p > tolerance {
			return false
		}
	}
	return true
}
