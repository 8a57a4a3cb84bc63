package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/klog/v2"
)

// flushLimit is how long writing out the log may take before the agent counts as
// hanging on its log.
const flushLimit = 2 * time.Minute

var errLogBlocked = errors.New("logging blocked")

// healthz is the metrics server's own /healthz: the process is there and can log.
// The state of the rules is told on the health port.
type healthz struct {
	checks []healthCheck
}

type healthCheck struct {
	name  string
	check func() error
}

func newHealthz() healthz {
	return healthz{[]healthCheck{
		{"ping", func() error { return nil }},
		{"log", (&logCheck{flush: klog.Flush}).check},
	}}
}

// install serves /healthz and each check under its own path.
func (h healthz) install(m *listedMux) {
	m.Handle("/healthz", h)
	for _, c := range h.checks {
		m.Handle("/healthz/"+c.name, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := c.check(); err != nil {
				writeText(w, http.StatusInternalServerError, fmt.Sprintf("internal server error: %v\n", err))
				return
			}
			writeText(w, http.StatusOK, "ok")
		}))
	}
}

// ServeHTTP answers "ok", or with 500 and what each check found. The results are
// kept for /metrics/slis too.
func (h healthz) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var findings strings.Builder
	good := true
	for _, c := range h.checks {
		status := slis.Success
		if err := c.check(); err != nil {
			status, good = slis.Error, false
			fmt.Fprintf(&findings, "[-]%s failed: %v\n", c.name, err)
		} else {
			fmt.Fprintf(&findings, "[+]%s ok\n", c.name)
		}
		_ = slis.ObserveHealthcheck(r.Context(), c.name, "healthz", status) // it never fails
	}
	switch verbose := r.URL.Query().Has("verbose"); {
	case !good:
		writeText(w, http.StatusInternalServerError, findings.String()+"healthz check failed\n")
	case verbose:
		writeText(w, http.StatusOK, findings.String()+"healthz check passed\n")
	default:
		writeText(w, http.StatusOK, "ok")
	}
}

// logCheck finds a log that cannot be written to, such as a full pipe that nobody
// reads: every goroutine that logs would hang on it in the end.
type logCheck struct {
	flush   func()
	mu      sync.Mutex
	running bool
	since   time.Time
}

// check starts flushing the log unless that is still under way from an earlier
// check, and fails when it takes too long. At most one goroutine waits.
func (c *logCheck) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		if time.Since(c.since) > flushLimit {
			return errLogBlocked
		}
		return nil
	}
	c.running, c.since = true, time.Now()
	go func() {
		c.flush()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running = false
	}()
	return nil
}
