package ruleset

import "slices"

// Builder makes input for iptables-restore --noflush chain by chain, so that rules
// need not be kept as values until all of them are known.
//
// Each chain is declared right before its rules, not at the top as iptables-save has
// it: the text grows at its end only and need not be put together, which matters when
// it is 50 MB. So a chain must be added after those that it jumps to, unless the kernel
// has these already.
type Builder struct {
	tables []tableText
	size   int
}

// tableText is what a Builder has for one table: chains with their rules, and the lines
// that come after all of them.
type tableText struct {
	Table
	chains, removals []byte
}

// keptText is how much memory a Builder keeps for later input, in bytes. What is much
// larger is rare, and would be missed.
const keptText = 1 << 20

// NewBuilder returns an empty Builder. Tables commit in the given order.
func NewBuilder(tables ...Table) *Builder {
	b := &Builder{}
	for _, table := range tables {
		b.tables = append(b.tables, tableText{Table: table})
	}
	return b
}

// Write adds a chain that is to be created or emptied, and then filled. A chain of a
// table that was not given to NewBuilder is left out.
func (b *Builder) Write(c Chain) {
	if t := b.table(c.Table); t != nil {
		t.declare(c.Name, c.Policy)
		t.chains = appendRules(t.chains, &c)
		b.size++
	}
}

// Delete adds a chain that is to be emptied, and removed after all writes.
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

func (t *tableText) declare(name, policy string) {
	if len(t.chains) == 0 {
		t.chains = appendTableStart(t.chains, t.Table)
	}
	t.chains = appendDeclaration(t.chains, name, policy)
}

// Grow makes room for so many bytes of text for a table. Memory that a text outgrows
// step by step adds up to several times of what it takes in the end.
func (b *Builder) Grow(table Table, n int) {
	if t := b.table(table); t != nil {
		t.chains = slices.Grow(t.chains, n)
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
		if len(t.chains) == 0 {
			continue
		}
		text := append(t.chains, t.removals...)
		text = append(text, "COMMIT\n"...)
		inputs = append(inputs, text)
		t.chains, t.removals = keep(text), keep(t.removals)
	}
	b.size = 0
	return inputs
}

// keep returns the memory of a text for another one, unless that is too much.
func keep(text []byte) []byte {
	if cap(text) > keptText {
		return nil
	}
	return text[:0]
}
