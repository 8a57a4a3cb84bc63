package demo

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	tests := []struct {
		name string
		out  string
		n    int
		want string
	}{
		{"all answered", "a sees 10.9.9.9\nb sees 10.9.9.9\na sees 10.9.9.9\n", 3, ""},
		{"one lost", "a sees 10.9.9.9\nb sees 10.9.9.9\n", 3, "1 of 3 requests failed"},
		{"one that is not an answer", "a sees 10.9.9.9\nb sees 10.9.9.9\nservice unavailable\n", 3, "1 of 3 requests failed"},
		{"a pod without a request", "a sees 10.9.9.9\na sees 10.9.9.9\n", 2, "answers came from a, want them from a, b"},
		{"a pod too many", "a sees 10.9.9.9\nb sees 10.9.9.9\nc sees 10.9.9.9\n", 3, "answers came from a, b, c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := count(tt.out, tt.n).complete([]string{"a", "b"})
			if tt.want == "" {
				if err != nil {
					t.Errorf("complete = %v, want nil", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("complete = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	got := count("b sees 10.0.0.1\na sees 10.244.1.1\nb sees 10.0.0.1\nb sees fd00::1\n", 4)
	if got, want := got.summary(), "a 1, b 3"; got != want {
		t.Errorf("summary = %q, want %q", got, want)
	}
	if got := got.share("b"); got != 75 {
		t.Errorf("share of b = %v, want 75", got)
	}
	if got := got.bySource["10.0.0.1"]; got != 2 {
		t.Errorf("10.0.0.1 was seen %d times, want 2", got)
	}
	// Of 1000 throws of a coin, 500 ± 32 are heads in 19 of 20 runs.
	if got := (answers{total: 1000}).spread(2); got != 32 {
		t.Errorf("spread of 1000 over 2 = %d, want 32", got)
	}
}

func TestPodHandler(t *testing.T) {
	for remote, want := range map[string]string{
		"10.9.9.9:1234":          "web-a sees 10.9.9.9\n",
		"[::ffff:10.9.9.9]:1234": "web-a sees 10.9.9.9\n",
		"[fd00:9::9]:1234":       "web-a sees fd00:9::9\n",
	} {
		request := httptest.NewRequest(http.MethodGet, "/?1", nil)
		request.RemoteAddr = remote
		recorder := httptest.NewRecorder()
		podHandler("web-a").ServeHTTP(recorder, request)
		if got := recorder.Body.String(); got != want {
			t.Errorf("answer to %s = %q, want %q", remote, got, want)
		}
	}
}

func TestServePodEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ServePod(ctx, "web-a", "127.0.0.1:0"); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("ServePod = %v, want nil or the context's error", err)
	}
}
