package ruleset

import (
	"net/netip"
	"strconv"
)

// appendRule appends the rule's words, each with a space before it.
func (r *Rule) appendRule(b []byte) []byte {
	for rank := range addressRanks {
		for _, m := range r.Matches {
			if addressRank(m) == rank {
				b = m.appendMatch(b)
			}
		}
	}
	if r.Comment != "" {
		b = append(b, " -m comment --comment "...)
		b = appendQuoted(b, cleanComment(r.Comment))
	}
	sourcePortOf := ""
	for _, m := range r.Matches {
		if addressRank(m) < addressRanks {
			continue
		}
		switch m := m.(type) {
		case SourcePort:
			b, sourcePortOf = m.appendMatch(b), m.Protocol
			continue
		case DestinationPort:
			if m.Protocol == sourcePortOf {
				b = m.appendOption(b) // one -m tcp holds both ports
			} else {
				b = m.appendMatch(b)
			}
		default:
			b = m.appendMatch(b)
		}
		sourcePortOf = ""
	}
	if r.Action != nil {
		b = r.Action.appendAction(b)
	}
	return b
}

// addressRanks is the number of match types that iptables-save prints before all
// others, in an order of its own.
const addressRanks = 5

// addressRank returns the place of a match among those of addresses, interfaces
// and protocol, and addressRanks for one that is loaded with -m.
func addressRank(m Match) int {
	switch m.(type) {
	case Source:
		return 0
	case Destination:
		return 1
	case InInterface:
		return 2
	case OutInterface:
		return 3
	case Protocol:
		return 4
	}
	return addressRanks
}

func (m Source) appendMatch(b []byte) []byte { return appendPrefix(b, " -s ", m.Prefix, m.Not) }

func (m Destination) appendMatch(b []byte) []byte { return appendPrefix(b, " -d ", m.Prefix, m.Not) }

// appendPrefix leaves out the range of all addresses, as the kernel does, which
// keeps no trace of it.
func appendPrefix(b []byte, flag string, p netip.Prefix, not bool) []byte {
	if p.Bits() == 0 && !not {
		return b
	}
	b = appendNot(b, not)
	b = append(b, flag...)
	return p.Masked().AppendTo(b)
}

func (m InInterface) appendMatch(b []byte) []byte {
	return appendInterface(b, " -i ", m.Pattern, m.Not)
}

func (m OutInterface) appendMatch(b []byte) []byte {
	return appendInterface(b, " -o ", m.Pattern, m.Not)
}

func appendInterface(b []byte, flag, pattern string, not bool) []byte {
	if pattern == "+" && !not {
		return b
	}
	b = appendNot(b, not)
	b = append(b, flag...)
	return appendWord(b, pattern)
}

func (m Protocol) appendMatch(b []byte) []byte {
	b = appendNot(b, m.Not)
	b = append(b, " -p "...)
	return appendWord(b, m.Name)
}

func (m SourcePort) appendMatch(b []byte) []byte {
	b = append(b, " -m "...)
	b = appendWord(b, m.Protocol)
	return appendPorts(b, " --sport ", m.First, m.Last, m.Not)
}

func (m DestinationPort) appendMatch(b []byte) []byte {
	b = append(b, " -m "...)
	b = appendWord(b, m.Protocol)
	return m.appendOption(b)
}

func (m DestinationPort) appendOption(b []byte) []byte {
	return appendPorts(b, " --dport ", m.First, m.Last, m.Not)
}

func appendPorts(b []byte, option string, first, last uint16, not bool) []byte {
	b = appendNot(b, not)
	b = append(b, option...)
	b = strconv.AppendUint(b, uint64(first), 10)
	if first != last {
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(last), 10)
	}
	return b
}

func (m AddrType) appendMatch(b []byte) []byte {
	b = append(b, " -m addrtype"...)
	if m.Source != "" {
		b = appendNot(b, m.NotSource)
		b = append(b, " --src-type "...)
		b = appendWord(b, m.Source)
	}
	if m.Destination != "" {
		b = appendNot(b, m.NotDestination)
		b = append(b, " --dst-type "...)
		b = appendWord(b, m.Destination)
	}
	return b
}

// stateNames are the words of --ctstate, by bit.
var stateNames = [...]string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"}

func (m Conntrack) appendMatch(b []byte) []byte {
	b = append(b, " -m conntrack"...)
	b = appendNot(b, m.Not)
	b = append(b, " --ctstate "...)
	return m.States.append(b)
}

// String returns the states as --ctstate takes them.
func (s ConntrackState) String() string { return string(s.append(nil)) }

