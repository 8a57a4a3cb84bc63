package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ErrUnreadable says that a chain holds a rule that these programs cannot read, such
// as one that nft(8) or a newer iptables wrote. What the chain holds is not known then.
var ErrUnreadable = errors.New("it holds a rule that iptables cannot read")

// Contents is what some chains of a table hold.
type Contents struct {
	// Chains are the chains that could be read. A rule that could not be decoded is
	// carried as an UnknownAction.
	Chains ruleset.Ruleset
	// Unreadable are those that exist, and of which ErrUnreadable is true.
	Unreadable []ruleset.ChainID
}

// Contents reads the chains of a table that wanted says yes to. A table that does not
// exist has none, and is not created. The whole table is read for it, which takes as
// long as Save.
func (r *Runner) Contents(ctx context.Context, table ruleset.Table, wanted func(name string) bool) (Contents, error) {
	all, err := r.ChainNames(ctx, table)
	if err != nil {
		return Contents{}, err
	}
	isChain := make(map[string]bool, len(all))
	c := Contents{Chains: ruleset.Ruleset{}}
	for _, name := range all {
		isChain[name] = true
		if id := (ruleset.ChainID{Table: table, Name: name}); wanted(name) {
			c.Chains[id] = &ruleset.Chain{ChainID: id}
		}
	}
	if len(c.Chains) == 0 {
		return c, nil
	}
	text, err := r.Save(ctx, table)
	if err != nil && exitStatus(err) != exitUnsupported {
		return Contents{}, fmt.Errorf("read the %v table %s: %w", r.family, table, err)
	}
	if err != nil || !declares(string(text), c.Chains) {
		// iptables-nft-save ends at a rule that it cannot read, or leaves out the whole
		// table, whoever the rule belongs to.
		return r.contentsByChain(ctx, c)
	}
	for _, line := range savedRules(string(text)) {
		name, spec := cutRule(line)
		if chain := c.Chains[ruleset.ChainID{Table: table, Name: name}]; chain != nil {
			chain.Rules = append(chain.Rules, readAnyRule(chain.ChainID, spec, func(name string) bool { return isChain[name] }))
		}
	}
	return c, nil
}

// contentsByChain fills the chains of c, each on its own.
func (r *Runner) contentsByChain(ctx context.Context, c Contents) (Contents, error) {
	for id, chain := range c.Chains {
		var err error
		chain.Rules, err = r.Rules(ctx, id)
		if errors.Is(err, ErrUnreadable) {
			c.Unreadable = append(c.Unreadable, id)
			delete(c.Chains, id)
			continue
		}
		if err != nil {
			return Contents{}, err
		}
	}
	slices.SortFunc(c.Unreadable, ruleset.ChainID.Compare)
	return c, nil
}

// Rules reads one chain that exists. The error wraps ErrUnreadable if one of its rules
// cannot be read; any other error leaves open what the chain holds.
func (r *Runner) Rules(ctx context.Context, id ruleset.ChainID) ([]ruleset.Rule, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lines, err := r.seams.Chains.List(string(id.Table), id.Name)
	if status := exitStatus(err); status == exitNotFound || status == exitUnsupported {
		err = fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %v chain %v: %w", r.family, id, err)
	}
	var rules []ruleset.Rule
	for _, line := range joinLines(lines) {
		if name, spec := cutRule(line); name == id.Name {
			rules = append(rules, readAnyRule(id, spec, func(string) bool { return false }))
		}
	}
	return rules, nil
}

// declares reports whether saved text declares all of the chains.
func declares(text string, chains ruleset.Ruleset) bool {
	declared := map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			declared[name] = true
		}
	}
	for id := range chains {
		if !declared[id.Name] {
			return false
		}
	}
	return true
}

// savedRules returns the lines that begin with -A of one table as iptables-save prints
// it, those together again whose comment holds a newline.
func savedRules(text string) []string {
	start := strings.Index(text, "\n-A ")
	end := strings.LastIndex(text, "\nCOMMIT\n")
	if start < 0 || end < start {
		return nil
	}
	return joinLines(strings.Split(text[start+1:end], "\n"))
}

// cutRule splits "-A CHAIN SPEC"; of a rule that only counts there is no SPEC. Any other
// line has no name.
func cutRule(line string) (name, spec string) {
	rest, isRule := strings.CutPrefix(line, "-A ")
	if !isRule {
		return "", ""
	}
	name, spec, _ = strings.Cut(rest, " ")
	return name, spec
}

// readAnyRule is readRule, but keeps the text of a rule that cannot be decoded.
func readAnyRule(id ruleset.ChainID, spec string, isChain func(name string) bool) ruleset.Rule {
	rule := readRule(id, spec, isChain)
	if rule.Action == nil && len(rule.Matches) == 0 && rule.Comment == "" {
		rule.Action = ruleset.UnknownAction{Text: spec}
	}
	return rule
}
