package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// nftChunk is how many chains one transaction of the nft backend empties or
// deletes: its time grows with the square of them.
const nftChunk = 1000

// InUseError says that chains could not be deleted because rules of somebody else
// refer to them. They are left empty, so that packets pass through.
type InUseError struct {
	Chains []ruleset.ChainID
}

// Error implements error.
func (e *InUseError) Error() string {
	names := make([]string, len(e.Chains))
	for i, id := range e.Chains {
		names[i] = id.String()
	}
	return "left empty, since rules of somebody else refer to them: " + strings.Join(names, ", ")
}

// Cleanup removes every chain that owns says is ours and every rule of a built-in
// chain that jumps to one, and touches nothing else. It can be run again at any
// time; where nothing of ours is left it writes nothing and creates no table. The
// error wraps an *InUseError if chains had to stay.
func (r *Runner) Cleanup(ctx context.Context, owns func(ruleset.ChainID) bool) error {
	var inUse []ruleset.ChainID
	var errs []error
	for _, table := range []ruleset.Table{ruleset.NAT, ruleset.Filter, ruleset.Mangle} {
		left, err := r.cleanTable(ctx, table, owns)
		if err != nil {
			errs = append(errs, fmt.Errorf("clean the %v table %s: %w", r.family, table, err))
		}
		inUse = append(inUse, left...)
	}
	if len(inUse) > 0 {
		errs = append(errs, fmt.Errorf("clean the %v tables: %w", r.family, &InUseError{Chains: inUse}))
	}
	return errors.Join(errs...)
}

// cleanTable cleans one table, and returns our chains that had to stay.
func (r *Runner) cleanTable(ctx context.Context, table ruleset.Table, owns func(ruleset.ChainID) bool) ([]ruleset.ChainID, error) {
	all, ours, err := r.split(ctx, table, owns)
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	isOurs := func(name string) bool { return owns(ruleset.ChainID{Table: table, Name: name}) }
	for _, name := range all {
		from := ruleset.ChainID{Table: table, Name: name}
		if !from.IsBuiltin() {
			continue
		}
		if err := r.removeRules(ctx, from, isOurs, func(rule ruleset.Rule) bool { return isOurs(rule.Target()) }); err != nil {
			return nil, err
		}
	}
	chunk := len(ours) // the legacy backend swaps the whole table for any change
	if r.backend == NFT {
		chunk = nftChunk
	}
	// All are emptied before the first is deleted, since they refer to each other.
	for names := range slices.Chunk(ours, chunk) {
		if err := r.Restore(ctx, chainInput(table, ":%s - [0:0]\n", names)); err != nil {
			return nil, err
		}
	}
	for names := range slices.Chunk(ours, chunk) {
		if err := r.deleteChains(ctx, table, names); err != nil {
			return nil, err
		}
	}
	_, left, err := r.split(ctx, table, owns)
	var ids []ruleset.ChainID
	for _, name := range left {
		ids = append(ids, ruleset.ChainID{Table: table, Name: name})
	}
	return ids, err
}

// split lists the chains of a table, and those of them that are ours.
func (r *Runner) split(ctx context.Context, table ruleset.Table, owns func(ruleset.ChainID) bool) (all, ours []string, err error) {
	all, err = r.ChainNames(ctx, table)
	for _, name := range all {
		if owns(ruleset.ChainID{Table: table, Name: name}) {
			ours = append(ours, name)
		}
	}
	return all, ours, err
}

// deleteChains deletes empty chains in one transaction. One that the kernel does
// not let go is taken out of the transaction, and the rest is tried again.
func (r *Runner) deleteChains(ctx context.Context, table ruleset.Table, names []string) error {
	names = slices.Clone(names)
	for len(names) > 0 {
		err := r.Restore(ctx, chainInput(table, "-X %s\n", names))
		if err == nil {
			return nil
		}
		refused, ok := errors.AsType[*RestoreError](err)
		at := -1
		if ok {
			at = slices.Index(names, strings.TrimPrefix(refused.Text, "-X "))
		}
		if at < 0 {
			return err
		}
		names = slices.Delete(names, at, at+1)
	}
	return nil
}

// chainInput writes one line for each name as restore input.
func chainInput(table ruleset.Table, format string, names []string) []byte {
	b := fmt.Appendf(nil, "*%s\n", table)
	for _, name := range names {
		b = fmt.Appendf(b, format, name)
	}
	return append(b, "COMMIT\n"...)
}
