package ruleset

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// module reads what follows -m NAME.
func (p *ruleParser) module(name string) error {
	if !isWord(name) {
		return fmt.Errorf("match %q", name)
	}
	if name == "comment" {
		return p.comment()
	}
	args := p.takeArguments(name)
	if hasPorts(name) && len(args) == 0 {
		return nil // "-m tcp" says no more than "-p tcp", which iptables demands with it
	}
	return p.addModule(name, args)
}

// implicitMatch reads an option that stands without -m: it belongs to the
// protocol, whose module iptables then loads by itself.
func (p *ruleParser) implicitMatch(option string) error {
	i := slices.IndexFunc(p.rule.Matches, func(m Match) bool { return addressRank(m) == addressRank(Protocol{}) })
	if i < 0 {
		return fmt.Errorf("option %s belongs to no match", option)
	}
	name := p.rule.Matches[i].(Protocol).Name
	args := p.takeArguments(name)
	// A comment is no protocol: taken for one, it would come back as the rule's comment.
	if len(args) == 0 || name == "comment" {
		return fmt.Errorf("option %s does not belong to protocol %s", option, name)
	}
	return p.addModule(name, args)
}

func (p *ruleParser) addModule(name string, args []token) error {
	if len(args) == 1 && args[0].raw == "!" {
		return errors.New("a ! that negates nothing")
	}
	matches, ok := knownMatch(name, args)
	if !ok {
		matches = []Match{UnknownMatch{Text: rawText("-m", name, args)}}
	}
	p.rule.Matches = append(p.rule.Matches, matches...)
	return nil
}

// comment reads a comment, whose text may look like a flag.
func (p *ruleParser) comment() error {
	if len(p.tokens) < 2 || p.tokens[0].raw != "--comment" {
		return errors.New("match comment: want --comment and a text")
	}
	text := cleanComment(p.tokens[1].text)
	p.tokens = p.tokens[2:]
	if p.rule.Comment != "" {
		p.add(UnknownMatch{Text: "-m comment --comment " + string(appendQuoted(nil, text))})
		return nil
	}
	p.rule.Comment = text
	return nil
}

// option is one --name of a match or target with its values.
type option struct {
	name   string
	not    bool
	values []token
}

// options splits the words of a module. It reports false when they do not begin
// with an option.
func options(args []token) ([]option, bool) {
	var opts []option
	not := false
	for _, t := range args {
		switch {
		case t.raw == "!":
			not = true
			continue
		case strings.HasPrefix(t.raw, "--"):
			opts = append(opts, option{name: t.raw, not: not})
		case len(opts) == 0:
			return nil, false
		default: // a value; the old style puts the ! before it
			o := &opts[len(opts)-1]
			o.not = o.not != not
			o.values = append(o.values, t)
		}
		not = false
	}
	return opts, !not
}

// knownMatch returns the matches of a module's words. It reports false for what
// this package has no type for, or does not understand.
func knownMatch(name string, args []token) ([]Match, bool) {
	opts, ok := options(args)
	if !ok {
		return nil, false
	}
	switch name {
	case "tcp", "udp", "sctp":
		return portMatches(name, opts)
	case "addrtype":
		return addrTypeMatch(opts)
	case "conntrack", "state":
		return conntrackMatch(opts)
	case "mark":
		return markMatch(opts)
	case "statistic":
		return randomMatch(opts)
	case "recent":
		return recentMatch(opts)
	case "nfacct":
		if len(opts) == 1 && opts[0].name == "--nfacct-name" && !opts[0].not && isWord(opts[0].value()) {
			return []Match{NFAcct{Name: opts[0].value()}}, true
		}
	}
	return nil, false
}

// value is the option's only value, "" when it does not have exactly one.
func (o option) value() string {
	if len(o.values) != 1 {
		return ""
	}
	return o.values[0].text
}

// portMatches returns the source before the destination, as iptables-save does.
func portMatches(protocol string, opts []option) ([]Match, bool) {
	var source, destination []Match
	for _, o := range opts {
		first, last, ok := parsePorts(o.value())
		if !ok {
			return nil, false
		}
		switch o.name {
		case "--sport", "--source-port":
			source = append(source, SourcePort{Protocol: protocol, First: first, Last: last, Not: o.not})
		case "--dport", "--destination-port":
			destination = append(destination, DestinationPort{Protocol: protocol, First: first, Last: last, Not: o.not})
		default:
			return nil, false
		}
	}
	return append(source, destination...), len(source) <= 1 && len(destination) <= 1
}

// parsePorts reads "80", "80:90", ":90" or "80:".
func parsePorts(s string) (first, last uint16, ok bool) {
	low, high, isRange := strings.Cut(s, ":")
	if !isRange {
		high = low
	} else if high == "" {
		high = "65535"
	}
	if isRange && low == "" {
		low = "0"
	}
	f, err1 := strconv.ParseUint(low, 10, 16)
	l, err2 := strconv.ParseUint(high, 10, 16)
	return uint16(f), uint16(l), err1 == nil && err2 == nil && f <= l
}

func addrTypeMatch(opts []option) ([]Match, bool) {
	var m AddrType
	for _, o := range opts {
		v := o.value()
		switch {
		case !isWord(v):
			return nil, false
		case o.name == "--src-type" && m.Source == "":
			m.Source, m.NotSource = v, o.not
		case o.name == "--dst-type" && m.Destination == "":
			m.Destination, m.NotDestination = v, o.not
		default:
			return nil, false
		}
	}
	return []Match{m}, m != AddrType{}
}

