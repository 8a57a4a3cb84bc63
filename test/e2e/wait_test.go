package e2e

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"
)

// patience bounds every wait. It is not an expectation: a machine that is busy with
// other things may take most of it, and a wait that is over sooner ends sooner.
const patience = 2 * time.Minute

// pollEvery is the pause between two looks at something that is waited for.
const pollEvery = 50 * time.Millisecond

// waitUntil looks until check has nothing to complain about, and returns its last
// complaint when ctx or the patience ends first.
func waitUntil(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		var ended *endedError
		if err == nil || errors.As(err, &ended) {
			return err
		}
		if ctx.Err() != nil {
			// The check was cut short; what it said before says more.
			return cmp.Or(last, err)
		}
		last = err
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// eventually fails the test when what never comes true.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	err := waitUntil(t.Context(), func(context.Context) error { return check() })
	if err != nil {
		t.Fatalf("waited in vain for %s: %v", what, err)
	}
}
