package canary

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// opponent undoes every repair a moment after it.
type opponent struct {
	*Pacer
	mu      sync.Mutex
	began   time.Time
	repairs []time.Duration
	fights  []Fight
	ended   bool
}

func newOpponent() *opponent {
	o := &opponent{began: time.Now()}
	o.Pacer = NewPacer(o.repaired, func(f Fight) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.fights = append(o.fights, f)
	})
	return o
}

func (o *opponent) repaired() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.repairs = append(o.repairs, time.Since(o.began))
	o.Repaired()
	if !o.ended {
		time.AfterFunc(10*time.Millisecond, func() { o.Damaged("rival (pid 7)") })
	}
}

// waits are the times between repairs, in whole seconds.
func (o *opponent) waits() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	var waits []int
	for i := 1; i < len(o.repairs); i++ {
		waits = append(waits, int((o.repairs[i] - o.repairs[i-1]).Seconds()))
	}
	return waits
}

func TestFightBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpponent()
		defer o.Stop()
		o.Damaged("rival (pid 7)")
		time.Sleep(10 * time.Minute)
		want := []int{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32} // after the first, second, … repair
		got := o.waits()
		if !slices.Equal(got[:len(want)], want) {
			t.Errorf("waited %v seconds, want %v at first", got, want)
		}
		for _, wait := range got[len(want):] {
			if wait != 60 {
				t.Errorf("waited %v seconds, want a minute each in the end", got)
				break
			}
		}
		synctest.Wait()
		if first := o.fights[0]; first != (Fight{By: "rival (pid 7)", Repairs: freeRepairs, Wait: time.Second}) {
			t.Errorf("the fight began as %+v", first)
		}
		if delayed := len(got) - (freeRepairs - 1); len(o.fights) < delayed || len(o.fights) > delayed+1 {
			t.Errorf("%d reports of %d repairs that waited", len(o.fights), delayed)
		}
		if got := o.Wait(); got != time.Minute {
			t.Errorf("waits %v now, want a minute", got)
		}
	})
}

func TestFightIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpponent()
		defer o.Stop()
		o.Damaged("rival")
		time.Sleep(10 * time.Minute)
		o.mu.Lock()
		o.ended = true
		o.mu.Unlock()
		time.Sleep(15 * time.Minute)
		if got := o.Wait(); got != 0 {
			t.Errorf("15 minutes later repairs still wait %v", got)
		}
		time.Sleep(time.Hour)
		o.mu.Lock()
		o.fights = nil
		o.mu.Unlock()
		for range freeRepairs {
			o.Damaged("a firewall's reload")
		}
		if len(o.fights) > 0 {
			t.Errorf("an hour later %d repairs are a fight: %+v", freeRepairs, o.fights)
		}
	})
}

func TestDamageIsMergedWhileRepairWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var repairs, fights atomic.Int32
		p := NewPacer(func() { repairs.Add(1) }, func(Fight) { fights.Add(1) })
		for range freeRepairs + 4 {
			p.Repaired()
		}
		for range 1000 {
			p.Damaged("a loop")
			time.Sleep(time.Millisecond)
		}
		if repairs, fights := repairs.Load(), fights.Load(); repairs != 0 || fights != 1 {
			t.Errorf("after a second %d repairs and %d reports, want none and one", repairs, fights)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if repairs, fights := repairs.Load(), fights.Load(); repairs != 1 || fights != 1 {
			t.Errorf("in the end %d repairs and %d reports, want one and one", repairs, fights)
		}
	})
}

// Edits that come before the first of them is repaired are one storm, and no fight.
func TestStormIsNoFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repairs := 0
		p := NewPacer(func() { repairs++ }, func(f Fight) { t.Errorf("a fight: %+v", f) })
		for range 1000 {
			p.Damaged("a script")
		}
		p.Repaired()
		p.Damaged("the script again")
		if repairs != 1001 {
			t.Errorf("%d repairs were asked for, want each at once", repairs)
		}
	})
}

func TestStopForgetsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var repairs atomic.Int32
		p := NewPacer(func() { repairs.Add(1) }, func(Fight) {})
		for range freeRepairs + 1 {
			p.Repaired()
		}
		p.Damaged("late")
		p.Stop()
		time.Sleep(time.Minute)
		if n := repairs.Load(); n != 0 {
			t.Errorf("%d repairs after the end", n)
		}
		p.Damaged("after the end")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := repairs.Load(); n != 1 {
			t.Errorf("%d repairs of what came later, want one", n)
		}
	})
}
