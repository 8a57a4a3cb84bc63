package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

const (
	syncPeriod = 30 * time.Second
	timeout    = 2 * syncPeriod
)

// newState is the state of an agent that has just started.
func newState(families ...model.Family) *State {
	s := NewState(timeout)
	s.SetFamilies(families...)
	return s
}

// counts remembers how often each answer was given.
type counts struct{ healthz, livez map[int]int }

func newCounts() counts { return counts{healthz: map[int]int{}, livez: map[int]int{}} }

func (c counts) Healthz(code int) { c.healthz[code]++ }
func (c counts) Livez(code int)   { c.livez[code]++ }

// ask returns the status and the decoded body of one probe.
func ask(t *testing.T, s *State, path string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler(newCounts()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s answered %q: %v", path, w.Body, err)
	}
	return w.Code, body
}

// codes are the three answers at one moment.
type codes struct{ healthz, livez, readyz int }

func probe(t *testing.T, s *State) codes {
	t.Helper()
	var c codes
	c.healthz, _ = ask(t, s, "/healthz")
	c.livez, _ = ask(t, s, "/livez")
	c.readyz, _ = ask(t, s, "/readyz")
	return c
}

var (
	allGood  = codes{200, 200, 200}
	notReady = codes{200, 200, 503}
	late     = codes{503, 503, 503}
)

// TestFreshness walks an agent through its life. B-67 is its steps: no events for
// long; a change that does not get into the kernel; recovery; a first sync that
// never succeeds.
func TestFreshness(t *testing.T) {
	type step struct {
		do   string
		fam  model.Family
		wait time.Duration
		want codes
	}
	synced := []step{
		{do: "queued", fam: model.IPv4, want: notReady}, {do: "started", fam: model.IPv4, want: notReady},
		{do: "applied", fam: model.IPv4, want: notReady},
		{do: "queued", fam: model.IPv6, want: notReady}, {do: "started", fam: model.IPv6, want: notReady},
		{do: "applied", fam: model.IPv6, want: allGood},
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{
			name:  "API away since the start: nothing is late",
			steps: []step{{wait: time.Hour, want: notReady}},
		},
		{
			name:  "quiet cluster (B-67 1)",
			steps: append(synced[:6:6], step{wait: 10 * time.Minute, want: allGood}),
		},
		{
			name: "restore fails with a change pending, then recovers (B-67 2, 3)",
			steps: append(synced[:6:6],
				step{do: "queued", fam: model.IPv4, want: allGood},
				step{do: "started", fam: model.IPv4, want: allGood},
				step{do: "failed", fam: model.IPv4, wait: timeout - 1, want: notReady},
				step{wait: 1, want: late},
				step{do: "started", fam: model.IPv4, want: late},
				step{do: "applied", fam: model.IPv4, want: allGood},
			),
		},
		{
			name: "first sync never succeeds (B-67 4)",
			steps: []step{
				{do: "queued", fam: model.IPv4, want: notReady},
				{do: "started", fam: model.IPv4, want: notReady},
				{do: "failed", fam: model.IPv4, wait: timeout - 1, want: notReady},
				{wait: 1, want: late},
			},
		},
		{
			name: "one family always fails: health is the worst family (B-70)",
			steps: []step{
				{do: "queued", fam: model.IPv4}, {do: "started", fam: model.IPv4}, {do: "applied", fam: model.IPv4, want: notReady},
				{do: "queued", fam: model.IPv6}, {do: "started", fam: model.IPv6}, {do: "failed", fam: model.IPv6, want: notReady},
				{wait: timeout, want: late},
			},
		},
		{
			name: "a change during a sync is not lost with it",
			steps: append(synced[:6:6],
				step{do: "queued", fam: model.IPv4, want: allGood},
				step{do: "started", fam: model.IPv4, wait: time.Second, want: allGood},
				step{do: "queued", fam: model.IPv4, want: allGood},
				step{do: "applied", fam: model.IPv4, wait: timeout - 1, want: allGood},
				step{wait: 1, want: codes{503, 503, 200}},
			),
		},
		{
			name: "more changes do not make the oldest one younger",
			steps: append(synced[:6:6],
				step{do: "queued", fam: model.IPv4, wait: timeout - 1, want: allGood},
				step{do: "queued", fam: model.IPv4, wait: 1, want: codes{503, 503, 200}},
			),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newState(model.IPv4, model.IPv6)
				for i, step := range tc.steps {
					switch step.do {
					case "queued":
						s.Queued(step.fam)
					case "started":
						s.Started(step.fam)
					case "applied":
						s.Applied(step.fam)
					case "failed":
						s.Failed(step.fam)
					}
					time.Sleep(step.wait)
					if got := probe(t, s); step.want != (codes{}) && got != step.want {
						t.Fatalf("step %d (%s %s, then %v): got %+v, want %+v", i, step.do, step.fam, step.wait, got, step.want)
					}
					if got, want := s.Healthy(), probe(t, s).livez == 200; got != want {
						t.Fatalf("step %d: Healthy is %v, /livez says %v", i, got, want)
					}
				}
			})
		})
	}
}

