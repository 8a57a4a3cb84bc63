package render

import (
	"maps"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Snapshot renders everything that one family of a cluster needs on the node: what
// a kernel without any rule of ours would have to be given. Hooks and canary chains
// are not part of it.
func Snapshot(snapshot model.Snapshot, opts Options) ([]ruleset.Chain, []Conflict) {
	opts = opts.For(snapshot)
	units := make(map[model.ServicePortName]*Unit, len(snapshot.Services))
	var chains []ruleset.Chain
	for _, name := range slices.SortedFunc(maps.Keys(snapshot.Services), model.ServicePortName.Compare) {
		unit := ServicePort(snapshot.Services[name], snapshot.Endpoints[name], opts)
		units[name] = &unit
		chains = append(chains, unit.Chains...)
	}
	dispatch, conflicts := Dispatch(units, opts)
	chains = append(chains, Fixed(opts)...)
	return append(chains, dispatch...), conflicts
}
