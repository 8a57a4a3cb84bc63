package ruleset

import (
	"maps"
	"slices"
)

// Builder makes input for iptables-restore --noflush chain by chain, so that rules
// need not be kept as values until all of them are known.
//
// Chains are declared at the top, sorted, because iptables-legacy-restore looks each
// one up in a list: 110,000 chains took it 7.4 s so, and 10.6 s when each was declared
// before its rules.
type Builder struct {
	tables []tableText
	size   int
}

// tableText is what a Builder has for one table: the policies of chains that are declared
// at the top, rules, and the lines that come after all of them.
type tableText struct {
	Table
	declared map[string]string
	// rules begin after room for the declarations, so that 30 MB of text need not be copied
	// to put the two together.
	rules    []byte
	room     int
	removals []byte
}

// keptText is how much memory a Builder keeps for later input, in bytes. What is much
// larger is rare, and would be missed.
const keptText = 1 << 20

// declarationLength is that of a chain with a name like KUBE-SVC-TCOU7JCQXEZGVUNU.
const declarationLength = len(":KUBE-SVC-TCOU7JCQXEZGVUNU - [0:0]\n")

// NewBuilder returns an empty Builder. Tables commit in the given order.
func NewBuilder(tables ...Table) *Builder {
	b := &Builder{}
	for _, table := range tables {
		b.tables = append(b.tables, tableText{Table: table, declared: map[string]string{}})
	}
	return b
}

// Write adds a chain that is to be created or emptied, and then filled. A chain of a
// table that was not given to NewBuilder is left out.
func (b *Builder) Write(c Chain) {
	if t := b.table(c.Table); t != nil {
		t.declare(c.Name, c.Policy)
		t.rules = appendRules(t.rules, &c)
		b.size++
	}
}

// Delete adds a chain that is to be emptied, and removed after all writes: two chains that
// refer to each other could not be removed in one transaction if they were not empty.
func (b *Builder) Delete(id ChainID) {
	if t := b.table(id.Table); t != nil {
		t.declare(id.Name, "")
		t.removals = appendRemoval(t.removals, id.Name)
		b.size++
	}
}

func (b *Builder) table(name Table) *tableText {
	for i := range b.tables {
		if b.tables[i].Table == name {
			return &b.tables[i]
		}
	}
	return nil
}

// declare creates or empties a chain. One that has been written before is emptied where
// the text is now.
func (t *tableText) declare(name, policy string) {
	if _, again := t.declared[name]; again {
		t.rules = appendDeclaration(t.rules, name, policy)
		return
	}
	t.declared[name] = policy
}

// Grow makes room for a number of chains with so many bytes of rules each, if nothing
// was added to the table yet. Memory that a text outgrows step by step adds up to several
// times of what it takes in the end.
func (b *Builder) Grow(table Table, chains, bytesEach int) {
	if t := b.table(table); t != nil && len(t.declared) == 0 {
		t.room = len(table) + len("*\n") + declarationLength*chains
		t.rules = slices.Grow(t.rules[:0], t.room+bytesEach*chains)[:t.room]
	}
}

// Len is the number of chains that were added.
func (b *Builder) Len() int { return b.size }

// Take returns the input and empties the Builder. It is one input for each table in
// which something changes, in the order in which they are to commit; together, or one
// by one, they do the same. They are valid until something is added.
func (b *Builder) Take() [][]byte {
	var inputs [][]byte
	for i := range b.tables {
		t := &b.tables[i]
		if len(t.declared) > 0 {
			inputs = append(inputs, t.take())
		}
		// What was reserved for more than came is not needed any more.
		t.rules, t.removals, t.room = keep(t.rules), keep(t.removals), 0
		if len(t.declared) > keptText/declarationLength {
			t.declared = map[string]string{}
		}
		clear(t.declared)
	}
	b.size = 0
	return inputs
}

// take puts the text together.
func (t *tableText) take() []byte {
	top := appendTableStart(make([]byte, 0, t.room), t.Table)
	for _, name := range slices.Sorted(maps.Keys(t.declared)) {
		top = appendDeclaration(top, name, t.declared[name])
	}
	t.rules = append(t.rules, t.removals...)
	t.rules = append(t.rules, "COMMIT\n"...)
	if start := t.room - len(top); start >= 0 {
		copy(t.rules[start:], top)
		return t.rules[start:]
	}
	return append(top, t.rules[t.room:]...)
}

// keep returns the memory of a text for another one, unless that is too much.
func keep(text []byte) []byte {
	if cap(text) > keptText {
		return nil
	}
	return text[:0]
}