func (s ConntrackState) append(b []byte) []byte {
	start := len(b)
	for bit, name := range stateNames {
		if s&(1<<bit) == 0 {
			continue
		}
		if len(b) > start {
			b = append(b, ',')
		}
		b = append(b, name...)
	}
	return b
}

func (m Mark) appendMatch(b []byte) []byte {
	b = append(b, " -m mark"...)
	b = appendNot(b, m.Not)
	b = append(b, " --mark "...)
	b = appendHex(b, m.Value)
	if m.Mask != allBits {
		b = append(b, '/')
		b = appendHex(b, m.Mask)
	}
	return b
}

func (m Random) appendMatch(b []byte) []byte {
	b = append(b, " -m statistic --mode random --probability "...)
	return appendProbability(b, m.Steps)
}

// appendProbability appends steps/2^31 with eleven digits, rounded as printf
// rounds. Since 10^11/2^31 = 5^11/2^20, integers are exact, and much faster than
// strconv on this path.
func appendProbability(b []byte, steps uint32) []byte {
	const (
		one   = 100_000_000_000
		shift = 20
		half  = 1 << (shift - 1)
	)
	scaled := uint64(steps) * 48_828_125 // 5^11
	digits, rest := scaled>>shift, scaled&(1<<shift-1)
	if rest > half || rest == half && digits%2 == 1 {
		digits++
	}
	b = strconv.AppendUint(b, digits/one, 10)
	b = append(b, '.')
	at := len(b)
	b = strconv.AppendUint(b, one+digits%one, 10) // the leading 1 keeps the zeros behind it
	copy(b[at:], b[at+1:])
	return b[:len(b)-1]
}

func (m RecentCheck) appendMatch(b []byte) []byte {
	b = append(b, " -m recent --rcheck"...)
	if m.Seconds != 0 {
		b = append(b, " --seconds "...)
		b = strconv.AppendUint(b, uint64(m.Seconds), 10)
	}
	if m.Reap {
		b = append(b, " --reap"...)
	}
	return appendList(b, m.Name, m.Mask)
}

func (m RecentSet) appendMatch(b []byte) []byte {
	b = append(b, " -m recent --set"...)
	return appendList(b, m.Name, m.Mask)
}

// appendList appends which list of addresses a recent match works on. Without a
// valid mask iptables takes the whole address.
func appendList(b []byte, name string, mask netip.Addr) []byte {
	b = append(b, " --name "...)
	b = appendWord(b, name)
	if mask.IsValid() {
		b = append(b, " --mask "...)
		b = mask.AppendTo(b)
	}
	return append(b, " --rsource"...)
}

func (m NFAcct) appendMatch(b []byte) []byte {
	b = append(b, " -m nfacct --nfacct-name "...)
	return appendWord(b, m.Name)
}

func (m UnknownMatch) appendMatch(b []byte) []byte { return appendRaw(b, m.Text) }

func (a Jump) appendAction(b []byte) []byte { return appendWord(append(b, " -j "...), a.Chain) }

func (a Goto) appendAction(b []byte) []byte { return appendWord(append(b, " -g "...), a.Chain) }

func (Accept) appendAction(b []byte) []byte { return append(b, " -j ACCEPT"...) }

func (Drop) appendAction(b []byte) []byte { return append(b, " -j DROP"...) }

func (Return) appendAction(b []byte) []byte { return append(b, " -j RETURN"...) }

func (a Reject) appendAction(b []byte) []byte {
	b = append(b, " -j REJECT"...)
	if a.With == "" {
		return b
	}
	b = append(b, " --reject-with "...)
	return appendWord(b, a.With)
}

func (a DNAT) appendAction(b []byte) []byte {
	b = append(b, " -j DNAT --to-destination "...)
	if a.To.Port() == 0 {
		return a.To.Addr().AppendTo(b)
	}
	return a.To.AppendTo(b)
}

func (a Masquerade) appendAction(b []byte) []byte {
	b = append(b, " -j MASQUERADE"...)
	if a.RandomFully {
		b = append(b, " --random-fully"...)
	}
	return b
}

func (a SetMark) appendAction(b []byte) []byte {
	b = append(b, " -j MARK --set-xmark "...)
	b = appendHex(b, a.Value)
	b = append(b, '/')
	return appendHex(b, a.Mask)
}

func (a UnknownAction) appendAction(b []byte) []byte { return appendRaw(b, a.Text) }

const allBits = 0xffffffff

func appendHex(b []byte, v uint32) []byte {
	return strconv.AppendUint(append(b, "0x"...), uint64(v), 16)
}

func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, " !"...)
	}
	return b
}
