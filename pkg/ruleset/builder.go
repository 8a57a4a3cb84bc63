package ruleset

// Builder makes input for iptables-restore --noflush chain by chain, so that rules
// need not be kept as values until all of them are known.
type Builder struct {
	tables []tableText
	size   int
}

// tableText is what a Builder has for one table: the lines in the order in which the
// input needs them.
type tableText struct {
	Table
	declarations, rules, removals []byte
}

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
		t.declarations = appendDeclaration(t.declarations, c.Name, c.Policy)
		t.rules = appendRules(t.rules, &c)
		b.size++
	}
}

// Delete adds a chain that is to be emptied, and removed after all writes.
func (b *Builder) Delete(id ChainID) {
	if t := b.table(id.Table); t != nil {
		t.declarations = appendDeclaration(t.declarations, id.Name, "")
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

// Len is the number of chains that were added.
func (b *Builder) Len() int { return b.size }

// Append appends the input. A table in which nothing changes is left out, so that
// the kernel is not asked to commit it.
func (b *Builder) Append(text []byte) []byte {
	for i := range b.tables {
		t := &b.tables[i]
		if len(t.declarations) == 0 {
			continue
		}
		text = appendTableStart(text, t.Table)
		text = append(text, t.declarations...)
		text = append(text, t.rules...)
		text = append(text, t.removals...)
		text = append(text, "COMMIT\n"...)
	}
	return text
}

// Reset empties the Builder and keeps its memory for what comes next.
func (b *Builder) Reset() {
	for i := range b.tables {
		t := &b.tables[i]
		t.declarations, t.rules, t.removals = t.declarations[:0], t.rules[:0], t.removals[:0]
	}
	b.size = 0
}
