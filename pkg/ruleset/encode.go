package ruleset

import (
	"crypto/sha256"
	"encoding/binary"
)

// textPerRule is a rule's usual length as text, in bytes, used to size
// buffers.
const textPerRule = 160

// String returns the rule's canonical text, without "-A CHAIN".
func (r Rule) String() string {
	text := r.appendRule(nil)
	if len(text) == 0 {
		return ""
	}
	return string(text[1:])
}

// Args returns the rule as the words of an iptables(8) command line that follow
// the chain's name, without shell or restore quoting.
func (r Rule) Args() []string {
	tokens, _ := tokenize(r.String(), nil)
	args := make([]string, len(tokens))
	for i, t := range tokens {
		args[i] = t.text
	}
	return args
}

// Hash returns a hash of the chain's rules that is the same in every process: of
// their canonical text, in order. The chain's own name and policy are not in it.
func (c Chain) Hash() uint64 {
	text := make([]byte, 0, textPerRule*len(c.Rules))
	for _, r := range c.Rules {
		text = append(r.appendRule(text), '\n')
	}
	return HashText(text)
}

// HashText is the hash of a chain whose rules have the lines of text for their canonical
// texts.
func HashText(text []byte) uint64 {
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(sum[:])
}

// appendRemoval appends the line that removes a chain.
func appendRemoval(b []byte, name string) []byte {
	b = append(b, "-X "...)
	return append(appendWord(b, name), '\n')
}

// Append appends the ruleset as iptables-save prints it: tables and chains sorted,
// built-in chains first, no counters.
func (rs Ruleset) Append(b []byte) []byte {
	for _, table := range rs.Tables() {
		chains := rs.Chains(table)
		b = appendTableStart(b, table)
		for _, c := range chains {
			b = appendDeclaration(b, c.Name, c.Policy)
		}
		for _, c := range chains {
			b = appendRules(b, c)
		}
		b = append(b, "COMMIT\n"...)
	}
	return b
}

func appendTableStart(b []byte, table Table) []byte {
	b = append(b, '*')
	b = appendWord(b, string(table))
	return append(b, '\n')
}

func appendDeclaration(b []byte, name, policy string) []byte {
	b = append(b, ':')
	b = appendWord(b, name)
	b = append(b, ' ')
	if policy == "" {
		policy = "-"
	}
	b = appendWord(b, policy)
	return append(b, " [0:0]\n"...)
}

func appendRules(b []byte, c *Chain) []byte {
	for i := range c.Rules {
		b = append(b, "-A "...)
		b = appendWord(b, c.Name)
		b = c.Rules[i].appendRule(b)
		b = append(b, '\n')
	}
	return b
}
