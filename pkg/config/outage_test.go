package config

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// outage is an API server behind a network, and a Source that watches it. Time is
// virtual: ten minutes of an outage pass at once, and what is said of times is exact.
type outage struct {
	*fakeAPI
	*wire
	*recorder
}

// newOutage returns an outage in which everything works, with the Services s and old.
func newOutage(t *testing.T) *outage {
	t.Helper()
	o := &outage{newFakeAPI(t), newWire(), newRecorder(t)}
	o.fakeAPI.Listener = o.wire
	o.EnableHTTP2 = true
	o.StartTLS()
	t.Cleanup(o.resetAll)
	o.put(service("s"))
	o.put(service("old"))
	return o
}

// watch starts the Source.
func (o *outage) watch(t *testing.T) {
	t.Helper()
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard))))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw})
	from := pod(o.URL, ca, nil)
	from.dial = o.dial
	config, err := from.connect(ctx, API{QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	source := NewCluster(client, "n1", 0)
	background(t, ctx, func(ctx context.Context) error { return source.Run(ctx, o.recorder) })
}

// within fails the test if events do not come in time, or others come besides. What a
// new list tells again of the Service that does not change is no event.
func (o *outage) within(t *testing.T, limit time.Duration, want ...string) {
	t.Helper()
	start := time.Now()
	var got []string
	for len(got) < len(want) && time.Since(start) < limit {
		time.Sleep(time.Second / 10)
		synctest.Wait()
		got = append(got, slices.DeleteFunc(o.take(), func(call string) bool { return call == "~service ns1/s" })...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("after %v: got %q, want %q", time.Since(start), got, want)
	}
	t.Logf("%q after %v", want, time.Since(start))
}

// silentFor waits, and fails the test if there are events.
func (o *outage) silentFor(t *testing.T, d time.Duration) {
	t.Helper()
	if d == 0 {
		return
	}
	time.Sleep(d)
	if got := o.take(); len(got) > 0 {
		t.Fatalf("got %q although the API server was gone", got)
	}
}

// answer is a handler that answers with a status and a body.
func answer(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// TestOutages covers B-62: whatever the API server or the way to it does, what changed
// meanwhile arrives, once, and soon after it is possible.
func TestOutages(t *testing.T) {
	const (
		minute = time.Minute
		// backoff is the longest pause of client-go's between two attempts, 30 s and up to
		// as much again at random, with a little for the attempt.
		backoff = minute + 5*time.Second
	)
	nothing := func(*outage) {}
	tests := []struct {
		name   string
		begin  func(*outage)
		lasts  time.Duration
		end    func(*outage)
		within time.Duration
	}{
		{"no outage", nothing, 0, nothing, time.Second},
		{"connections reset", func(o *outage) { o.resetAll() }, 0, nothing, 5 * time.Second},
		{"watches ended", func(o *outage) { o.endWatches() }, 0, nothing, 5 * time.Second},
		{"history forgotten, 410 Gone", func(o *outage) { o.forget(); o.endWatches() }, 0, nothing, 5 * time.Second},
		{
			"gone for ten minutes",
			func(o *outage) { o.refuse(true); o.resetAll() }, 10 * minute,
			func(o *outage) { o.refuse(false) }, backoff,
		},
		{
			"gone for ten minutes, and the history forgotten",
			func(o *outage) { o.refuse(true); o.resetAll(); o.forget() }, 10 * minute,
			func(o *outage) { o.refuse(false) }, 2 * backoff,
		},
		// HTTP/2's pings, 30 s after the last byte and with 15 s for the answer.
		{"connections lost without a word", func(o *outage) { o.loseAll() }, 0, nothing, 50 * time.Second},
		{
			"packets lost for ten minutes",
			func(o *outage) { o.swallow(true); o.loseAll() }, 10 * minute,
			func(o *outage) { o.swallow(false) }, backoff + 10*time.Second,
		},
		{"watches stuck, connections well", func(o *outage) { o.stick() }, 0, nothing, 3*minute + 5*time.Second},
		{
			"429 Too Many Requests",
			func(o *outage) {
				o.fail(20, answer(http.StatusTooManyRequests, "slow down", "Retry-After", "2"))
				o.endWatches()
			}, 0, nothing, 5 * minute,
		},
		{
			"500 Internal Server Error",
			func(o *outage) {
				o.fail(20, answer(http.StatusInternalServerError, "etcd is on fire"))
				o.endWatches()
			}, 0, nothing, 5 * minute,
		},
		{
			"503 for the lists that a forgotten history asks for",
			func(o *outage) {
				o.forget()
				o.fail(12, answer(http.StatusServiceUnavailable, "starting", "Retry-After", "1"))
				o.endWatches()
			}, 0, nothing, 5 * minute,
		},
		{
			"a web page in the place of an API server",
			func(o *outage) {
				o.fail(9, answer(http.StatusOK, "<html>Please log in", "Content-Type", "text/html"))
				o.endWatches()
			}, 0, nothing, 5 * minute,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage(t)
				o.watch(t)
				o.within(t, time.Second, "+service ns1/old", "+service ns1/s", "synced")
				tt.begin(o)
				o.put(service("new"))
				o.remove(service("old"))
				o.silentFor(t, tt.lasts)
				tt.end(o)
				o.within(t, tt.within, "+service ns1/new", "-service ns1/old")
				// And what comes after.
				o.put(service("newer"))
				o.within(t, 5*time.Second, "+service ns1/newer")
			})
		})
	}
}

