package iptables

import (
	"context"
	"fmt"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// HasRule reports whether a chain exists and holds a rule. Any error leaves that
// open.
func (r *Runner) HasRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	found, err := r.seams.Chains.Exists(string(id.Table), id.Name, rule.Args()...)
	if found || err != nil {
		return found, wrapRule("look for a rule in", r, id, err)
	}
	// As for a missing chain, a second and different look must agree.
	exists, err := r.HasChain(ctx, id)
	if !exists || err != nil {
		return false, err
	}
	lines, err := r.seams.Chains.List(string(id.Table), id.Name)
	if err != nil {
		return false, wrapRule("list", r, id, err)
	}
	rules := readRules(id, lines, func(string) bool { return false })
	return slices.ContainsFunc(rules, func(f foundRule) bool { return f.rule.String() == rule.String() }), nil
}

// EnsureRule creates a chain if it does not exist, and puts a rule at its head if
// the chain does not hold it.
func (r *Runner) EnsureRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) error {
	if _, err := r.EnsureChain(ctx, id); err != nil {
		return err
	}
	found, err := r.HasRule(ctx, id, rule)
	if found || err != nil {
		return err
	}
	return wrapRule("insert a rule into", r, id, r.seams.Chains.Insert(string(id.Table), id.Name, 1, rule.Args()...))
}

func wrapRule(what string, r *Runner, id ruleset.ChainID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %v chain %v: %w", what, r.family, id, err)
}
