package proxier

// behind runs a few pieces of work beside one goroutine, which starts them and waits for
// them.
type behind struct {
	limit   int
	running int
	done    chan error
}

func newBehind(limit int) *behind {
	return &behind{limit: limit, done: make(chan error, limit)}
}

// start begins a piece of work, once fewer than the limit are under way. If one that it waits
// for has failed, it begins nothing more: it waits for the others, and returns the error.
func (b *behind) start(work func() error) error {
	if b.running == b.limit {
		if err := b.next(); err != nil {
			_ = b.wait() // one refusal is enough to look into
			return err
		}
	}
	b.running++
	go func() { b.done <- work() }()
	return nil
}

// next waits for the next piece of work to end.
func (b *behind) next() error {
	b.running--
	return <-b.done
}

// wait waits for all that was started, and returns the first error.
func (b *behind) wait() error {
	var first error
	for b.running > 0 {
		if err := b.next(); first == nil {
			first = err
		}
	}
	return first
}
