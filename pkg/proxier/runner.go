package proxier

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// Pace says when a Runner works.
type Pace struct {
	// Pause is how long to wait after a run that took cost, so that a storm of triggers
	// is worked off in batches.
	Pause func(cost time.Duration) time.Duration
	// Retry is how long to wait after the n-th failure in a row, n from 1.
	Retry func(n int) time.Duration
	// Max is the longest time between two runs; without a trigger, too, somebody may
	// have changed what only a run looks at.
	Max time.Duration
}

// PaceByCost waits ten times as long as a run took, but at least 50 ms and at most
// 1 s: a small quiet cluster sees its changes at once, and a large busy one spends
// less than a tenth of its time on them.
func PaceByCost(cost time.Duration) time.Duration {
	return min(max(10*cost, 50*time.Millisecond), time.Second)
}

// PaceFixed waits the same time after every run.
func PaceFixed(pause time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return pause }
}

// Backoff doubles the wait with every failure, from 250 ms up to limit.
func Backoff(limit time.Duration) func(int) time.Duration {
	return func(n int) time.Duration {
		const first = 250 * time.Millisecond
		return min(first<<min(n-1, 16), limit)
	}
}

// Runner runs one piece of work whenever it was triggered, one run at a time, and
// coalesces triggers that come faster than Pace lets it work.
type Runner struct {
	work    func(context.Context) error
	pace    Pace
	trigger chan struct{}
}

// NewRunner returns a runner that does nothing before Run.
func NewRunner(work func(context.Context) error, pace Pace) *Runner {
	return &Runner{work: work, pace: pace, trigger: make(chan struct{}, 1)}
}

// Trigger asks for a run that begins after this call. It never blocks.
func (r *Runner) Trigger() {
	select {
	case r.trigger <- struct{}{}:
	default: // one is already asked for that has not begun
	}
}

// Run works until the context ends. A run that has begun is ended by its own
// handling of the context.
func (r *Runner) Run(ctx context.Context) {
	failures := 0
	wait := r.pace.Max
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.trigger:
		case <-time.After(wait):
		}
		start := time.Now()
		err := r.work(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := r.pace.Pause(time.Since(start))
		if err != nil {
			failures++
			wait = r.pace.Retry(failures)
			pause = min(pause, wait)
			klog.FromContext(ctx).Error(err, "Sync failed; the rules in the kernel stay as they were", "retryIn", wait, "failures", failures)
		} else {
			failures = 0
			wait = r.pace.Max
		}
		if !sleep(ctx, pause) {
			return
		}
		wait = max(wait-pause, 0)
	}
}

// sleep waits and reports whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
