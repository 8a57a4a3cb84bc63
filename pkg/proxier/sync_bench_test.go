package proxier

import "testing"

// TestSyncAllocations pins that a change costs the same however many Services there
// are that did not change. The time that it takes is for BenchmarkOneServiceChanges.
func TestSyncAllocations(t *testing.T) {
	cost := func(services int) float64 {
		ctx := quiet(t.Context())
		cluster, p, kernel := largeCluster(services)
		if err := p.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		i := 0
		return testing.AllocsPerRun(20, func() {
			i++
			before := kernel.restores
			cluster.EndpointSliceChanged(nil, benchSlice("s7", 70+i%2, 10))
			if err := p.Sync(ctx); err != nil {
				t.Error(err)
			}
			if got := kernel.restores - before; got != 1 {
				t.Errorf("%d restores for a change, want 1", got)
			}
		})
	}
	few, many := cost(10), cost(1000)
	t.Logf("a change among 10 Services: %.0f allocations, among 1,000: %.0f", few, many)
	if few > 500 || many > 500 {
		t.Errorf("got %.0f and %.0f allocations, want at most 500", few, many)
	}
}
