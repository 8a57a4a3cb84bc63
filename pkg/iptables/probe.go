package iptables

import (
	"context"
	"fmt"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// probeChain is the chain that probes declare; it never comes to exist.
const probeChain = "KUBE-PROXY-PROBE"

// Probe asks whether the programs, and the kernel as far as they ask it, know all
// that the rules use, without changing anything. One unknown match makes a whole
// restore fail, so features are probed before they are used. A *RestoreError that
// is not IsBusy means no; any other error leaves it open.
func (r *Runner) Probe(ctx context.Context, table ruleset.Table, rules ...ruleset.Rule) error {
	probe := ruleset.Transaction{Tables: []ruleset.TableChange{{
		Table: table,
		Write: []ruleset.Chain{{ChainID: ruleset.ChainID{Table: table, Name: probeChain}, Rules: rules}},
	}}}
	if err := r.restore(ctx, probe.Append(nil), "--test"); err != nil {
		return fmt.Errorf("probe the %v table %s: %w", r.family, table, err)
	}
	return nil
}
