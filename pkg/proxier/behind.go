package proxier

// behind does work a few pieces at a time, behind the back of one goroutine, which starts
// it and waits for it.
type behind struct {
	limit   int
	running int
	done    chan error
}

func newBehind(limit int) *behind {
	return &behind{limit: limit, done: make(chan error, limit)}
}

// start begins a piece of work, once fewer than the limit are under way. After an error of
// an earlier one it begins nothing more: it waits for the others, and returns the error.
func (b *behind) start(work func() error) error {
	if b.running == b.limit {
		if err := b.one(); err != nil {
			_ = b.wait() // one refusal is enough to look into
			return err
		}
	}
	b.running++
	go func() { b.done <- work() }()
	return nil
}

// one waits for the next piece of work to end.
func (b *behind) one() error {
	b.running--
	return <-b.done
}

// wait waits for all that was started, and returns the first error.
func (b *behind) wait() error {
	var first error
	for b.running > 0 {
		if err := b.one(); first == nil {
			first = err
		}
	}
	return first
}
