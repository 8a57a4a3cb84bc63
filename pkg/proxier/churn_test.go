package proxier

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestChurnLeavesNothing makes and deletes 100,000 Services (10,000 with the race
// detector), no name or address twice. Then no goroutine runs that did not run before,
// and no memory is held for any of them: not by the tracker, not by the proxier, not in
// the kernel.
func TestChurnLeavesNothing(t *testing.T) {
	synctest.Test(t, testChurn) // where a minute passes at once
}

func testChurn(t *testing.T) {
	const batches = 100
	batch := 1000
	if raced {
		batch = 100 // each Service takes ten times as long
	}
	h := newHost(t)
	h.fill(10) // those that stay
	h.sync()
	churn := func(number int) {
		t.Helper()
		services := make([]*corev1.Service, batch)
		slices := make([]*discoveryv1.EndpointSlice, batch)
		for i := range batch {
			n := number*batch + i
			name := fmt.Sprintf("passing-%d", n)
			services[i] = newService(name, fmt.Sprintf("10.%d.%d.%d", 97+n/62500, n/250%250, n%250), nodePort(int32(20000+i)))
			slices[i] = newSlice(name, fmt.Sprintf("10.244.%d.%d", 2+i/250, i%250))
			h.tracker.ServiceChanged(nil, services[i])
			h.tracker.EndpointSliceChanged(nil, slices[i])
		}
		h.mustSync()
		if i := len(h.last.Snapshot.Services); i != batch+10 {
			t.Fatalf("%d Services in batch %d, want %d", i, number, batch+10)
		}
		for i := range batch {
			h.tracker.ServiceChanged(services[i], nil)
			h.tracker.EndpointSliceChanged(slices[i], nil)
		}
		h.mustSync()
		h.takeInputs()
		time.Sleep(time.Minute) // what is remembered for a time only
	}

	const first = 5 // maps keep about the size that they once had
	for number := range first {
		churn(number)
	}
	goroutines, heap := runtime.NumGoroutine(), liveHeap()
	for number := range batches {
		churn(first + number)
	}
	h.mustEqualFresh()
	if got := runtime.NumGoroutine(); got > goroutines {
		t.Errorf("%d goroutines run, want the %d from before", got, goroutines)
	}
	// As little as one name for each is more than this.
	limit := int64(32 * batch * batches)
	grown := liveHeap() - heap
	t.Logf("the heap of %d bytes has grown by %d after %d Services", heap, grown, batch*batches)
	if grown > limit {
		t.Errorf("the heap has grown by %d bytes, want at most %d", grown, limit)
	}
	runtime.KeepAlive(h)
}

// mustSync is sync without the comparison.
func (h *host) mustSync() {
	h.t.Helper()
	if err := h.proxier.Sync(h.context()); err != nil {
		h.t.Fatal(err)
	}
}

// liveHeap is how many bytes are reachable.
func liveHeap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
