package render

import (
	"cmp"
	"maps"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Conflict is a frontend that several Service ports claim. The loser gets none of the
// frontend's traffic until the winner gives it up.
type Conflict struct {
	Frontend      Frontend
	Winner, Loser model.ServicePortName
}

// claim is what two units cannot both have: a frontend, where health check ports
// are a space of their own, since nothing is rewritten there.
type claim struct {
	frontend    Frontend
	healthCheck bool
}

func (e Entry) claim() claim {
	return claim{frontend: e.Frontend, healthCheck: e.Index == FilterNodePorts}
}

// Dispatcher makes the dispatch chains from the entries of all units, and follows
// their changes at the cost of what changed.
//
// Of several Services that claim one frontend the oldest has it, then the first by
// name, in all indexes alike: one that has no endpoints and is the owner refuses,
// although a younger one would have some.
type Dispatcher struct {
	claims  map[claim][]*Unit // by right; the first one has it
	shared  map[claim]bool    // those with more than one unit
	indexes [indexCount]index
	tail    []ruleset.Rule // the end of KUBE-SERVICES
}

// NewDispatcher returns a dispatcher without any unit. SetOptions must be called
// before Chains.
func NewDispatcher() *Dispatcher {
	d := &Dispatcher{claims: map[claim][]*Unit{}, shared: map[claim]bool{}}
	for i := range d.indexes {
		d.indexes[i].Index = Index(i)
	}
	return d
}

// SetOptions says what the dispatch chains are to look like. It does not change what
// is in the units.
func (d *Dispatcher) SetOptions(opts Options) {
	d.tail = opts.Lacks.uncomment(toNodePorts(opts))
	for i := range d.indexes {
		d.indexes[i].lacks = opts.Lacks
		d.indexes[i].setLimit(opts.flatDispatch())
	}
}

// Refresh makes the next call of Chains return all chains, as if each had changed.
func (d *Dispatcher) Refresh() {
	for i := range d.indexes {
		d.indexes[i].refresh()
	}
}

// Replace puts one unit in the place of another one of the same Service port.
// Either may be nil.
func (d *Dispatcher) Replace(old, current *Unit) {
	touched := map[claim]bool{}
	for _, u := range []*Unit{old, current} {
		if u != nil {
			for _, e := range u.Entries {
				touched[e.claim()] = true
			}
		}
	}
	for c := range touched {
		d.contest(c, old, current)
	}
}

// contest decides anew who has a claim.
func (d *Dispatcher) contest(c claim, old, current *Unit) {
	holders := d.claims[c]
	before := first(holders)
	holders = slices.DeleteFunc(slices.Clone(holders), func(u *Unit) bool { return u == old })
	if current != nil && slices.ContainsFunc(current.Entries, func(e Entry) bool { return e.claim() == c }) {
		at, _ := slices.BinarySearchFunc(holders, current, c.byRight)
		holders = slices.Insert(holders, at, current)
	}
	if len(holders) == 0 {
		delete(d.claims, c)
	} else {
		d.claims[c] = holders
	}
	if len(holders) > 1 {
		d.shared[c] = true
	} else {
		delete(d.shared, c)
	}
	d.enter(c, before, first(holders))
}

// enter replaces what one unit has in the indexes for a claim by what another has.
func (d *Dispatcher) enter(c claim, before, after *Unit) {
	if before != nil && after != nil && slices.EqualFunc(before.entriesOf(c), after.entriesOf(c), Entry.equal) && before.Name == after.Name {
		return
	}
	for _, e := range before.entriesOf(c) {
		d.indexes[e.Index].remove(before.Name, e.Frontend)
	}
	for seq, e := range after.entriesOf(c) {
		d.indexes[e.Index].insert(&item{key: keyOf(e.Frontend), name: after.Name, seq: seq, entry: e})
	}
}

// Chains returns the dispatch chains that may have changed since the last call,
// those jumped to before those that jump to them, and the chains that are no longer
// needed, those that jump before those jumped to.
func (d *Dispatcher) Chains() (write []ruleset.Chain, gone []ruleset.ChainID) {
	// Filter commits before nat. KUBE-SERVICES comes after KUBE-NODEPORTS, since its tail
	// jumps there and a chunk may end between the two.
	for _, i := range [...]Index{FilterServices, FilterExternal, FilterFirewall, FilterNodePorts, NATNodePorts, NATServices} {
		var tail []ruleset.Rule
		if i == NATServices {
			tail = d.tail
		}
		w, g := d.indexes[i].flush(tail)
		write, gone = append(write, w...), append(gone, g...)
	}
	return write, gone
}

// Conflicts lists the frontends that more than one Service port claims, sorted.
func (d *Dispatcher) Conflicts() []Conflict {
	var conflicts []Conflict
	for c := range d.shared {
		holders := d.claims[c]
		for _, loser := range holders[1:] {
			winner := holders[0]
			// The ports of one Service share its health check port.
			share := c.healthCheck && winner.Name.ServiceName == loser.Name.ServiceName
			if !share && !loser.isFormer(c) {
				conflicts = append(conflicts, Conflict{Frontend: c.frontend, Winner: winner.Name, Loser: loser.Name})
			}
		}
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int {
		return cmp.Or(a.Loser.Compare(b.Loser), cmp.Compare(a.Frontend.String(), b.Frontend.String()))
	})
	return slices.Compact(conflicts)
}

// first is the unit that has a claim.
func first(holders []*Unit) *Unit {
	if len(holders) == 0 {
		return nil
	}
	return holders[0]
}

// byRight orders units by their right to a claim: those that still make it first, then
// by age.
func (c claim) byRight(a, b *Unit) int {
	former := func(u *Unit) int {
		if u.isFormer(c) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(former(a), former(b)), a.Created.Compare(b.Created), a.Name.Compare(b.Name))
}

// Dispatch renders the entries of all units at once.
func Dispatch(units map[model.ServicePortName]*Unit, opts Options) ([]ruleset.Chain, []Conflict) {
	d := NewDispatcher()
	d.SetOptions(opts)
	for _, name := range slices.SortedFunc(maps.Keys(units), model.ServicePortName.Compare) {
		d.Replace(nil, units[name])
	}
	chains, _ := d.Chains()
	return chains, d.Conflicts()
}

// toNodePorts is the end of KUBE-SERVICES: what no Service address matched goes to
// the node ports if it is for this node.
func toNodePorts(opts Options) []ruleset.Rule {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	jump := ruleset.Jump{Chain: nodePortsChain}
	if opts.NodePorts.All {
		var matches []ruleset.Match
		if !opts.NodePorts.Loopback {
			matches = append(matches, ruleset.Destination{Prefix: opts.Family.Loopback(), Not: true})
		}
		matches = append(matches, ruleset.AddrType{Destination: "LOCAL"})
		return []ruleset.Rule{{Matches: matches, Comment: comment, Action: jump}}
	}
	var rules []ruleset.Rule
	for _, addr := range opts.NodePorts.Addresses {
		if addr.IsLoopback() && !opts.NodePorts.Loopback {
			continue
		}
		rules = append(rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Destination{Prefix: single(addr)}},
			Comment: comment,
			Action:  jump,
		})
	}
	return rules
}
