package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Feature is a match, a target, or an option of one, that the kernel or the programs
// may lack.
type Feature struct {
	// Name is how the feature is called; names differ.
	Name string
	// Table and Rules are rules that use it as it is going to be used.
	Table ruleset.Table
	Rules []ruleset.Rule
}

// probeChain is where features are tried: nothing leads there. It exists for the
// moment of a probe; one that was killed in that moment leaves it to the next one.
const probeChain = "KUBE-PROXY-PROBE"

// probeTables are the tables in which features can be tried.
var probeTables = []ruleset.Table{ruleset.Mangle, ruleset.Filter, ruleset.NAT}

// IsProbe reports whether a chain is a rest of a probe that was killed.
func IsProbe(id ruleset.ChainID) bool { return id.Name == probeChain }

// Probe finds out which features are missing, and why. One unknown match makes a
// whole restore fail, so features are probed before they are used. With an error it
// could not look, and every feature is left open.
//
// The rules are really written, to a chain that nothing leads to, and removed at
// once: "--test" never gets to the kernel on the nft backend, and on neither does it
// find out that a match of revision 0 is missing there. If nothing is missing it is
// one run of a program.
func (r *Runner) Probe(ctx context.Context, features []Feature) (missing map[string]error, err error) {
	err = r.try(ctx, features)
	if err == nil || !IsRefused(err) {
		return nil, err
	}
	// A table that takes no rule at all says nothing about features.
	if err := r.try(ctx, bare(features)); err != nil {
		return nil, err
	}
	refused, err := Narrow(features, func(part []Feature) error { return r.try(ctx, part) })
	if err != nil {
		return nil, err
	}
	missing = map[string]error{}
	for _, culprit := range refused {
		missing[culprit.Item.Name] = culprit.Err
	}
	return missing, nil
}

// try writes the rules of features, and removes them again.
func (r *Runner) try(ctx context.Context, features []Feature) error {
	rules := map[ruleset.Table][]ruleset.Rule{}
	for _, f := range features {
		rules[f.Table] = append(rules[f.Table], f.Rules...)
	}
	write, remove := ruleset.NewBuilder(probeTables...), ruleset.NewBuilder(probeTables...)
	for table, rules := range rules {
		id := ruleset.ChainID{Table: table, Name: probeChain}
		write.Write(ruleset.Chain{ChainID: id, Rules: rules})
		remove.Delete(id)
	}
	removal := bytes.Join(remove.Take(), nil)
	err := r.Restore(ctx, append(bytes.Join(write.Take(), nil), removal...))
	if err == nil {
		return nil
	}
	if IsRefused(err) {
		// Tables before the refused one were written.
		err = errors.Join(err, r.Restore(ctx, removal))
	}
	return fmt.Errorf("probe the %v tables: %w", r.family, err)
}

// bare returns the features without their rules, so that only their tables are left.
func bare(features []Feature) []Feature {
	var tables []Feature
	for _, f := range features {
		tables = append(tables, Feature{Table: f.Table})
	}
	return tables
}