// Who asks while the agent starts is answered: it is alive, unless the start does not
// end, and not ready.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewState(timeout)
		for _, step := range []struct {
			wait time.Duration
			want codes
		}{{0, notReady}, {timeout - 1, notReady}, {1, late}} {
			time.Sleep(step.wait)
			if got := probe(t, s); got != step.want {
				t.Errorf("%v later: got %+v, want %+v", step.wait, got, step.want)
			}
			if got, want := s.Healthy(), step.want.livez == 200; got != want {
				t.Errorf("Healthy is %v, want %v", got, want)
			}
		}
		s.SetFamilies(model.IPv4)
		if got := probe(t, s); got != notReady {
			t.Errorf("started in the end: got %+v, want %+v", got, notReady)
		}
	})
}

// Probes can only be asked.
func TestProbesCanOnlyBeRead(t *testing.T) {
	s := NewServices(healthy, nil)
	for path, handler := range map[string]http.Handler{
		"/healthz": newState().Handler(newCounts()), "/livez": newState().Handler(newCounts()),
		"/readyz": newState().Handler(newCounts()), "/": s.handler(svcA),
	} {
		for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
			if w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: got %d, want 405", method, path, w.Code)
			}
		}
	}
}

// A family that the agent does not run (its kernel lacks it) is not asked for.
func TestFamilyThatIsNotRun(t *testing.T) {
	s := newState(model.IPv4)
	s.Queued(model.IPv6)
	s.Started(model.IPv4)
	s.Applied(model.IPv4)
	code, body := ask(t, s, "/readyz")
	if status := body["status"].(map[string]any); code != 200 || len(status) != 1 {
		t.Errorf("got %d %v, want 200 with IPv4 only", code, body)
	}
}

// B-68: a node on its way out is for balancers to know, not for the liveness probe.
func TestNodeEligibility(t *testing.T) {
	tainted := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}}}
	otherTaint := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "node.kubernetes.io/unschedulable"}}}}
	deleted := &v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
	for _, tc := range []struct {
		name  string
		nodes []*v1.Node
		want  int
	}{
		{name: "nothing known yet", want: 200},
		{name: "plain node", nodes: []*v1.Node{{}}, want: 200},
		{name: "other taint", nodes: []*v1.Node{otherTaint}, want: 200},
		{name: "autoscaler's taint", nodes: []*v1.Node{tainted}, want: 503},
		{name: "being deleted", nodes: []*v1.Node{deleted}, want: 503},
		{name: "gone", nodes: []*v1.Node{{}, nil}, want: 503},
		{name: "taint taken off", nodes: []*v1.Node{tainted, {}}, want: 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newState(model.IPv4)
			for _, node := range tc.nodes {
				s.SetNode(node)
			}
			code, body := ask(t, s, "/healthz")
			if code != tc.want || body["nodeEligible"] != (tc.want == 200) || body["healthy"] != true {
				t.Errorf("/healthz: got %d %v, want %d", code, body, tc.want)
			}
			code, body = ask(t, s, "/livez")
			if _, told := body["nodeEligible"]; code != 200 || told {
				t.Errorf("/livez: got %d %v, want 200 and no word of the node", code, body)
			}
		})
	}
}

func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newState(model.IPv4)
		s.Queued(model.IPv4)
		s.Started(model.IPv4)
		s.Applied(model.IPv4)
		counted := newCounts()
		handler := s.Handler(counted)
		body := func(path string) string {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if got := w.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("%s: got Content-Type %q", path, got)
			}
			if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("%s: got X-Content-Type-Options %q", path, got)
			}
			return w.Body.String()
		}
		check := func(path, want string) {
			t.Helper()
			if got := body(path); got != want {
				t.Errorf("%s:\n got %s\nwant %s", path, got, want)
			}
		}
		time.Sleep(time.Minute)
		// The bubble's clock starts at 2000-01-01. lastUpdated of a healthy answer is now.
		check("/healthz", `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":true,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:00Z","healthy":true}}}`)
		check("/livez", `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:00Z","healthy":true}}}`)
		check("/readyz", `{"currentTime":"2000-01-01T00:01:00Z","ready":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:00Z","ready":true,"firstApplied":true}}}`)
		s.Queued(model.IPv4)
		time.Sleep(timeout)
		check("/livez", `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:02:00Z","healthy":false,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:00Z","healthy":false}}}`)
		if counted.healthz[200] != 1 || counted.livez[200] != 1 || counted.livez[503] != 1 {
			t.Errorf("got counts %+v, want one 200 of /healthz, one 200 and one 503 of /livez", counted)
		}
	})
}
