package iptables

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// SavedChain is a chain as iptables-save prints it.
type SavedChain struct {
	ruleset.ChainID
	// Text changes with the text of the rules. It is to be compared with those that the
	// same Runner tells.
	Text uint64
	// Rules is how many there are.
	Rules int
	lines []byte
	// buffer is for Says: one for all chains.
	buffer *[]byte
}

// ReadChains reads a table as the programs print it, and calls each with those of its
// chains that are wanted, one at a time, so that a table of any size takes the memory of
// its largest chain. A chain is valid until each returns. An error of each ends the
// reading and is returned. On the nft backend a table of 100,000 chains takes minutes; on
// the legacy backend looking creates the table.
func (r *Runner) ReadChains(ctx context.Context, table ruleset.Table, wanted func(ruleset.ChainID) bool, each func(SavedChain) error) error {
	s := saved{table: table, wanted: wanted, each: each, seed: r.seed, declared: map[string]bool{}}
	if err := r.seams.lines(ctx, s.read, r.seams.Save, "-t", string(table)); err != nil {
		return fmt.Errorf("read the %v table %s: %w", r.family, table, err)
	}
	return nil
}

// saved reads what iptables-save prints of a table: the declarations of all chains, and
// then the rules, those of a chain together.
type saved struct {
	table    ruleset.Table
	wanted   func(ruleset.ChainID) bool
	each     func(SavedChain) error
	seed     maphash.Seed
	declared map[string]bool
	// name is that of the chain that is being read, keep says whether it is wanted, and
	// lines and rules are what was read of it.
	name  string
	keep  bool
	lines []byte
	rules int
	// buffer is what chains need to tell what they say.
	buffer []byte
}

func (s *saved) read(lines *bufio.Scanner) error {
	for lines.Scan() {
		if err := s.line(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if err := s.hand(); err != nil {
		return err
	}
	for s.name = range s.declared { // those without a rule
		if err := s.each(s.chain()); err != nil {
			return err
		}
	}
	return nil
}

func (s *saved) line(line []byte) error {
	switch {
	case bytes.HasPrefix(line, []byte("-A ")):
		name, _, _ := bytes.Cut(line[len("-A "):], []byte(" "))
		if string(name) != s.name {
			if err := s.hand(); err != nil {
				return err
			}
			s.name = string(name)
			s.keep = s.isWanted(s.name)
		}
		if s.keep {
			s.lines = append(append(s.lines, line...), '\n')
			s.rules++
		}
	case s.rules > 0 && string(line) != "COMMIT":
		s.lines = append(append(s.lines, line...), '\n') // of a comment that holds a newline
	case len(line) > 0 && line[0] == ':':
		if name, _, _ := bytes.Cut(line[1:], []byte(" ")); s.isWanted(string(name)) {
			s.declared[string(name)] = true
		}
	}
	return nil
}

func (s *saved) isWanted(name string) bool {
	return s.wanted(ruleset.ChainID{Table: s.table, Name: name})
}

// hand hands over the chain that was read.
func (s *saved) hand() error {
	if s.rules == 0 {
		return nil
	}
	delete(s.declared, s.name)
	chain := s.chain()
	s.lines, s.rules = s.lines[:0], 0
	return s.each(chain)
}

func (s *saved) chain() SavedChain {
	return SavedChain{
		ChainID: ruleset.ChainID{Table: s.table, Name: s.name},
		Text:    maphash.Bytes(s.seed, s.lines),
		Rules:   s.rules,
		lines:   s.lines,
		buffer:  &s.buffer,
	}
}

// Says reports whether the rules are those of a chain with this hash.
func (c SavedChain) Says(hash uint64) bool {
	// Most rules are printed as they were written: to decode them is dear where there are
	// 300,000.
	prefix := []byte("-A " + c.Name + " ")
	text := (*c.buffer)[:0]
	for line := range bytes.Lines(c.lines) {
		text = append(text, bytes.TrimPrefix(line, prefix)...)
	}
	*c.buffer = text
	return ruleset.HashText(text) == hash || c.Decode().Hash() == hash
}

// Decode reads the rules. What they jump to is not declared here, so that it is kept as
// text, which is the same text. Rules that cannot be read are zero.
func (c SavedChain) Decode() ruleset.Chain {
	text := []byte("*" + string(c.Table) + "\n:" + c.Name + " - [0:0]\n")
	text = append(append(text, c.lines...), "COMMIT\n"...)
	if decoded, err := ruleset.Decode(text); err == nil {
		return *decoded[c.ChainID]
	}
	chain := ruleset.Chain{ChainID: c.ChainID}
	lines := strings.Split(strings.TrimSuffix(string(c.lines), "\n"), "\n")
	for _, found := range readRules(c.ChainID, lines, func(string) bool { return false }) {
		chain.Rules = append(chain.Rules, found.rule)
	}
	return chain
}
