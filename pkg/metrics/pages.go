package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"k8s.io/component-base/metrics/prometheus/slis"

	"github.com/miniproxy/miniproxy/pkg/httpserver"
)

// configGroup is the key of the configuration on /configz.
const configGroup = "kubeproxy.config.k8s.io"

// Pages is what the metrics server shows.
type Pages struct {
	// Metrics serves /metrics (ProcessRegistry.Handler).
	Metrics http.Handler
	// ProxyMode is the text of /proxyMode: "iptables".
	ProxyMode string
	// Component is the program's name on /statusz and /flagz, Version its version.
	Component, Version string
	// Config is shown as JSON on /configz.
	Config any
	// Flags are the command-line flags with their values, for /flagz.
	Flags map[string]string
	// Debug are the pages under /debug/miniproxy/.
	Debug []DebugPage
	// Profiling adds /debug/pprof/ and PUT /debug/flags/v.
	Profiling bool
	// SetVerbosity sets the log level and returns what to answer; used with Profiling
	// only (logs.GlogSetter).
	SetVerbosity func(level string) (string, error)
}

// WriteTimeout is how long the longest page takes, for the server's limit; 0 for no
// special length. A CPU profile is written after the time it was asked to cover.
func (p Pages) WriteTimeout() time.Duration {
	if p.Profiling {
		return 5 * time.Minute
	}
	return 0
}

// Handler serves the pages. All can only be read, but for two that are there with
// Profiling: PUT /debug/flags/v, and POST /debug/pprof/symbol, which is how go tool
// pprof sends a question that is too long for a URL.
func (p Pages) Handler() http.Handler {
	m := &listedMux{ServeMux: http.NewServeMux()}
	newHealthz().install(m)
	slis.SLIMetrics{}.Install(m)
	m.Handle("/metrics", p.Metrics)
	m.Handle("/proxyMode", text(p.ProxyMode))
	m.Handle("/configz", configz(p.Config))
	m.Handle("/flagz", flagz(p.Component, p.Flags))
	installDebug(m, p.Debug)
	if p.Profiling {
		m.Handle("/debug/pprof/", http.HandlerFunc(pprof.Index))
		m.Handle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
		m.Handle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
		m.handleAnyMethod("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
		m.handleAnyMethod("/debug/flags/v", verbosity(p.SetVerbosity))
	}
	m.Handle("/statusz", statusz(p.Component, p.Version, slices.Clone(m.paths)))
	return m
}

// listedMux remembers what was installed, for /statusz.
type listedMux struct {
	*http.ServeMux
	paths []string
}

// Handle installs a page that can only be read.
func (m *listedMux) Handle(path string, h http.Handler) {
	m.handleAnyMethod(path, httpserver.ReadOnly(h))
}

// handleAnyMethod installs a page that looks at the method itself.
func (m *listedMux) handleAnyMethod(path string, h http.Handler) {
	m.paths = append(m.paths, path)
	m.ServeMux.Handle(path, h)
}

// text answers with fixed plain text.
func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, s) })
}

func writeText(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, s) // it fails when the caller hung up
}

// configz shows the configuration in force.
func configz(config any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(map[string]any{configGroup: config})
		if err != nil {
			writeText(w, http.StatusInternalServerError, fmt.Sprintf("show configuration: %v\n", err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body) // it fails when the caller hung up
	})
}

// verbosity sets the log level to the body of a PUT.
func verbosity(set func(string) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			w.Header().Set("Allow", http.MethodPut)
			writeText(w, http.StatusMethodNotAllowed, "PUT the new log level\n")
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			writeText(w, http.StatusBadRequest, fmt.Sprintf("read log level: %v\n", err))
			return
		}
		answer, err := set(string(body))
		if err != nil {
			writeText(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		writeText(w, http.StatusOK, answer+"\n")
	})
}
