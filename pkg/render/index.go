package render

import (
	"cmp"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// item is an entry in an index.
type item struct {
	key   key
	name  model.ServicePortName
	seq   int // place among the entries of its unit
	entry Entry
}

// index holds the entries of one dispatch chain, sorted by where packets go. Up to
// limit entries the chain is flat, as every textbook shows it; above, it is a tree.
type index struct {
	Index
	limit int
	lacks Lacks
	items []*item

	// What changed since the last flush: whether anything did, at which keys, and what
	// there was before.
	changed     bool
	touched     []key
	limitBefore int
	itemsBefore []*item
}

func compareItems(a, b *item) int {
	return cmp.Or(a.key.compare(b.key), a.name.Compare(b.name), cmp.Compare(a.seq, b.seq))
}

// insert adds an item.
func (x *index) insert(it *item) {
	x.change()
	x.touched = append(x.touched, it.key)
	at, _ := slices.BinarySearchFunc(x.items, it, compareItems)
	x.items = slices.Insert(x.items, at, it)
}

// remove takes out what a unit has at a frontend.
func (x *index) remove(name model.ServicePortName, frontend Frontend) {
	x.change()
	k := keyOf(frontend)
	x.touched = append(x.touched, k)
	from, _ := slices.BinarySearchFunc(x.items, k, func(it *item, k key) int { return it.key.compare(k) })
	to := from
	for to < len(x.items) && x.items[to].key == k {
		to++
	}
	stay := slices.DeleteFunc(slices.Clone(x.items[from:to]), func(it *item) bool {
		return it.name == name && it.entry.Frontend == frontend
	})
	x.items = slices.Replace(x.items, from, to, stay...)
}

// setLimit says up to how many entries the chain is flat.
func (x *index) setLimit(limit int) {
	x.change()
	x.limit = limit
}

// refresh makes every chain count as changed.
func (x *index) refresh() {
	x.change()
	for _, it := range slices.Concat(x.items, x.itemsBefore) {
		x.touched = append(x.touched, it.key)
	}
}

// change is called before every change.
func (x *index) change() {
	if !x.changed {
		x.changed, x.limitBefore, x.itemsBefore = true, x.limit, slices.Clone(x.items)
	}
}

// flush returns the chains that may have changed, and those that are no longer
// there, in the orders of Dispatcher.Chains. The rules of tail end the root chain.
func (x *index) flush(tail []ruleset.Rule) (write []ruleset.Chain, gone []ruleset.ChainID) {
	if !x.changed {
		return nil, nil
	}
	isFlat, wasFlat := len(x.items) <= x.limit, len(x.itemsBefore) <= x.limitBefore
	if isFlat != wasFlat {
		// The form itself changes, and every chain with it.
		x.refresh()
	}
	slices.SortFunc(x.touched, key.compare)
	root, now := x.render(x.items, isFlat)
	_, before := x.render(x.itemsBefore, wasFlat)
	names := map[string]bool{}
	for _, n := range now {
		write = append(write, n.Chain)
		names[n.Name] = true
	}
	for _, n := range slices.Backward(before) {
		if isFlat || n.ofPorts && !names[n.Name] || !n.ofPorts && !has(x.items, n) {
			gone = append(gone, n.ChainID)
		}
	}
	x.changed, x.touched, x.itemsBefore = false, nil, nil
	root.Rules = append(root.Rules, tail...)
	return append(write, root), gone
}

// render returns the dispatch chain and what is below it, those jumped to first. Of
// a tree that is only the chains on the way to touched keys and next to that way;
// the others cannot have changed.
func (x *index) render(items []*item, isFlat bool) (root ruleset.Chain, below []node) {
	root.ChainID = x.chain()
	if isFlat {
		root.Rules = flat(items)
		return root, nil
	}
	t := tree{index: x.Index, table: root.Table, touched: x.touched, lacks: x.lacks}
	for group := range bySpace(items) {
		root.Rules = append(root.Rules, t.lead(group, true)...)
	}
	return root, t.chains
}

// flat are the rules of all items, those of one Service together.
func flat(items []*item) []ruleset.Rule {
	ordered := slices.SortedFunc(slices.Values(items), func(a, b *item) int {
		return cmp.Or(a.name.Compare(b.name), cmp.Compare(a.seq, b.seq), a.key.compare(b.key))
	})
	var rules []ruleset.Rule
	for _, it := range ordered {
		rules = append(rules, it.entry.Rules...)
	}
	return rules
}
