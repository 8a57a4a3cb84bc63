package canary

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// post is what an inspector sees, and a diary of when it was asked to look.
type post struct {
	mu       sync.Mutex
	began    time.Time
	verdict  Verdict
	cost     time.Duration
	unquiet  bool // the rules are always being written
	err      error
	lookErr  error // of looks alone
	glances  int
	all, few []time.Duration
}

func (p *post) Glance(context.Context) (Verdict, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.glances++
	return p.verdict, p.err
}

func (p *post) Look(_ context.Context, everything bool) (Outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Since(p.began)
	if everything {
		p.all = append(p.all, at)
	} else {
		p.few = append(p.few, at)
	}
	time.Sleep(p.cost)
	err := cmp.Or(p.err, p.lookErr)
	return Outcome{Complete: !p.unquiet && err == nil, Cost: p.cost}, err
}

// patrol runs a Patrol while during runs.
func patrol(t *testing.T, p *post, during func(*Patrol)) {
	t.Helper()
	patrolLogging(t, p, io.Discard, during)
}

// patrolLogging keeps what is logged, too.
func patrolLogging(t *testing.T, p *post, log io.Writer, during func(*Patrol)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.began = time.Now()
		walk := NewPatrol(p, time.Second, time.Minute)
		ctx, stop := context.WithCancel(logTo(t.Context(), log))
		ended := make(chan struct{})
		go func() { defer close(ended); walk.Run(ctx) }()
		synctest.Wait()
		during(walk)
		stop()
		<-ended
	})
}

func sleepFor(d time.Duration) func(*Patrol) { return func(*Patrol) { time.Sleep(d) } }

func TestPatrolLooksOnlyWhenThereMayBeSomething(t *testing.T) {
	p := &post{verdict: Unchanged}
	patrol(t, p, sleepFor(time.Hour))
	if len(p.all)+len(p.few) > 0 || p.glances < 3500 {
		t.Errorf("%d looks after %d glances that said unchanged", len(p.all)+len(p.few), p.glances)
	}
}

func TestPatrolIsBounded(t *testing.T) {
	tests := []struct {
		name     string
		verdict  Verdict
		cost     time.Duration
		all, few int // looks in an hour, about
	}{
		{"cheap looks, no reason", Unsure, time.Millisecond, 60, 0},
		{"dear looks, no reason", Unsure, 3 * time.Second, 12, 0},
		{"cheap looks, somebody always writes", Moved, time.Millisecond, 60, 3540},
		{"dear looks, somebody always writes", Moved, 3 * time.Second, 12, 188},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &post{verdict: tt.verdict, cost: tt.cost}
			patrol(t, p, sleepFor(time.Hour))
			about := func(got, want int) bool { return got >= want*9/10 && got <= want*11/10+1 }
			if !about(len(p.few), tt.few) || !about(len(p.all), tt.all) {
				t.Errorf("%d looks at everything and %d at what moved, want about %d and %d", len(p.all), len(p.few), tt.all, tt.few)
			}
		})
	}
}

// Somebody who changes the size of a table all the time must not keep the patrol from
// what the size does not tell.
func TestPatrolLooksAtEverythingAlthoughSomethingMoves(t *testing.T) {
	p := &post{verdict: Moved, cost: time.Millisecond}
	patrol(t, p, sleepFor(10*time.Minute))
	if len(p.all) < 8 {
		t.Errorf("looked at everything %d times in ten minutes", len(p.all))
	}
}

func TestDoubtIsSettledOnce(t *testing.T) {
	tests := []struct {
		name   string
		doubts int // one each 100 ms
		want   []time.Duration
	}{
		{"one", 1, []time.Duration{time.Second}},
		{"a burst", 10, []time.Duration{1900 * time.Millisecond}},
		{"a long one", 70, []time.Duration{5 * time.Second, 7900 * time.Millisecond}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &post{verdict: Unchanged, cost: 10 * time.Millisecond}
			patrol(t, p, func(walk *Patrol) {
				for range tt.doubts {
					walk.Doubt()
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(10 * time.Minute)
			})
			if !slices.Equal(p.all, tt.want) {
				t.Errorf("looked at %v, want %v", p.all, tt.want)
			}
		})
	}
}

