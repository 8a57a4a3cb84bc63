package iptables

import (
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
	missing = map[string]error{}
	if err := r.narrow(ctx, features, err, missing); err != nil {
		return nil, err
	}
	return missing, nil
}

// narrow halves features that are refused with an error until single ones are left,
// and believes of none that it is missing before it has been refused twice.
func (r *Runner) narrow(ctx context.Context, features []Feature, refused error, missing map[string]error) error {
	if len(features) > 1 {
		half := len(features) / 2
		for _, part := range [][]Feature{features[:half], features[half:]} {
			if refused = r.try(ctx, part); refused == nil {
				continue
			}
			if !IsRefused(refused) {
				return refused
			}
			if err := r.narrow(ctx, part, refused, missing); err != nil {
				return err
			}
		}
		return nil
	}
	switch err := r.try(ctx, features); {
	case err == nil:
		return nil
	case !IsRefused(err):
		return err
	}
	missing[features[0].Name] = refused
	return nil
}

// try writes the rules of features, and removes them again.
func (r *Runner) try(ctx context.Context, features []Feature) error {
	rules := map[ruleset.Table][]ruleset.Rule{}
	for _, f := range features {
		rules[f.Table] = append(rules[f.Table], f.Rules...)
	}
	var write, remove ruleset.Transaction
	for _, table := range []ruleset.Table{ruleset.Mangle, ruleset.Filter, ruleset.NAT} {
		if rules, used := rules[table]; used {
			chain := ruleset.Chain{ChainID: ruleset.ChainID{Table: table, Name: probeChain}, Rules: rules}
			write.Tables = append(write.Tables, ruleset.TableChange{Table: table, Write: []ruleset.Chain{chain}})
			remove.Tables = append(remove.Tables, ruleset.TableChange{Table: table, Delete: []string{probeChain}})
		}
	}
	err := r.Restore(ctx, remove.Append(write.Append(nil)))
	if err == nil {
		return nil
	}
	if IsRefused(err) {
		// Tables before the refused one were written.
		err = errors.Join(err, r.Restore(ctx, remove.Append(nil)))
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