func conntrackMatch(opts []option) ([]Match, bool) {
	if len(opts) != 1 || opts[0].name != "--ctstate" && opts[0].name != "--state" {
		return nil, false
	}
	m := Conntrack{Not: opts[0].not}
	for name := range strings.SplitSeq(opts[0].value(), ",") {
		bit := slices.Index(stateNames[:], strings.ToUpper(name))
		if bit < 0 {
			return nil, false
		}
		m.States |= 1 << bit
	}
	return []Match{m}, true
}

func markMatch(opts []option) ([]Match, bool) {
	if len(opts) != 1 || opts[0].name != "--mark" {
		return nil, false
	}
	value, mask, ok := parseMark(opts[0].value())
	return []Match{Mark{Value: value, Mask: mask, Not: opts[0].not}}, ok
}

// parseMark reads "value" or "value/mask"; without one the mask is all bits.
func parseMark(s string) (value, mask uint32, ok bool) {
	v, m, found := strings.Cut(s, "/")
	if !found {
		m = "0xffffffff"
	}
	a, err1 := strconv.ParseUint(v, 0, 32)
	b, err2 := strconv.ParseUint(m, 0, 32)
	// Go also takes 1_000, 0o17 and 0b11; iptables does not.
	ok = err1 == nil && err2 == nil && !strings.ContainsAny(s, "_oO") && !hasBinary(v) && !hasBinary(m)
	return uint32(a), uint32(b), ok
}

func hasBinary(s string) bool { return strings.HasPrefix(s, "0b") || strings.HasPrefix(s, "0B") }

func randomMatch(opts []option) ([]Match, bool) {
	if len(opts) != 2 || opts[0].name != "--mode" || opts[0].value() != "random" ||
		opts[1].name != "--probability" || opts[0].not || opts[1].not {
		return nil, false
	}
	p, err := strconv.ParseFloat(opts[1].value(), 64)
	if err != nil || !(p >= 0 && p <= 1) {
		return nil, false
	}
	return []Match{Random{Steps: uint32(math.Round(p * (1 << 31)))}}, true
}

func recentMatch(opts []option) ([]Match, bool) {
	var set, check, reap bool
	var seconds uint32
	name, mask := "DEFAULT", netip.Addr{}
	for _, o := range opts {
		ok := !o.not
		switch o.name {
		case "--set":
			set = true
		case "--rcheck":
			check = true
		case "--reap":
			reap = true
		case "--rsource":
		case "--seconds":
			n, err := strconv.ParseUint(o.value(), 10, 32)
			seconds, ok = uint32(n), ok && err == nil && n > 0
		case "--name":
			name, ok = o.value(), ok && isWord(o.value())
		case "--mask":
			a, err := netip.ParseAddr(o.value())
			mask, ok = a, ok && err == nil && a.Zone() == ""
		default:
			ok = false
		}
		isFlag := o.name == "--set" || o.name == "--rcheck" || o.name == "--reap" || o.name == "--rsource"
		if !ok || isFlag && len(o.values) > 0 {
			return nil, false
		}
	}
	switch {
	case set == check, set && (reap || seconds != 0), reap && seconds == 0:
		return nil, false
	case set:
		return []Match{RecentSet{Name: name, Mask: mask}}, true
	}
	return []Match{RecentCheck{Name: name, Seconds: seconds, Reap: reap, Mask: mask}}, true
}

// knownAction returns the action of a target and its words. It reports false for
// what this package has no type for, or does not understand.
func knownAction(name string, args []token) (Action, bool) {
	opts, ok := options(args)
	if !ok || slices.ContainsFunc(opts, func(o option) bool { return o.not }) {
		return nil, false
	}
	switch name {
	case "ACCEPT":
		return Accept{}, len(opts) == 0
	case "DROP":
		return Drop{}, len(opts) == 0
	case "RETURN":
		return Return{}, len(opts) == 0
	}
	switch {
	case name == "REJECT" && len(opts) == 0:
		return Reject{}, true
	case name == "MASQUERADE" && len(opts) == 0:
		return Masquerade{}, true
	case len(opts) != 1:
		return nil, false
	}
	o := opts[0]
	switch name {
	case "REJECT":
		return Reject{With: o.value()}, o.name == "--reject-with" && isWord(o.value())
	case "MASQUERADE":
		return Masquerade{RandomFully: true}, o.name == "--random-fully" && len(o.values) == 0
	case "DNAT":
		to, ok := parseDestination(o.value())
		return DNAT{To: to}, o.name == "--to-destination" && ok
	case "MARK":
		return setMarkAction(o)
	}
	return nil, false
}

func parseDestination(s string) (netip.AddrPort, bool) {
	if to, err := netip.ParseAddrPort(s); err == nil {
		return to, to.Addr().Zone() == "" && to.Port() != 0
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return netip.AddrPortFrom(addr, 0), err == nil && addr.Zone() == ""
}

// setMarkAction turns every way to write to a mark into the one that the kernel keeps.
func setMarkAction(o option) (Action, bool) {
	value, mask, ok := parseMark(o.value())
	hasMask := strings.Contains(o.value(), "/")
	switch o.name {
	case "--set-xmark":
		return SetMark{Value: value, Mask: mask}, ok
	case "--set-mark":
		return SetMark{Value: value, Mask: value | mask}, ok
	case "--or-mark":
		return SetMark{Value: value, Mask: value}, ok && !hasMask
	case "--xor-mark":
		return SetMark{Value: value}, ok && !hasMask
	case "--and-mark":
		return SetMark{Mask: ^value}, ok && !hasMask
	}
	return nil, false
}
