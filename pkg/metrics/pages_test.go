package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
)

var pages = Pages{
	Metrics:   text("scraped"),
	ProxyMode: "iptables", Component: "miniproxy", Version: "v1.2.3",
	Config: map[string]any{"mode": "iptables"},
	Flags:  map[string]string{"v": "2", "config": "/etc/c.yaml"},
	Debug: []DebugPage{
		{Name: "hello", About: "a greeting", Write: func(b *bytes.Buffer) error { b.WriteString("hello"); return nil }},
		{Name: "broken", About: "an error", Write: func(*bytes.Buffer) error { return errors.New("out of greetings") }},
	},
	SetVerbosity: func(level string) (string, error) {
		if level != "4" {
			return "", errors.New("no such level")
		}
		return "level is " + level, nil
	},
}

func do(t *testing.T, h http.Handler, method, path, accept, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPages(t *testing.T) {
	profiling := pages
	profiling.Profiling = true
	for _, tc := range []struct {
		name, method, path, body string
		pages                    Pages
		code                     int
		want                     string
	}{
		{name: "metrics", path: "/metrics", code: 200, want: "scraped"},
		{name: "proxy mode", path: "/proxyMode", code: 200, want: "iptables"},
		{name: "configuration", path: "/configz", code: 200, want: `{"kubeproxy.config.k8s.io":{"mode":"iptables"}}`},
		{name: "health", path: "/healthz", code: 200, want: "ok"},
		{name: "health in words", path: "/healthz?verbose", code: 200, want: "[+]ping ok\n[+]log ok\nhealthz check passed\n"},
		{name: "one check", path: "/healthz/ping", code: 200, want: "ok"},
		{name: "debug index", path: "/debug/miniproxy/", code: 200,
			want: "/debug/miniproxy/hello\ta greeting\n/debug/miniproxy/broken\tan error\n"},
		{name: "debug page", path: "/debug/miniproxy/hello", code: 200, want: "hello"},
		{name: "debug page that fails", path: "/debug/miniproxy/broken", code: 500, want: "show broken: out of greetings\n"},
		{name: "no such page", path: "/debug/miniproxy/nothing", code: 404, want: "404 page not found\n"},
		{name: "no profiles by default", path: "/debug/pprof/", code: 404, want: "404 page not found\n"},
		{name: "no log level by default", method: "PUT", path: "/debug/flags/v", body: "4", code: 404, want: "404 page not found\n"},
		{name: "log level", method: "PUT", path: "/debug/flags/v", body: "4", pages: profiling, code: 200, want: "level is 4\n"},
		{name: "bad log level", method: "PUT", path: "/debug/flags/v", body: "x", pages: profiling, code: 400, want: "no such level\n"},
		{name: "log level is not read", path: "/debug/flags/v", pages: profiling, code: 405, want: "PUT the new log level\n"},
		{name: "a long question about symbols", method: "POST", path: "/debug/pprof/symbol", body: "0x1", pages: profiling, code: 200},
		{name: "profiles", path: "/debug/pprof/symbol", pages: profiling, code: 200, want: "num_symbols: 1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.pages.Metrics == nil {
				tc.pages = pages
			}
			if tc.method == "" {
				tc.method = http.MethodGet
			}
			w := do(t, tc.pages.Handler(), tc.method, tc.path, "", tc.body)
			if got := w.Body.String(); w.Code != tc.code || (tc.want != "" && got != tc.want) {
				t.Errorf("got %d %q, want %d %q", w.Code, got, tc.code, tc.want)
			}
		})
	}
}

// Pages show things. The two that take another method are there with profiling only.
func TestPagesCanOnlyBeRead(t *testing.T) {
	for _, profiling := range []bool{false, true} {
		p := pages
		p.Profiling = profiling
		h := p.Handler().(*listedMux)
		if len(h.paths) < 10 {
			t.Errorf("only %q are listed", h.paths)
		}
		for _, path := range h.paths {
			path = strings.TrimSuffix(path, "{$}")
			for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, "RESET"} {
				if path == "/debug/pprof/symbol" || path == "/debug/flags/v" && method == http.MethodPut {
					continue
				}
				w := do(t, h, method, path, "", "4")
				if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
					t.Errorf("%s %s with profiling %v: got %d, Allow %q; want 405", method, path, profiling, w.Code, w.Header().Get("Allow"))
				}
			}
		}
	}
}

// The results of /healthz are what /metrics/slis shows, and no request clears them.
func TestSLIs(t *testing.T) {
	h := pages.Handler()
	do(t, h, http.MethodGet, "/healthz", "", "")
	do(t, h, http.MethodDelete, "/metrics/slis", "", "")
	got := do(t, h, http.MethodGet, "/metrics/slis", "", "").Body.String()
	for _, want := range []string{`kubernetes_healthcheck{name="ping",type="healthz"} 1`, `kubernetes_healthchecks_total{name="log",status="success",type="healthz"} `} {
		if !strings.Contains(got, want) {
			t.Errorf("/metrics/slis lacks %s:\n%s", want, got)
		}
	}
}

