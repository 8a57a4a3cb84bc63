package ruleset

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Decode reads the output of iptables-save, or input for iptables-restore, and
// returns the state that a kernel without rules would have after it. It accepts
// the spellings that iptables accepts and iptables-save does not print, such as
// "-m tcp -p tcp" or --or-mark. A match or target that it does not know is kept
// as UnknownMatch or UnknownAction; anything else that it does not understand is
// an error that names the line. The result refers to a copy of text.
func Decode(text []byte) (Ruleset, error) {
	d := decoder{rs: Ruleset{}}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := d.line(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if d.table != "" {
		return nil, fmt.Errorf("line %d: table %s ends without COMMIT", number, d.table)
	}
	return d.rs, nil
}

type decoder struct {
	rs Ruleset
	// table is the one whose lines are being read, "" between tables.
	table  Table
	tokens []token
}

func (d *decoder) line(line string) error {
	tokens, err := tokenize(line, d.tokens[:0])
	if err != nil {
		return err
	}
	d.tokens = tokens
	if len(tokens) == 0 || tokens[0].raw[0] == '#' {
		return nil
	}
	if first := tokens[0].raw; first[0] == '*' {
		return d.begin(first[1:], tokens[1:])
	}
	if d.table == "" {
		return fmt.Errorf("%q is outside of a table", line)
	}
	switch first := tokens[0].raw; {
	case first == "COMMIT":
		d.table = ""
		return noMore(tokens[1:])
	case first[0] == ':':
		return d.declare(first[1:], tokens[1:])
	case first[0] == '[':
		if err := checkCounters(first); err != nil {
			return err
		}
		return d.command(tokens[1:])
	}
	return d.command(tokens)
}

func (d *decoder) begin(name string, rest []token) error {
	if d.table != "" {
		return fmt.Errorf("table %s begins before COMMIT of table %s", name, d.table)
	}
	if !isWord(name) {
		return fmt.Errorf("table name %q", name)
	}
	d.table = Table(name)
	return noMore(rest)
}

// declare reads ":NAME POLICY [packets:bytes]": the chain is there, and empty.
func (d *decoder) declare(name string, rest []token) error {
	if len(rest) == 0 || len(rest) > 2 {
		return fmt.Errorf("chain %s: want a policy and counters", name)
	}
	if err := checkChainName(name); err != nil {
		return err
	}
	if len(rest) == 2 {
		if err := checkCounters(rest[1].raw); err != nil {
			return err
		}
	}
	c := &Chain{ChainID: ChainID{d.table, name}}
	if policy := rest[0].raw; policy != "-" {
		if !isWord(policy) {
			return fmt.Errorf("chain %s: policy %q", name, policy)
		}
		c.Policy = policy
	}
	d.rs[c.ChainID] = c
	return nil
}

func (d *decoder) command(tokens []token) error {
	if len(tokens) < 2 {
		return errors.New("want a command and a chain")
	}
	command, name, rest := tokens[0].raw, tokens[1].text, tokens[2:]
	if command == "-N" || command == "--new-chain" {
		if err := checkChainName(name); err != nil {
			return err
		}
		id := ChainID{d.table, name}
		if d.rs[id] != nil {
			return fmt.Errorf("chain %s is there already", id)
		}
		d.rs[id] = &Chain{ChainID: id}
		return noMore(rest)
	}
	c, err := d.chain(name)
	if err != nil {
		return err
	}
	switch command {
	case "-A", "--append":
		return d.insert(c, len(c.Rules), rest)
	case "-I", "--insert":
		at := 1
		if len(rest) > 0 {
			if n, err := strconv.Atoi(rest[0].raw); err == nil {
				at, rest = n, rest[1:]
			}
		}
		if at < 1 || at > len(c.Rules)+1 {
			return fmt.Errorf("chain %s has no place %d", c.ChainID, at)
		}
		return d.insert(c, at-1, rest)
	case "-F", "--flush":
		c.Rules = nil
		return noMore(rest)
	case "-X", "--delete-chain":
		if c.IsBuiltin() || len(c.Rules) > 0 {
			return fmt.Errorf("chain %s is built in or not empty and cannot be removed", c.ChainID)
		}
		delete(d.rs, c.ChainID)
		return noMore(rest)
	}
	return fmt.Errorf("unknown command %q", command)
}

// chain returns a chain of the current table. The kernel's own chains are there
// without being declared.
func (d *decoder) chain(name string) (*Chain, error) {
	id := ChainID{d.table, name}
	if c := d.rs[id]; c != nil {
		return c, nil
	}
	if !id.IsBuiltin() {
		return nil, fmt.Errorf("chain %s does not exist", id)
	}
	c := &Chain{ChainID: id}
	d.rs[id] = c
	return c, nil
}

func (d *decoder) insert(c *Chain, at int, tokens []token) error {
	p := ruleParser{
		tokens:  tokens,
		isChain: func(name string) bool { return d.rs[ChainID{d.table, name}] != nil },
	}
	if err := p.parse(); err != nil {
		return err
	}
	c.Rules = slices.Insert(c.Rules, at, p.rule)
	return nil
}

// checkChainName refuses what iptables refuses as the name of a chain.
func checkChainName(name string) error {
	switch {
	case len(name) > MaxChainName:
		return fmt.Errorf("chain name %q is longer than %d bytes", name, MaxChainName)
	case !isWord(name) || name[0] == '-' || name[0] == '!':
		return fmt.Errorf("chain name %q", name)
	}
	return nil
}

// checkCounters checks "[packets:bytes]".
func checkCounters(s string) error {
	packets, bytes, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), ":")
	if ok && len(packets)+len(bytes)+3 == len(s) {
		_, err1 := strconv.ParseUint(packets, 10, 64)
		_, err2 := strconv.ParseUint(bytes, 10, 64)
		ok = err1 == nil && err2 == nil
	} else {
		ok = false
	}
	if !ok {
		return fmt.Errorf("counters %q, want [packets:bytes]", s)
	}
	return nil
}

func noMore(rest []token) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected %q", rest[0].raw)
	}
	return nil
}
