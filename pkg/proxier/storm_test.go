package proxier

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRollingUpdate replaces all pods of 500 Services within half a minute, 3,000
// events in all, on a kernel that takes its time. Each event is in the kernel at the
// end of the sync that begins after it, the syncs keep to their pace and write several
// Services in one transaction, and nothing is lost.
func TestRollingUpdate(t *testing.T) {
	const (
		pods  = 3
		every = 10 * time.Millisecond // between two events
		took  = 45 * time.Millisecond // one transaction
	)
	services := 500
	if raced {
		services = 50
	}
	lasts := time.Duration(2*services*pods) * every // all events
	tests := []struct {
		name  string
		pause func(time.Duration) time.Duration
		// least is the least time between the end of a sync and the beginning of the next.
		least time.Duration
	}{
		{"pace by cost", PaceByCost, 10 * took},
		{"minSyncPeriod 1s", PaceFixed(time.Second), time.Second},
		{"minSyncPeriod 5s", PaceFixed(5 * time.Second), 5 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				for i := range services {
					name := fmt.Sprintf("s%d", i)
					h.tracker.ServiceChanged(nil, newService(name, fmt.Sprintf("10.96.%d.%d", i/250, i%250)))
					h.tracker.EndpointSliceChanged(nil, newSlice(name, podsOf(i, 0, pods)...))
				}
				h.sync()
				h.takeInputs()
				h.afterRestore = func() { time.Sleep(took) }

				var syncs int
				var ended time.Time
				var newest atomic.Value // an address that the last event brought
				newest.Store("")
				work := func(ctx context.Context) error {
					if pause := time.Since(ended); syncs > 0 && pause < test.least {
						t.Errorf("sync %d began %v after the end of the one before, want at least %v", syncs, pause, test.least)
					}
					syncs++
					want := newest.Load().(string)
					err := h.proxier.Sync(ctx)
					if want != "" && !h.holds("--to-destination "+want+":") {
						t.Errorf("sync %d did not bring %s, which came before it", syncs, want)
					}
					ended = time.Now()
					return err
				}
				runner := NewRunner(work, Pace{Pause: test.pause, Retry: Backoff(time.Minute), Max: time.Hour})
				ctx, stop := context.WithCancel(h.context())
				go runner.Run(ctx)

				for step := range 2 * pods {
					for i := range services {
						// A pod more, then one of the old ones less.
						all := append(podsOf(i, 0, pods)[(step+1)/2:], podsOf(i, 1, step/2+1)...)
						h.tracker.EndpointSliceChanged(nil, newSlice(fmt.Sprintf("s%d", i), all...))
						newest.Store(all[len(all)-1])
						runner.Trigger()
						time.Sleep(every)
					}
				}
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()

				h.mustEqualFresh()
				restores := len(h.takeInputs())
				t.Logf("%d events in %d syncs with %d transactions", 2*services*pods, syncs, restores)
				if most := 2 + int(lasts/(test.least+took)); syncs > most {
					t.Errorf("%d syncs, want at most %d", syncs, most)
				}
				// More transactions than syncs are for the chunks of one that has more than 1,200
				// chains to write.
				if most := syncs + 2*services*pods*2/ChunkNFT + 1; restores > most {
					t.Errorf("%d transactions for %d syncs, want at most %d", restores, syncs, most)
				}
			})
		})
	}
}

// podsOf are the addresses of the first n pods of a Service's generation.
func podsOf(service, generation, n int) []string {
	var addresses []string
	for pod := range n {
		id := (service*2+generation)*8 + pod
		addresses = append(addresses, fmt.Sprintf("10.245.%d.%d", id>>8, id&0xff))
	}
	return addresses
}