// TestOutageAtStart covers B-62: a start waits for as long as it takes, and tells of
// nothing before it knows everything.
func TestOutageAtStart(t *testing.T) {
	tests := []struct {
		name   string
		begin  func(*outage)
		lasts  time.Duration
		end    func(*outage)
		within time.Duration
	}{
		{"refused", func(o *outage) { o.refuse(true) }, 10 * time.Minute, func(o *outage) { o.refuse(false) }, 70 * time.Second},
		{"no answer", func(o *outage) { o.swallow(true) }, 10 * time.Minute, func(o *outage) { o.swallow(false) }, 70 * time.Second},
		{"the first requests are never answered", func(o *outage) {
			o.fail(3, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		}, 0, func(*outage) {}, 3*time.Minute + 5*time.Second},
		{"500 Internal Server Error", func(o *outage) {
			o.fail(20, answer(http.StatusInternalServerError, "starting"))
		}, 0, func(*outage) {}, 5 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage(t)
				tt.begin(o)
				o.watch(t)
				o.silentFor(t, tt.lasts)
				tt.end(o)
				o.within(t, tt.within, "+service ns1/old", "+service ns1/s", "synced")
			})
		})
	}
}

// TestQuietServer holds that a server without bookmarks and without news costs a new
// watch from time to time and no new lists, and that nothing is lost by it.
func TestQuietServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t)
		o.watch(t)
		o.within(t, time.Second, "+service ns1/old", "+service ns1/s", "synced")
		const quiet = time.Hour
		time.Sleep(quiet)
		o.fakeAPI.mu.Lock()
		watches := o.watches
		o.fakeAPI.mu.Unlock()
		if most := 3 * (2 + int(quiet/patienceWithSilence)); watches > most {
			t.Errorf("%d watches in %v, want at most %d", watches, quiet, most)
		}
		o.put(service("new"))
		o.within(t, time.Second, "+service ns1/new")
	})
}

// TestSilentServerIsLeft holds that an answer that falls silent makes the next requests
// go to another server.
func TestSilentServerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		rt := failover(t.Context(), parsed(t, "https://a:1", "https://b:1"), 0)(roundTripper(func(r *http.Request) (*http.Response, error) {
			asked = append(asked, r.URL.Host)
			says, _ := io.Pipe() // nothing
			context.AfterFunc(r.Context(), func() { _ = says.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: http.StatusOK, Body: says}, nil
		}))
		for range 3 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://a:1/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := rt.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := io.ReadAll(response.Body); !errors.Is(err, errSilent) || time.Since(start) != patienceWithSilence {
				t.Errorf("after %v: got error %v, want %v after %v", time.Since(start), err, errSilent, patienceWithSilence)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		if want := []string{"a:1", "b:1", "a:1"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q, want %q", asked, want)
		}
	})
}
