package proxier

import (
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// unit is what is remembered of a Service port that has rules: what leads to its
// chains, and their names. What its chains say is not kept: at 10,000 Services with 10
// endpoints that is 46 MB of text.
type unit struct {
	render.Unit // without Chains
	// chains are the names of its chains, which are all in table nat, those jumped to
	// before those that jump to them.
	chains []string
}

// remember returns what is to be remembered of a rendered unit.
func remember(rendered render.Unit) *unit {
	u := &unit{Unit: rendered, chains: make([]string, len(rendered.Chains))}
	for i, chain := range rendered.Chains {
		u.chains[i] = chain.Name
	}
	u.Chains = nil
	return u
}

// rendered is the unit for a Dispatcher, nil for none.
func (u *unit) rendered() *render.Unit {
	if u == nil {
		return nil
	}
	return &u.Unit
}

// without returns the chains of u that are not among kept, those that jump before
// those that are jumped to. Either may be nil.
func (u *unit) without(kept *unit) (gone []ruleset.ChainID) {
	if u == nil {
		return nil
	}
	var names map[string]bool
	if kept != nil {
		names = make(map[string]bool, len(kept.chains))
		for _, name := range kept.chains {
			names[name] = true
		}
	}
	for _, name := range slices.Backward(u.chains) {
		if !names[name] {
			gone = append(gone, ruleset.ChainID{Table: ruleset.NAT, Name: name})
		}
	}
	return gone
}

// units are the Service ports that have rules, and what of them has changed since a
// sync began, so that a sync that fails can be taken back at the cost of what it did.
type units struct {
	byName map[model.ServicePortName]*unit
	// before is what the sync replaced, nil for what was not there.
	before map[model.ServicePortName]*unit
	// noLocalInternal and noLocalExternal count the units that say so.
	noLocalInternal, noLocalExternal int
}

func newUnits() *units {
	return &units{byName: map[model.ServicePortName]*unit{}, before: map[model.ServicePortName]*unit{}}
}

// replace puts a unit in the place of what a Service port has, nil to take it out, and
// returns what it had.
func (us *units) replace(name model.ServicePortName, current *unit) (old *unit) {
	old = us.byName[name]
	if _, known := us.before[name]; !known {
		us.before[name] = old
	}
	us.count(old, -1)
	us.count(current, 1)
	if current == nil {
		delete(us.byName, name)
	} else {
		us.byName[name] = current
	}
	return old
}

func (us *units) count(u *unit, by int) {
	if u == nil {
		return
	}
	if u.NoLocalInternal {
		us.noLocalInternal += by
	}
	if u.NoLocalExternal {
		us.noLocalExternal += by
	}
}

// restore takes back what was replaced since settle.
func (us *units) restore() {
	for name, old := range us.before {
		us.replace(name, old)
	}
	us.settle()
}

// settle says that what there is now is what a later sync goes back to.
func (us *units) settle() { us.before = map[model.ServicePortName]*unit{} }
