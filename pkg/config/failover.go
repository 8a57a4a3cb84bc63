package config

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// failover returns a wrapper for a client's transport that sends each request to one
// of servers, beginning with first, and turns to the next one when a request gets no
// answer, or an answer that falls silent. The failed request is not repeated: the
// client does that, with its own patience. Requests must be addressed to servers[0].
func failover(ctx context.Context, servers []*url.URL, first int) func(http.RoundTripper) http.RoundTripper {
	t := &target{servers: servers, logger: klog.FromContext(ctx)}
	t.current.Store(int64(first))
	return func(next http.RoundTripper) http.RoundTripper { return redirector{next, t} }
}

// target is the server in use. All clients of one configuration share it.
type target struct {
	servers []*url.URL
	logger  klog.Logger
	current atomic.Int64
	// wasLost says that no server has answered since the loss was logged.
	wasLost atomic.Bool
}

// fail turns to the next server, unless somebody did so already. It logs the first
// loss only: going around dead servers would fill the log.
func (t *target) fail(failed int64, err error) {
	next := (failed + 1) % int64(len(t.servers))
	if next == failed || !t.current.CompareAndSwap(failed, next) {
		return
	}
	logger := t.logger.WithValues("server", t.servers[failed].String(), "next", t.servers[next].String())
	if t.wasLost.Swap(true) {
		logger.V(2).Info("API server does not answer either; trying the next one", "err", err)
		return
	}
	logger.Error(err, "API server does not answer; trying the next one")
}

// succeed notes that server i answered.
func (t *target) succeed(i int64) {
	if t.wasLost.Swap(false) {
		t.logger.Info("Using API server", "server", t.servers[i].String(), "choices", len(t.servers))
	}
}

// redirector sends requests to the target.
type redirector struct {
	next http.RoundTripper
	*target
}

// RoundTrip implements http.RoundTripper.
func (r redirector) RoundTrip(request *http.Request) (*http.Response, error) {
	i := r.current.Load()
	server := r.servers[i]
	sent := request.Clone(request.Context())
	sent.Host = ""
	sent.URL.Scheme, sent.URL.Host = server.Scheme, server.Host
	// Some servers live below a path (https://host/k8s/clusters/a).
	if old, base := strings.TrimSuffix(r.servers[0].Path, "/"), strings.TrimSuffix(server.Path, "/"); old != base {
		sent.URL.Path = base + strings.TrimPrefix(sent.URL.Path, old)
		sent.URL.RawPath = ""
	}
	var next http.RoundTripper = impatient{r.next, func(err error) { r.fail(i, err) }}
	if server.Scheme != "https" {
		next = withoutCredentials{next}
	}
	response, err := next.RoundTrip(sent)
	switch {
	case err == nil:
		r.succeed(i)
	case request.Context().Err() == nil:
		r.fail(i, err)
	}
	return response, err
}

// withoutCredentials takes the token out of requests: over plain HTTP everybody on
// the way could read it.
type withoutCredentials struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w withoutCredentials) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := request.Clone(request.Context())
	sent.Header.Del("Authorization")
	return w.next.RoundTrip(sent)
}
