// Package health tells probes and load balancers whether this node's rules can be
// relied on.
//
// Health is "does the kernel hold what I last knew", per IP family. Whether the
// API server can be reached is no part of it: if it were, an API outage would make
// every node of a cluster fail its probes at once and the balancers in front of it
// would take away all backends, while the rules still do their work.
//
//   - /livez: 503 when a change has waited longer than the timeout (2 × syncPeriod)
//     to get into the kernel, in any family.
//   - /healthz: the same, and 503 while the node is going away, so that balancers
//     take it out of rotation.
//   - /readyz: 200 when every family's first full apply has succeeded and its last
//     one did.
//
// A first sync that never succeeds (upstream left this open) is 503 on /readyz from
// the start, and on /livez and /healthz once it is late: the first sync counts as
// asked for from the moment Services and EndpointSlices were listed. Before that
// nothing is late, however long the API server is away. Only the start itself has the
// same time: it waits for an API server no longer than that, so one that does not end
// hangs.
//
// How the agent uses it. main makes one State and serves Handler on port 10256 before
// anything else, says with SetFamilies that the start is over, and calls SetNode when
// the Node changes and once all lists are complete. For each family it calls Queued
// for each change and once when the lists are complete; Started when a sync takes its
// snapshot; Applied or Failed when that sync has ended. After Applied it calls
// Services.Sync with ServiceChecks of the snapshot that is now in force.
package health

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// toBeDeletedTaint is what the cluster autoscaler puts on a node before it deletes it.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// State is what is known about the freshness of the rules and about the node. Its
// methods can be called concurrently.
type State struct {
	timeout time.Duration
	mu      sync.Mutex
	// starting is when the agent's start began; zero once it is over.
	starting time.Time
	families map[model.Family]*freshness
	eligible bool
}

// freshness is the state of one family. Zero times mean never, or nothing waiting.
type freshness struct {
	// queued is when the oldest change came in that no sync has taken up, taken the
	// same for the changes of a sync that runs or failed.
	queued, taken time.Time
	// updated is when a sync last succeeded.
	updated time.Time
	// failed says that the last sync did not succeed.
	failed bool
}

// NewState returns the state of an agent that begins to start and has applied nothing
// yet. timeout is how long a change, or the start, may take before the agent counts as
// unhealthy.
func NewState(timeout time.Duration) *State {
	return &State{timeout: timeout, starting: time.Now(), families: map[model.Family]*freshness{}, eligible: true}
}

// SetFamilies says that the start is over, and which families the agent runs.
func (s *State) SetFamilies(families ...model.Family) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting = time.Time{}
	for _, fam := range families {
		s.families[fam] = &freshness{}
	}
}

// Queued says that there is something new to apply to the family.
func (s *State) Queued(fam model.Family) {
	s.update(fam, func(f *freshness) {
		if f.queued.IsZero() {
			f.queued = time.Now()
		}
	})
}

// Started says that a sync of the family has taken its snapshot: what is queued
// from now on belongs to a later one.
func (s *State) Started(fam model.Family) {
	s.update(fam, func(f *freshness) {
		f.taken, f.queued = oldest(f.taken, f.queued), time.Time{}
	})
}

// Applied says that the sync succeeded and the kernel holds its snapshot. A sync
// that had to leave out single Services, and reported them, has succeeded.
func (s *State) Applied(fam model.Family) {
	s.update(fam, func(f *freshness) {
		f.taken, f.updated, f.failed = time.Time{}, time.Now(), false
	})
}

// Failed says that the sync did not succeed. What it had taken up goes on waiting.
func (s *State) Failed(fam model.Family) {
	s.update(fam, func(f *freshness) { f.failed = true })
}

func (s *State) update(fam model.Family, change func(*freshness)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.families[fam]; ok {
		change(f)
	}
}

// SetNode says what is known of the agent's Node; nil means that there is none of
// its name. Until the first call nothing is known, and nothing is held against the
// node: at start the API server may be away.
func (s *State) SetNode(node *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eligible = isEligible(node)
}

// isEligible reports whether balancers may send new connections to the node.
func isEligible(node *v1.Node) bool {
	if node == nil || !node.DeletionTimestamp.IsZero() {
		return false
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == toBeDeletedTaint {
			return false
		}
	}
	return true
}

// Healthy reports whether the start does not hang, and no family has a change that
// waits too long. It does not look at the node.
func (s *State) Healthy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.hangs(now) {
		return false
	}
	for _, f := range s.families {
		if f.isLate(now, s.timeout) {
			return false
		}
	}
	return true
}

// hangs reports whether the start takes too long.
func (s *State) hangs(now time.Time) bool {
	return !s.starting.IsZero() && now.Sub(s.starting) >= s.timeout
}

func (f *freshness) isLate(now time.Time, timeout time.Duration) bool {
	since := oldest(f.taken, f.queued)
	return !since.IsZero() && now.Sub(since) >= timeout
}

// isReady reports whether the first sync succeeded and the last one did.
func (f *freshness) isReady() bool { return !f.updated.IsZero() && !f.failed }

// oldest is the earlier of two times of which either may be zero, for none.
func oldest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
