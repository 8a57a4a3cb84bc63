package proxier

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBehind: no more than the limit at a time, and after an error nothing goes on.
func TestBehind(t *testing.T) {
	bad := errors.New("refused")
	for _, tt := range []struct {
		name string
		// failing is the piece of work that fails, of ten.
		failing int
		want    error
	}{
		{"all is well", -1, nil},
		{"the first fails", 0, bad},
		{"one in the middle fails", 5, bad},
		{"the last fails", 9, bad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 3
				var mu sync.Mutex
				var running, began, most int
				count := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					running += n
					began += max(n, 0)
					most = max(most, running)
				}
				b := newBehind(limit)
				var err error
				for i := 0; i < 10 && err == nil; i++ {
					err = b.start(func() error {
						count(1)
						defer count(-1)
						time.Sleep(time.Duration(1+i%3) * time.Second)
						if i == tt.failing {
							return bad
						}
						return nil
					})
					if err != nil && running != 0 {
						t.Errorf("the error came while %d more were under way", running)
					}
				}
				if err == nil {
					err = b.wait()
				}
				if !errors.Is(err, tt.want) {
					t.Errorf("got error %v, want %v", err, tt.want)
				}
				if running != 0 || most != limit {
					t.Errorf("%d at a time at most and %d at the end, want %d and none", most, running, limit)
				}
				if tt.failing >= 0 && began > tt.failing+2*limit {
					t.Errorf("%d began, though number %d failed", began, tt.failing)
				}
			})
		})
	}
}
