package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/miniproxy/miniproxy/pkg/httpserver"
)

// Counter counts the answers that probes got.
type Counter interface {
	Healthz(code int)
	Livez(code int)
}

// liveness is the body of /healthz and /livez, kube-proxy's.
type liveness struct {
	// LastUpdated is when a sync last succeeded in any family; "now" in a healthy
	// answer, as tools have expected since the days of a fixed sync interval.
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// readiness is the body of /readyz.
type readiness struct {
	CurrentTime time.Time                  `json:"currentTime"`
	Ready       bool                       `json:"ready"`
	Status      map[string]familyReadiness `json:"status"`
}

type familyReadiness struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Ready       bool      `json:"ready"`
	// FirstApplied tells a family that never had its rules from one whose last sync
	// failed.
	FirstApplied bool `json:"firstApplied"`
}

// Handler serves /healthz, /livez and /readyz.
func (s *State) Handler(count Counter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		body := s.liveness(true)
		count.Healthz(answer(w, body.Healthy && *body.NodeEligible, body))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		body := s.liveness(false)
		count.Livez(answer(w, body.Healthy, body))
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		body := s.readiness()
		answer(w, body.Ready, body)
	})
	return httpserver.ReadOnly(mux)
}

func (s *State) liveness(withNode bool) liveness {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	body := liveness{CurrentTime: now, Healthy: !s.hangs(now), Status: map[string]familyStatus{}}
	for fam, f := range s.families {
		status := familyStatus{LastUpdated: f.updated, Healthy: !f.isLate(now, s.timeout)}
		body.Status[fam.String()] = status
		body.Healthy = body.Healthy && status.Healthy
		if f.updated.After(body.LastUpdated) {
			body.LastUpdated = f.updated
		}
	}
	good := body.Healthy
	if withNode {
		eligible := s.eligible
		body.NodeEligible = &eligible
		good = good && eligible
	}
	if good {
		body.LastUpdated = now
	}
	return body
}

func (s *State) readiness() readiness {
	s.mu.Lock()
	defer s.mu.Unlock()
	body := readiness{CurrentTime: time.Now(), Ready: s.starting.IsZero(), Status: map[string]familyReadiness{}}
	for fam, f := range s.families {
		body.Status[fam.String()] = familyReadiness{
			LastUpdated: f.updated, Ready: f.isReady(), FirstApplied: !f.updated.IsZero(),
		}
		body.Ready = body.Ready && f.isReady()
	}
	return body
}

// answer writes body as JSON with the status that good stands for and returns the
// status.
func answer(w http.ResponseWriter, good bool, body any) int {
	text, err := json.Marshal(body)
	if err != nil {
		// The bodies are plain structs of this package: a failure here is a bug, and a
		// probe must not take it for health.
		good, text = false, nil
	}
	return write(w, good, text)
}

// write sends a JSON text as 200 or 503 and returns which.
func write(w http.ResponseWriter, good bool, text []byte) int {
	code := http.StatusOK
	if !good {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // it fails when the caller hung up
	return code
}
