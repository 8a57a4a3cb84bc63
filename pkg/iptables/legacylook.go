package iptables

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ReadChains reads a table as the programs print it, and calls each with those of its
// chains that are wanted, one at a time, so that a table of any size takes the memory of
// its largest chain. Rules that cannot be read are zero. An error of each ends the
// reading and is returned. On the nft backend a table of 100,000 chains takes minutes; on
// the legacy backend looking creates the table.
func (r *Runner) ReadChains(ctx context.Context, table ruleset.Table, wanted func(ruleset.ChainID) bool, each func(ruleset.Chain) error) error {
	s := saved{table: table, wanted: wanted, each: each, declared: map[string]bool{}}
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
	each     func(ruleset.Chain) error
	declared map[string]bool
	// name and rules are the chain that is being read, and the lines of its rules.
	name  string
	rules []string
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
	for name := range s.declared { // those without a rule
		if err := s.each(ruleset.Chain{ChainID: ruleset.ChainID{Table: s.table, Name: name}}); err != nil {
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
		}
		if s.isWanted(s.name) {
			s.rules = append(s.rules, string(line))
		}
	case len(s.rules) > 0 && string(line) != "COMMIT":
		s.rules[len(s.rules)-1] += "\n" + string(line) // of a comment that holds a newline
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
	if len(s.rules) == 0 {
		return nil
	}
	id := ruleset.ChainID{Table: s.table, Name: s.name}
	chain := ruleset.Chain{ChainID: id, Rules: decodeRules(id, s.rules)}
	delete(s.declared, s.name)
	s.rules = s.rules[:0]
	return s.each(chain)
}

// decodeRules reads the rules of a chain. What they jump to is not declared here, so
// that it is kept as text, which is the same text.
func decodeRules(id ruleset.ChainID, lines []string) []ruleset.Rule {
	text := []byte("*" + string(id.Table) + "\n:" + id.Name + " - [0:0]\n")
	for _, line := range lines {
		text = append(append(text, line...), '\n')
	}
	if decoded, err := ruleset.Decode(append(text, "COMMIT\n"...)); err == nil {
		return decoded[id].Rules
	}
	rules := make([]ruleset.Rule, len(lines))
	for i, found := range readRules(id, lines, func(string) bool { return false }) {
		rules[i] = found.rule
	}
	return rules
}

// JumpsInPlace reports whether EnsureJumps would have nothing to do in a built-in chain
// that holds these rules.
func JumpsInPlace(hooks []ruleset.Hook, chain ruleset.Chain) bool {
	want := rulesIn(hooks, chain.ChainID)
	have := make([]foundRule, len(chain.Rules))
	for i, rule := range chain.Rules {
		have[i].rule = asJump(want, rule)
	}
	plan := planJumps(want, have)
	return len(plan.remove)+len(plan.insert) == 0
}

// asJump makes a jump of what was kept as text because the chain was not declared.
func asJump(want []ruleset.Rule, rule ruleset.Rule) ruleset.Rule {
	if unknown, ok := rule.Action.(ruleset.UnknownAction); ok {
		if chain, isJump := strings.CutPrefix(unknown.Text, "-j "); isJump && targets(want, chain) {
			rule.Action = ruleset.Jump{Chain: chain}
		}
	}
	return rule
}

// longestLine is more than the kernel lets a rule be.
const longestLine = 1 << 20

// lines runs a program and hands over its output as it comes.
func (s *Seams) lines(ctx context.Context, read func(*bufio.Scanner) error, program string, args ...string) error {
	if s.Stream == nil {
		output, err := s.Run(ctx, nil, program, args...)
		if err != nil {
			return err
		}
		return read(newLines(bytes.NewReader(output)))
	}
	return s.Stream(ctx, func(output io.Reader) error { return read(newLines(output)) }, program, args...)
}

func newLines(output io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, longestLine)
	return lines
}

// stream runs a program to its end, and hands over its output as it comes. A failure of
// the program is a *CommandError.
func stream(ctx context.Context, read func(io.Reader) error, program string, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 30 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return newCommandError(ctx, cmd.Args, "", err)
	}
	if err := read(output); err != nil {
		cancel() // it may have more to say than anybody reads
		_ = cmd.Wait()
		return err
	}
	if err := cmd.Wait(); err != nil {
		return newCommandError(ctx, cmd.Args, stderr.String(), err)
	}
	return nil
}
