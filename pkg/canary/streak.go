package canary

import (
	"context"

	"k8s.io/klog/v2"
)

// lastingFailures is how many failures in a row it takes for the log to say so.
const lastingFailures = 3

// streak counts failures in a row. It is in the log once when it lasts, and once when a
// lasting one is over: that the lock is held for a moment is nobody's concern.
type streak struct {
	// lasts and ends are what the log says then, and once what it says of any other failure.
	lasts, ends, once string
	failures          int
}

// log takes one attempt into account, a failure if there is an error. What fails because
// the program ends does not count.
func (s *streak) log(ctx context.Context, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.failures++
		if s.failures == lastingFailures {
			logger.Error(err, s.lasts, "attempts", s.failures)
		} else {
			logger.V(4).Info(s.once, "err", err)
		}
	default:
		if s.failures >= lastingFailures {
			logger.Info(s.ends)
		}
		s.failures = 0
	}
}