func TestZpages(t *testing.T) {
	h := pages.Handler()
	const structured = ";as=Flagz;g=config.k8s.io;v=v1beta1"
	for _, tc := range []struct {
		name, accept, contentType string
		code                      int
		want                      string
	}{
		{name: "no header", contentType: "text/plain; charset=utf-8", code: 200},
		{name: "curl", accept: "*/*", contentType: "text/plain; charset=utf-8", code: 200},
		{name: "browser", accept: "text/html,application/xhtml+xml,*/*;q=0.8", contentType: "text/plain; charset=utf-8", code: 200},
		{name: "JSON", accept: "application/json" + structured, contentType: "application/json", code: 200},
		{name: "YAML", accept: "application/yaml" + structured, contentType: "application/yaml", code: 200},
		{name: "the better one", accept: "text/plain;q=0.5, application/json" + structured, contentType: "application/json", code: 200},
		{name: "the first that can be served", accept: "application/vnd.kubernetes.protobuf" + structured + ", text/plain",
			contentType: "text/plain; charset=utf-8", code: 200},
		{name: "JSON of no kind", accept: "application/json", contentType: "text/plain; charset=utf-8", code: 406},
		{name: "other version", accept: "application/json;as=Flagz;g=config.k8s.io;v=v9", contentType: "text/plain; charset=utf-8", code: 406},
		{name: "other kind", accept: "application/json;as=Statusz;g=config.k8s.io;v=v1beta1", contentType: "text/plain; charset=utf-8", code: 406},
		{name: "nonsense", accept: ";;;", contentType: "text/plain; charset=utf-8", code: 406},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := do(t, h, http.MethodGet, "/flagz", tc.accept, "")
			if got := w.Header().Get("Content-Type"); w.Code != tc.code || got != tc.contentType {
				t.Errorf("got %d %q, want %d %q; body %s", w.Code, got, tc.code, tc.contentType, w.Body)
			}
		})
	}

	const wantFlags = "\nminiproxy flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\nconfig=/etc/c.yaml\nv=2\n"
	if got := do(t, h, http.MethodGet, "/flagz", "", "").Body.String(); got != wantFlags {
		t.Errorf("/flagz: got %q, want %q", got, wantFlags)
	}
	got := do(t, h, http.MethodGet, "/statusz", "", "").Body.String()
	for _, want := range []string{"\nminiproxy statusz\n", "\nStarted: ", "\nUp: 0 hr 00 min ", "\nBinary version: v1.2.3\n",
		"\nPaths: /configz /debug /flagz /healthz /metrics /proxyMode\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("/statusz lacks %q:\n%s", want, got)
		}
	}
	w := do(t, h, http.MethodGet, "/statusz", "application/json;as=Statusz;g=config.k8s.io;v=v1beta1", "")
	var status map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		t.Fatalf("/statusz as JSON: %v in %s", err, w.Body)
	}
	if status["kind"] != "Statusz" || status["apiVersion"] != "config.k8s.io/v1beta1" || status["binaryVersion"] != "v1.2.3" ||
		status["startTime"] == nil || len(status["paths"].([]any)) != 6 {
		t.Errorf("/statusz as JSON: got %v", status)
	}
}

func TestDebugPagesAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := pages.Handler()
		fetch := func() int { return do(t, h, http.MethodGet, "/debug/miniproxy/hello", "", "").Code }
		for i := range debugBurst {
			if got := fetch(); got != 200 {
				t.Fatalf("fetch %d: got %d, want 200", i, got)
			}
		}
		if got := fetch(); got != 429 {
			t.Errorf("after the burst: got %d, want 429", got)
		}
		time.Sleep(time.Second / debugRate)
		if got := fetch(); got != 200 {
			t.Errorf("a second later: got %d, want 200", got)
		}
	})
}

func TestLogCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unblock := make(chan struct{})
		c := &logCheck{flush: func() { <-unblock }}
		for _, step := range []struct {
			wait time.Duration
			want error
		}{{0, nil}, {flushLimit, nil}, {1, errLogBlocked}} {
			time.Sleep(step.wait)
			if got := c.check(); !errors.Is(got, step.want) {
				t.Errorf("%v later: got %v, want %v", step.wait, got, step.want)
			}
		}
		close(unblock)
		synctest.Wait()
		if got := c.check(); got != nil {
			t.Errorf("log flows again: got %v, want nil", got)
		}
	})
}

// B-81: the last restore that worked and the last one that did not, with its error.
func TestRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRestores()
		input := []byte("*nat\nCOMMIT\n")
		r.Restored(model.IPv4, input, nil)
		input[0] = 'x' // the caller uses its buffer again
		r.Restored(model.IPv6, []byte("*nat\n-A A -j B\nCOMMIT\n"), fmt.Errorf("write: %w", refusedLine{}))
		r.Restored(model.IPv4, bytes.Repeat([]byte("#"), maxRestoreText+1), errors.New("too big"))
		show := func(page DebugPage) string {
			var b bytes.Buffer
			if err := page.Write(&b); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		pages := r.Pages()
		const applied = "# IPv4, 2000-01-01T00:00:00Z, 12 bytes\n*nat\nCOMMIT\n# IPv6: none since the agent started\n"
		if got := show(pages[0]); got != applied {
			t.Errorf("applied: got %q, want %q", got, applied)
		}
		failed := show(pages[1])
		for _, want := range []string{
			"# IPv4, 2000-01-01T00:00:00Z, 1048577 bytes\n# error: \"too big\"\n# only the first 1048576 bytes were kept\n",
			"# IPv6, 2000-01-01T00:00:00Z, 22 bytes\n# error: \"write: line 2 failed\"\n#  1  *nat\n# >2  -A A -j B\n*nat\n-A A -j B\nCOMMIT\n",
		} {
			if !strings.Contains(failed, want) {
				t.Errorf("failed: lacks %q", want)
			}
		}
	})
}

// refusedLine is an error that shows the line that was refused.
type refusedLine struct{}

func (refusedLine) Error() string   { return "line 2 failed" }
func (refusedLine) Excerpt() string { return " 1  *nat\n>2  -A A -j B\n" }
