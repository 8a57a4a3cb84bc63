package ruleset

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ruleParser reads the words of one rule.
type ruleParser struct {
	tokens []token
	// isChain tells a chain from a target extension of the same look.
	isChain func(name string) bool
	rule    Rule
}

func (p *ruleParser) parse() error {
	for len(p.tokens) > 0 {
		if err := p.next(); err != nil {
			return err
		}
	}
	slices.SortStableFunc(p.rule.Matches, func(a, b Match) int {
		return cmp.Compare(addressRank(a), addressRank(b))
	})
	return nil
}

// next reads one flag with its words.
func (p *ruleParser) next() error {
	start := p.tokens
	not := p.takeNot()
	if len(p.tokens) == 0 {
		return errors.New("a ! that negates nothing")
	}
	flag := p.tokens[0].raw
	if strings.HasPrefix(flag, "--") && !isRuleFlag(flag) {
		p.tokens = start
		return p.implicitMatch(flag)
	}
	p.tokens = p.tokens[1:]
	if not && !isAddressFlag(flag) {
		return fmt.Errorf("%s cannot be negated", flag)
	}
	switch flag {
	case "-f", "--fragment":
		p.add(UnknownMatch{Text: "-f"})
		return nil
	case "-4", "--ipv4", "-6", "--ipv6":
		p.add(UnknownMatch{Text: flag})
		return nil
	case "-c", "--set-counters":
		return p.counters()
	}
	if isAddressFlag(flag) {
		not = p.takeNot() != not // the old style puts the ! behind the flag
	}
	if len(p.tokens) == 0 {
		return fmt.Errorf("%s: a word is missing", flag)
	}
	value := p.tokens[0].text
	p.tokens = p.tokens[1:]
	switch flag {
	case "-m", "--match":
		return p.module(value)
	case "-j", "--jump", "-g", "--goto":
		return p.target(flag, value)
	}
	if err := p.address(flag, value, not); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// isRuleFlag reports whether a word begins a new part of a rule, whatever was
// before it.
func isRuleFlag(word string) bool {
	switch word {
	case "-m", "--match", "-j", "--jump", "-g", "--goto", "-f", "--fragment",
		"-4", "--ipv4", "-6", "--ipv6", "-c", "--set-counters":
		return true
	}
	return isAddressFlag(word)
}

func isAddressFlag(word string) bool {
	switch word {
	case "-s", "--source", "--src", "-d", "--destination", "--dst",
		"-i", "--in-interface", "-o", "--out-interface", "-p", "--protocol", "--proto":
		return true
	}
	return false
}

func (p *ruleParser) add(m Match) { p.rule.Matches = append(p.rule.Matches, m) }

func (p *ruleParser) takeNot() bool {
	if len(p.tokens) > 0 && p.tokens[0].raw == "!" {
		p.tokens = p.tokens[1:]
		return true
	}
	return false
}

func (p *ruleParser) counters() error {
	if len(p.tokens) < 2 {
		return errors.New("-c: two numbers are missing")
	}
	for _, t := range p.tokens[:2] {
		if _, err := strconv.ParseUint(t.raw, 10, 64); err != nil {
			return fmt.Errorf("-c: %w", err)
		}
	}
	p.tokens = p.tokens[2:]
	return nil
}

// address reads what iptables itself matches, without a module.
func (p *ruleParser) address(flag, value string, not bool) error {
	m, err := addressMatch(flag, value, not)
	if err != nil {
		return err
	}
	if m == nil {
		return nil
	}
	if rank := addressRank(m); rank < addressRanks && slices.ContainsFunc(p.rule.Matches, func(o Match) bool {
		return addressRank(o) == rank
	}) {
		return errors.New("given twice")
	}
	p.add(m)
	return nil
}

// addressMatch returns nil for a match that every packet passes.
func addressMatch(flag, value string, not bool) (Match, error) {
	if !isWord(value) {
		return nil, fmt.Errorf("value %q", value)
	}
	switch flag {
	case "-i", "--in-interface", "-o", "--out-interface":
		if value == "+" && !not {
			return nil, nil
		}
		if flag == "-i" || flag == "--in-interface" {
			return InInterface{Pattern: value, Not: not}, nil
		}
		return OutInterface{Pattern: value, Not: not}, nil
	case "-p", "--protocol", "--proto":
		return protocolMatch(value, not)
	}
	prefix, err := parsePrefix(value)
	if errors.Is(err, errNotPrefix) {
		return UnknownMatch{Text: strings.TrimPrefix(string(appendNot(nil, not))+" "+flag+" "+value, " ")}, nil
	}
	if err != nil {
		return nil, err
	}
	if prefix.Bits() == 0 && !not {
		return nil, nil
	}
	if flag == "-d" || flag == "--destination" || flag == "--dst" {
		return Destination{Prefix: prefix, Not: not}, nil
	}
	return Source{Prefix: prefix, Not: not}, nil
}

// errNotPrefix says that an address match is valid, but not one prefix.
var errNotPrefix = errors.New("not one prefix")

func parsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, ",") {
		return netip.Prefix{}, errNotPrefix
	}
	base, length, found := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(base)
	if err != nil {
		return netip.Prefix{}, err
	}
	if addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address %s has a zone", addr)
	}
	if !found {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	bits, err := strconv.ParseUint(length, 10, 8)
	if err != nil {
		return maskedPrefix(addr, length)
	}
	prefix, err := addr.Prefix(int(bits))
	if err != nil {
		return netip.Prefix{}, err
	}
	return prefix, nil
}

