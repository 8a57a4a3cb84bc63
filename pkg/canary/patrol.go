package canary

import (
	"context"
	"sync"
	"time"
)

// Verdict is what a glance at the tables tells.
type Verdict int

const (
	// Unchanged says that nothing can have changed since the last look.
	Unchanged Verdict = iota
	// Unsure says that a glance cannot tell.
	Unsure
	// Moved says that somebody else has changed something.
	Moved
)

// Inspector compares what the kernel holds with what was written to it.
type Inspector interface {
	// Glance tells at next to no cost whether a look is worth its own.
	Glance(ctx context.Context) (Verdict, error)
	// Look looks at everything, or only at what the last glance said has moved, and sees
	// to the repair of what it finds.
	Look(ctx context.Context, everything bool) (Outcome, error)
}

// Outcome is what came of a look.
type Outcome struct {
	// Complete says that it got to the end, which it does not if the rules were being
	// written meanwhile.
	Complete bool
	// Cost is how long it worked, without what it waited.
	Cost time.Duration
}

// When a Patrol looks.
const (
	// settle is how long no notice must have been missed before it looks, and
	// mostSettling how long it waits for that: who misses one will miss the next.
	settle       = time.Second
	mostSettling = 5 * time.Second
	// A look takes at most one part in dueShare of the time if there is no reason for
	// it, and looks for the same kind of reason one in reasonShare.
	dueShare    = 100
	reasonShare = 5
)

// Patrol looks from time to time whether the kernel still holds what was written, and
// soon when there is a reason to. It sees what no notice tells of and no canary dies of.
type Patrol struct {
	inspector      Inspector
	glance, period time.Duration
	wake           chan struct{}

	mu sync.Mutex
	// firstDoubt and lastDoubt are when there was reason to look at everything, since
	// the last look that began.
	firstDoubt, lastDoubt time.Time

	// lookedAt is when the last look ended, and cost how long it worked. everythingAt is when
	// the last one at everything did that got to its end.
	lookedAt, everythingAt time.Time
	cost                   time.Duration
	// doubtFrom and movedFrom are when the next look for such a reason may begin: the
	// first one is not to wait.
	doubtFrom, movedFrom time.Time
	// failures are the glances and looks that failed since one told how things are.
	failures streak
}

// NewPatrol returns a Patrol that glances at the tables at intervals of glance, and
// looks at everything about once in a period, unless the glances say that there is
// nothing to see.
func NewPatrol(inspector Inspector, glance, period time.Duration) *Patrol {
	return &Patrol{
		inspector: inspector,
		glance:    glance,
		period:    period,
		wake:      make(chan struct{}, 1),
		failures: streak{
			lasts: "The rules in the kernel cannot be compared with what was written",
			ends:  "The rules in the kernel are compared again with what was written",
			once:  "The rules in the kernel could not be looked at this time",
		},
	}
}

// Doubt asks for a look at everything, because notices were missed or everything was
// written anew. It never blocks.
func (p *Patrol) Doubt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastDoubt = time.Now()
	if p.firstDoubt.IsZero() {
		p.firstDoubt = p.lastDoubt
	}
	select {
	case p.wake <- struct{}{}:
	default: // it is about to see
	}
}

// Run patrols until the context ends.
func (p *Patrol) Run(ctx context.Context) {
	p.lookedAt, p.everythingAt = time.Now(), time.Now()
	next := time.Now().Add(p.glance)
	for {
		at := next
		if doubt, ok := p.doubtDue(); ok && doubt.Before(next) {
			at = doubt
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			continue
		case <-time.After(time.Until(at)):
		}
		p.walk(ctx)
		next = time.Now().Add(p.glance)
	}
}

// doubtDue returns when to look because of a doubt, and whether there is one.
func (p *Patrol) doubtDue() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstDoubt.IsZero() {
		return time.Time{}, false
	}
	due := p.lastDoubt.Add(settle)
	if most := p.firstDoubt.Add(mostSettling); most.Before(due) {
		due = most
	}
	if p.doubtFrom.After(due) {
		due = p.doubtFrom
	}
	return due, true
}

// walk looks if it is time for it.
func (p *Patrol) walk(ctx context.Context) {
	if due, ok := p.doubtDue(); ok {
		if !time.Now().Before(due) {
			p.look(ctx, true)
		}
		return
	}
	verdict, err := p.inspector.Glance(ctx)
	if err != nil {
		p.failures.log(ctx, err)
		return
	}
	due := p.everythingAt.Add(max(p.period, dueShare*p.cost))
	again := p.lookedAt.Add(reasonShare * p.cost) // if the last one failed
	switch now := time.Now(); {
	case verdict == Unchanged:
		// Any other glance only leads to a look, which may fail again and again.
		p.failures.log(ctx, nil)
	case !now.Before(due) && !now.Before(again):
		p.look(ctx, true)
	case verdict == Moved && !now.Before(p.movedFrom):
		p.look(ctx, false)
		p.movedFrom = p.lookedAt.Add(reasonShare * p.cost)
	}
}

func (p *Patrol) look(ctx context.Context, everything bool) {
	doubted := everything && p.takeDoubt()
	outcome, err := p.inspector.Look(ctx, everything)
	p.lookedAt, p.cost = time.Now(), outcome.Cost
	if everything && outcome.Complete {
		p.everythingAt = p.lookedAt
	}
	if err != nil || outcome.Complete {
		p.failures.log(ctx, err)
	}
	if doubted {
		p.doubtFrom = p.lookedAt.Add(reasonShare * p.cost)
	}
	if doubted && !outcome.Complete {
		p.Doubt()
	}
}

// takeDoubt ends the doubt, and reports whether there was one. What comes after it is a
// reason for another look.
func (p *Patrol) takeDoubt() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	doubted := !p.firstDoubt.IsZero()
	p.firstDoubt, p.lastDoubt = time.Time{}, time.Time{}
	return doubted
}
