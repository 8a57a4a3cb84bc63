package proxier

// Kind is in one word what became of a chain.
type Kind string

// What can become of a chain.
const (
	Deleted   Kind = "deleted"   // the chain is, or was, gone
	Flushed   Kind = "flushed"   // the chain has lost all of its rules
	Removed   Kind = "removed"   // it has lost some of them
	Inserted  Kind = "inserted"  // it has rules that are not ours
	Replaced  Kind = "replaced"  // as many rules as before, not the same ones
	Reordered Kind = "reordered" // the same rules as before, in another order
	Changed   Kind = "changed"   // several of these, or it is not known which
)

// Edit is what somebody did to a chain, as far as it is known.
type Edit struct {
	// Gone says that the chain was deleted; it may have been made again.
	Gone bool
	// Added and Removed count rules. A rule that is replaced is one of each.
	Added, Removed int
	// Balance is zero if the rules that were added say what those say that were removed:
	// the sum of some hash of the ones less that of the others.
	Balance uint64
}

// and returns what two edits come to.
func (e Edit) and(later Edit) Edit {
	return Edit{
		Gone:    e.Gone || later.Gone,
		Added:   e.Added + later.Added,
		Removed: e.Removed + later.Removed,
		Balance: e.Balance + later.Balance,
	}
}

// kind says it in a word, of a chain that had so many rules.
func (e Edit) kind(rules int) Kind {
	switch {
	case e.Gone:
		return Deleted
	case e.Added == 0 && e.Removed == 0:
		return Changed
	case e.Added == 0 && e.Removed >= rules:
		return Flushed
	case e.Added == 0:
		return Removed
	case e.Removed == 0:
		return Inserted
	case e.Added != e.Removed:
		return Changed
	case e.Balance == 0:
		return Reordered
	}
	return Replaced
}

// editOf returns the edit that made so many rules of what was written: nothing is known
// of the rules but their number.
func editOf(before, now int) Edit {
	switch {
	case now > before:
		return Edit{Added: now - before}
	case now < before:
		return Edit{Removed: before - now}
	}
	return Edit{Added: now, Removed: now, Balance: 1}
}
