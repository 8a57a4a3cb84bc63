package canary

import (
	"math"
	"sync"
	"time"
)

// How repairs that are undone again and again are put off. The first ones are free: the
// reload of a firewall, or a person at a terminal, damages rules several times and then
// is done. From then on each one waits twice as long as the one before it. Who waits a
// minute costs nothing that counts, and is still there when the other one gives up.
const (
	freeRepairs = 10
	firstWait   = time.Second
	longestWait = time.Minute
	// mostRepairs is where the wait no longer grows: the sixth time that it is doubled makes
	// it longer than the longest.
	mostRepairs = freeRepairs + 6
	// forgetAfter is how long it takes for one repair to be forgotten. It is longer than
	// longestWait, so that a fight that goes on never comes down from it.
	forgetAfter = 2 * time.Minute
)

// Fight says that somebody undoes repairs again and again.
type Fight struct {
	// By is who did it last, empty if that is not known.
	By string
	// Repairs counts what was repaired since the fight began.
	Repairs int
	// Wait is how long the next repair is put off.
	Wait time.Duration
}

// Pacer decides when damage is repaired: at once, unless repairs are undone again and
// again. Its methods may be called by anybody, at any time.
type Pacer struct {
	repair  func()
	onFight func(Fight)

	mu sync.Mutex
	// level counts repairs, and falls by one in each forgetAfter; it was right at the
	// time at.
	level   float64
	at      time.Time
	repairs int
	// timer is what a repair waits for, nil if none does.
	timer *time.Timer
}

// NewPacer returns a Pacer that calls repair when it is time for that, and onFight each
// time it puts a repair off. Both are called from the goroutine that damage was reported
// in or from one of their own, and must not block.
func NewPacer(repair func(), onFight func(Fight)) *Pacer {
	return &Pacer{repair: repair, onFight: onFight}
}

// Damaged says that there is something to repair. All that is reported while a repair
// is put off becomes one.
func (p *Pacer) Damaged(by string) {
	p.mu.Lock()
	wait := p.wait()
	pending := p.timer != nil
	if wait > 0 && !pending {
		p.timer = time.AfterFunc(wait, p.fire)
	}
	fight := Fight{By: by, Repairs: p.repairs, Wait: wait}
	p.mu.Unlock()
	switch {
	case pending:
	case wait > 0:
		p.onFight(fight)
	default:
		p.repair()
	}
}

func (p *Pacer) fire() {
	p.mu.Lock()
	p.timer = nil
	p.mu.Unlock()
	p.repair()
}

// Repaired says that damage was found and repaired.
func (p *Pacer) Repaired() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decay()
	if p.level == 0 {
		p.repairs = 0
	}
	p.level = min(p.level+1, mostRepairs)
	p.repairs++
}

// Wait is how long a repair would be put off now, 0 in peace.
func (p *Pacer) Wait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wait()
}

// Stop forgets a repair that was put off.
func (p *Pacer) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// wait doubles with each repair that was not free.
func (p *Pacer) wait() time.Duration {
	p.decay()
	n := int(math.Ceil(p.level)) - freeRepairs // each counts until it is quite forgotten
	if n < 0 {
		return 0
	}
	return min(firstWait<<n, longestWait)
}

// decay brings the level to now.
func (p *Pacer) decay() {
	now := time.Now()
	if !p.at.IsZero() {
		p.level = max(p.level-now.Sub(p.at).Seconds()/forgetAfter.Seconds(), 0)
	}
	p.at = now
}
