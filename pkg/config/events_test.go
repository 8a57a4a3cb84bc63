package config

import (
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// recorder is an Events that writes down what it is told: "+service ns1/s" for an
// addition, "~" for a change, "-" for a deletion, "synced".
type recorder struct {
	t     *testing.T
	mu    sync.Mutex
	calls []string
	// services is the newest state of each Service that is there.
	services map[string]*v1.Service
	told     chan struct{}
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, services: make(map[string]*v1.Service), told: make(chan struct{}, 1)}
}

// ServiceChanged also holds that the old object of a change is always the one that was
// new before: receivers may keep it and compare. With a deletion comes the last state,
// of which nobody may have been told.
func (r *recorder) ServiceChanged(old, new *v1.Service) {
	r.mu.Lock()
	if old != nil && new != nil && old != r.services[keyOf(old)] {
		r.t.Errorf("the old state of Service %s is not the one delivered before", keyOf(old))
	}
	if new == nil {
		delete(r.services, keyOf(old))
	} else {
		r.services[keyOf(new)] = new
	}
	r.mu.Unlock()
	record(r, "service", old, new)
}

func (r *recorder) EndpointSliceChanged(old, new *discoveryv1.EndpointSlice) {
	record(r, "slice", old, new)
}
func (r *recorder) NodeChanged(old, new *v1.Node) { record(r, "node", old, new) }
func (r *recorder) Synced()                       { r.add("synced") }

func record[T any, P interface {
	*T
	object
}](r *recorder, kind string, old, new P) {
	switch {
	case old == nil:
		r.add("+" + kind + " " + keyOf(new))
	case new == nil:
		r.add("-" + kind + " " + keyOf(old))
	default:
		r.add("~" + kind + " " + keyOf(new))
	}
}

func (r *recorder) add(call string) {
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.mu.Unlock()
	select {
	case r.told <- struct{}{}:
	default:
	}
}

// take returns the calls so far and forgets them.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// service returns the newest state of a Service.
func (r *recorder) service(key string) *v1.Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services[key]
}

// await returns the calls up to and with the one that completes want, in order.
// It fails the test if a call of want does not come.
func (r *recorder) await(want ...string) []string {
	r.t.Helper()
	giveUp := time.After(30 * time.Second)
	for {
		r.mu.Lock()
		calls := slices.Clone(r.calls)
		r.mu.Unlock()
		if !slices.ContainsFunc(want, func(call string) bool { return !slices.Contains(calls, call) }) {
			return r.take()
		}
		select {
		case <-r.told:
		case <-giveUp:
			r.t.Fatalf("events never came\n got: %q\nwant: %q", calls, want)
		}
	}
}
