package conntrack

import "context"

// batchSize is how many entries are collected before they are deleted. It bounds
// what is held in memory, however many there are.
const batchSize = 1024

// batch deletes entries, many at a time.
type batch struct {
	table   Table
	entries []Entry
	deleted int
}

func (b *batch) add(ctx context.Context, e Entry) error {
	if b.entries = append(b.entries, e); len(b.entries) < batchSize {
		return nil
	}
	return b.flush(ctx)
}

// flush deletes what has been added since it was last called.
func (b *batch) flush(ctx context.Context) error {
	if len(b.entries) == 0 {
		return nil
	}
	n, err := b.table.Delete(ctx, b.entries)
	b.deleted += n
	b.entries = b.entries[:0]
	return err
}
