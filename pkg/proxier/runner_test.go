package proxier

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The times in these tests are virtual, counted from the start of the test.

// workload is the work of a Runner: it takes a while, may fail, and remembers when it
// began.
type workload struct {
	start time.Time
	cost  time.Duration
	fail  func(run int) bool
	begun []time.Duration
	ended int
	// during is called while the work is being done.
	during func(run int)
}

var errWork = errors.New("the kernel said no")

func (w *workload) run(context.Context) error {
	w.begun = append(w.begun, time.Since(w.start))
	n := len(w.begun)
	if w.during != nil {
		w.during(n)
	}
	time.Sleep(w.cost)
	w.ended++
	if w.fail != nil && w.fail(n) {
		return errWork
	}
	return nil
}

// steady is a pace at which nothing but a trigger makes a run for a day.
var steady = Pace{Pause: PaceFixed(time.Second), Retry: Backoff(30 * time.Second), Max: 24 * time.Hour}

// observe runs a Runner while act lets time pass, and then ends it.
func observe(t *testing.T, w *workload, pace Pace, act func(r *Runner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(quiet(t.Context()))
		w.start = time.Now()
		r := NewRunner(w.run, pace)
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		act(r)
		synctest.Wait()
		stop()
		<-done
	})
}

// mustBegin fails the test unless runs began at the given times.
func (w *workload) mustBegin(t *testing.T, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(w.begun, want) {
		t.Errorf("runs began at %v, want %v", w.begun, want)
	}
}

const ms = time.Millisecond

func TestRunnerBeginsAtOnce(t *testing.T) {
	var w workload
	observe(t, &w, steady, func(r *Runner) {
		time.Sleep(5 * time.Second)
		r.Trigger()
		time.Sleep(time.Minute)
	})
	w.mustBegin(t, 5*time.Second)
}

func TestRunnerKeepsTriggerFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		w := workload{start: time.Now()}
		r := NewRunner(w.run, steady)
		r.Trigger()
		time.Sleep(time.Second)
		r.Run(ctx)
		w.mustBegin(t, time.Second)
	})
}

func TestRunnerCoalesces(t *testing.T) {
	t.Run("triggers in the pause", func(t *testing.T) {
		var w workload
		observe(t, &w, steady, func(r *Runner) {
			for range 100 {
				r.Trigger()
				time.Sleep(5 * ms)
			}
			time.Sleep(time.Minute)
		})
		w.mustBegin(t, 0, time.Second)
	})
	t.Run("triggers during a run make one more run", func(t *testing.T) {
		w := workload{cost: 3 * time.Second}
		observe(t, &w, steady, func(r *Runner) {
			r.Trigger()
			time.Sleep(time.Second)
			r.Trigger()
			r.Trigger()
			time.Sleep(time.Minute)
		})
		w.mustBegin(t, 0, 4*time.Second)
	})
	t.Run("a trigger at the very end of a run is not lost", func(t *testing.T) {
		var r *Runner
		w := workload{}
		w.during = func(run int) {
			if run == 1 {
				r.Trigger()
			}
		}
		observe(t, &w, steady, func(runner *Runner) {
			r = runner
			r.Trigger()
			time.Sleep(time.Minute)
		})
		w.mustBegin(t, 0, time.Second)
	})
}

// B-58: a storm is worked off in batches, at a pace that follows what a run costs.
func TestRunnerPacesByCost(t *testing.T) {
	pace := Pace{Pause: PaceByCost, Retry: Backoff(30 * time.Second), Max: 24 * time.Hour}
	tests := []struct {
		name string
		cost time.Duration
		want []time.Duration
	}{
		{"B-58 cheap", 1 * ms, []time.Duration{0, 51 * ms, 102 * ms, 153 * ms}},
		{"B-58 dear", 40 * ms, []time.Duration{0, 440 * ms, 880 * ms, 1320 * ms}},
		{"B-58 very dear", 2 * time.Second, []time.Duration{0, 3 * time.Second, 6 * time.Second, 9 * time.Second}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := workload{cost: test.cost}
			observe(t, &w, pace, func(r *Runner) {
				for range test.want[len(test.want)-1] / (ms / 2) {
					r.Trigger()
					time.Sleep(ms / 2)
				}
				time.Sleep(ms / 2)
			})
			w.mustBegin(t, test.want...)
		})
	}
}