// maskedPrefix reads a mask in the form of an address.
func maskedPrefix(addr netip.Addr, mask string) (netip.Prefix, error) {
	m, err := netip.ParseAddr(mask)
	if err != nil || m.BitLen() != addr.BitLen() || m.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("mask %q", mask)
	}
	bits := 0
	bytes := m.AsSlice()
	for bits < m.BitLen() && bytes[bits/8]&(0x80>>(bits%8)) != 0 {
		bits++
	}
	for i := bits; i < m.BitLen(); i++ {
		if bytes[i/8]&(0x80>>(i%8)) != 0 {
			return netip.Prefix{}, errNotPrefix
		}
	}
	return addr.Prefix(bits)
}

func protocolMatch(name string, not bool) (Match, error) {
	name = strings.ToLower(name)
	switch name {
	case "all", "0":
		if not {
			return nil, errors.New("matches no packet")
		}
		return nil, nil
	case "1":
		name = "icmp"
	case "6":
		name = "tcp"
	case "17":
		name = "udp"
	case "132":
		name = "sctp"
	case "58", "icmpv6":
		name = "ipv6-icmp"
	}
	return Protocol{Name: name, Not: not}, nil
}

// target reads what follows -j or -g.
func (p *ruleParser) target(flag, name string) error {
	if p.rule.Action != nil {
		return errors.New("a second target")
	}
	if !isWord(name) {
		return fmt.Errorf("target %q", name)
	}
	args := p.takeArguments("")
	if flag == "-g" || flag == "--goto" {
		p.rule.Action = Goto{Chain: name}
		return noMore(args)
	}
	switch a, ok := knownAction(name, args); {
	case ok:
		p.rule.Action = a
	case len(args) == 0 && (p.isChain(name) || !isExtension(name)):
		p.rule.Action = Jump{Chain: name}
	case p.isChain(name):
		return fmt.Errorf("unexpected %q after a jump", args[0].raw)
	default:
		p.rule.Action = UnknownAction{Text: rawText("-j", name, args)}
	}
	return nil
}

// isExtension reports whether a target that takes no further words is one of
// iptables, and not a chain.
func isExtension(name string) bool {
	switch name {
	case "REJECT", "MASQUERADE", "DNAT", "SNAT", "MARK", "REDIRECT", "LOG", "NFLOG", "NFQUEUE", "QUEUE",
		"TRACE", "NOTRACK", "CT", "CHECKSUM", "AUDIT", "TCPMSS", "TEE", "CONNMARK", "SYNPROXY", "NETMAP":
		return true
	}
	return false
}

// takeArguments takes the words up to the next one that begins a new part of the
// rule. Port options belong to the protocol, wherever they stand, unless the
// module whose words are taken has such options itself.
func (p *ruleParser) takeArguments(module string) []token {
	isEnd := func(word string) bool {
		return isRuleFlag(word) || isPortOption(word) && !hasPorts(module)
	}
	for i, t := range p.tokens {
		word := t.raw
		if word == "!" && i+1 < len(p.tokens) {
			word = p.tokens[i+1].raw
		}
		if isEnd(word) {
			args := p.tokens[:i]
			p.tokens = p.tokens[i:]
			return args
		}
	}
	args := p.tokens
	p.tokens = nil
	return args
}

func isPortOption(word string) bool {
	switch word {
	case "--dport", "--destination-port", "--sport", "--source-port":
		return true
	}
	return false
}

// hasPorts reports whether a match module has --sport and --dport.
func hasPorts(module string) bool {
	switch module {
	case "tcp", "udp", "sctp", "udplite", "dccp":
		return true
	}
	return false
}

// rawText is the text of a part of a rule that is kept as it is.
func rawText(flag, name string, args []token) string {
	text := flag + " " + name
	for _, t := range args {
		text += " " + strings.ReplaceAll(t.raw, "\t", " ")
	}
	return text
}