// A doubt that could not be settled remains, and is not turned into a busy loop.
func TestDoubtRemains(t *testing.T) {
	p := &post{verdict: Unchanged, unquiet: true}
	patrol(t, p, func(walk *Patrol) {
		walk.Doubt()
		time.Sleep(time.Minute)
		p.mu.Lock()
		p.unquiet = false
		p.mu.Unlock()
		time.Sleep(time.Minute)
	})
	if len(p.all) < 55 || len(p.all) > 65 {
		t.Errorf("looked %d times, want once a second for a minute", len(p.all))
	}
}

func TestPatrolOutlivesFailures(t *testing.T) {
	p := &post{verdict: Unsure, err: errors.New("not permitted")}
	patrol(t, p, func(walk *Patrol) {
		time.Sleep(10 * time.Minute)
		p.mu.Lock()
		p.err = nil
		p.mu.Unlock()
		time.Sleep(10 * time.Minute)
	})
	if len(p.all) < 8 || len(p.all) > 12 {
		t.Errorf("looked %d times in the ten minutes in which that was possible", len(p.all))
	}
}

// A failure is in the log when it lasts, and when that is over: one now and then is not.
func TestPatrolLogsLastingFailures(t *testing.T) {
	bad := errors.New("no buffer space")
	const lasts, over = "cannot be compared", "are compared again"
	for _, tt := range []struct {
		name    string
		verdict Verdict
		// fails and then works say how long, and rounds how often.
		fails, works time.Duration
		rounds       int
		want         []string
	}{
		{"a glance that fails once an hour", Unchanged, time.Second, time.Hour, 10, nil},
		{"glances that fail for a while", Unchanged, time.Minute, time.Hour, 2, []string{lasts, over, lasts, over}},
		{"where each look is needed", Unsure, 5 * time.Minute, 5 * time.Minute, 1, []string{lasts, over}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &post{verdict: tt.verdict}
			fail := func(err error) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.err = err
			}
			var log strings.Builder
			patrolLogging(t, p, &log, func(*Patrol) {
				time.Sleep(time.Second / 2) // between two glances
				for range tt.rounds {
					fail(bad)
					time.Sleep(tt.fails)
					fail(nil)
					time.Sleep(tt.works)
				}
			})
			lines := slices.Collect(strings.Lines(log.String()))
			if !slices.EqualFunc(lines, tt.want, strings.Contains) {
				t.Errorf("got %q, want %q", lines, tt.want)
			}
		})
	}
}

// Looks that fail are said to, although the glances between them do not.
func TestPatrolLogsLooksThatFail(t *testing.T) {
	p := &post{verdict: Moved, lookErr: errors.New("no program")}
	var log strings.Builder
	patrolLogging(t, p, &log, sleepFor(time.Minute))
	if n := strings.Count(log.String(), "cannot be compared"); n != 1 {
		t.Errorf("in the log %d times, want once:\n%s", n, &log)
	}
}

// A look that was dear must not keep the patrol from the first sign of an edit after it.
func TestFirstMoveIsLookedAtSoon(t *testing.T) {
	p := &post{verdict: Unsure, cost: 20 * time.Second}
	patrol(t, p, func(walk *Patrol) {
		walk.Doubt()
		time.Sleep(30 * time.Second)
		p.mu.Lock()
		p.verdict = Moved
		p.mu.Unlock()
		time.Sleep(30 * time.Second)
	})
	if len(p.few) != 1 || p.few[0] > 32*time.Second {
		t.Errorf("looked at what moved at %v, want it within two seconds after 30", p.few)
	}
}