func TestPaceByCost(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0:               50 * ms,
		5 * ms:          50 * ms,
		20 * ms:         200 * ms,
		99 * ms:         990 * ms,
		time.Minute:     time.Second,
		5 * time.Second: time.Second,
	} {
		if got := PaceByCost(cost); got != want {
			t.Errorf("PaceByCost(%v) = %v, want %v", cost, got, want)
		}
	}
}

// B-41: a failure is tried again soon, then less and less often, and never less often
// than the limit.
func TestRunnerRetries(t *testing.T) {
	w := workload{fail: func(run int) bool { return run < 6 }}
	pace := steady
	pace.Retry = Backoff(2 * time.Second)
	observe(t, &w, pace, func(r *Runner) {
		r.Trigger()
		time.Sleep(time.Minute)
	})
	w.mustBegin(t, 0, 250*ms, 750*ms, 1750*ms, 3750*ms, 5750*ms)
}

func TestRunnerForgetsFailures(t *testing.T) {
	w := workload{fail: func(run int) bool { return run <= 2 || run == 4 }}
	observe(t, &w, steady, func(r *Runner) {
		r.Trigger()
		time.Sleep(10 * time.Second)
		r.Trigger()
		time.Sleep(time.Minute)
	})
	w.mustBegin(t, 0, 250*ms, 750*ms, 10*time.Second, 10250*ms)
}

func TestRunnerTriggeredWhileFailing(t *testing.T) {
	w := workload{fail: func(run int) bool { return run <= 8 }}
	pace := steady
	pace.Pause = PaceFixed(100 * ms)
	observe(t, &w, pace, func(r *Runner) {
		r.Trigger()
		time.Sleep(20 * time.Second) // runs at 0, 250 ms, 750 ms, 1.75 s, 3.75 s, 7.75 s, 15.75 s
		r.Trigger()
		time.Sleep(time.Minute)
	})
	if got := w.begun[7]; got != 20*time.Second {
		t.Errorf("the run after a trigger began at %v, want 20s", got)
	}
}

func TestBackoff(t *testing.T) {
	backoff := Backoff(30 * time.Second)
	want := []time.Duration{250 * ms, 500 * ms, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second}
	for i, w := range want {
		if got := backoff(i + 1); got != w {
			t.Errorf("after failure %d: %v, want %v", i+1, got, w)
		}
	}
	for _, n := range []int{20, 64, 100_000} {
		if got := backoff(n); got != 30*time.Second {
			t.Errorf("after failure %d: %v, want the limit", n, got)
		}
	}
	if got := Backoff(100 * ms)(1); got != 100*ms {
		t.Errorf("limit below the first wait: %v, want the limit", got)
	}
}

func TestRunnerLooksFromTimeToTime(t *testing.T) {
	w := workload{cost: 2 * time.Second}
	pace := steady
	pace.Max = 30 * time.Second
	observe(t, &w, pace, func(*Runner) { time.Sleep(100 * time.Second) })
	w.mustBegin(t, 30*time.Second, 62*time.Second, 94*time.Second)
}

func TestRunnerEnds(t *testing.T) {
	tests := []struct {
		name       string
		trigger    bool
		after      time.Duration
		runs, ends int
	}{
		{"while waiting", false, time.Second, 0, 0},
		{"during a run, which ends first", true, time.Second, 1, 1},
		{"in the pause", true, 2500 * ms, 1, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := workload{cost: 2 * time.Second}
			observe(t, &w, steady, func(r *Runner) {
				if test.trigger {
					r.Trigger()
					synctest.Wait()
					r.Trigger() // is not followed any more
				}
				time.Sleep(test.after)
			})
			if len(w.begun) != test.runs || w.ended != test.ends {
				t.Errorf("%d runs began and %d ended, want %d and %d", len(w.begun), w.ended, test.runs, test.ends)
			}
		})
	}
}
