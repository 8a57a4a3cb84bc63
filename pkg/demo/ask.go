package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// answers is what the pods said to a number of requests.
type answers struct {
	// byPod and bySource count answers by the pod that gave them, and by the client
	// address that it saw.
	byPod, bySource map[string]int
	total, failed   int
	// complaint is the first thing that curl said about requests that failed.
	complaint string
}

// curlArgs is the command line that asks a number of times. The servers close each
// connection after one answer, so that each request opens one.
func curlArgs(url string, n int) []string {
	// Packets of a Service whose rules are gone may be lost without an answer.
	args := []string{"-sS", "--connect-timeout", "2"}
	if n > 1 {
		return append(args, fmt.Sprintf("%s?[1-%d]", url, n))
	}
	return append(args, url)
}

// ask asks n times from a host, each time on a new connection. The error is curl's
// own words, when no request at all was answered.
func ask(ctx context.Context, from *lab.Host, url string, n int) (answers, error) {
	var stdout, stderr strings.Builder
	cmd := from.Command(ctx, "curl", curlArgs(url, n)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	got := count(stdout.String(), n)
	// Of many requests, curl's exit status tells only how the last one went.
	got.complaint, _, _ = strings.Cut(strings.TrimSpace(stderr.String()), "\n")
	if got.failed == n && err != nil {
		return got, errors.New(cmp.Or(got.complaint, err.Error()))
	}
	return got, nil
}

// count reads the answers to n requests: a line each, "POD sees ADDRESS".
func count(out string, n int) answers {
	got := answers{byPod: map[string]int{}, bySource: map[string]int{}, total: n, failed: n}
	for line := range strings.Lines(out) {
		name, source, ok := strings.Cut(strings.TrimSpace(line), " sees ")
		if !ok {
			continue
		}
		got.byPod[name]++
		got.bySource[source]++
		got.failed--
	}
	return got
}

// complete checks that every request was answered, and that each of the pods, and
// nobody else, had some.
func (a answers) complete(pods []string) error {
	if a.failed > 0 {
		return fmt.Errorf("%d of %d requests failed: %s", a.failed, a.total, a.complaint)
	}
	if got := slices.Sorted(maps.Keys(a.byPod)); !slices.Equal(got, pods) {
		return fmt.Errorf("answers came from %s, want them from %s", strings.Join(got, ", "), strings.Join(pods, ", "))
	}
	return nil
}

// share is the part of the requests that a pod answered, in percent.
func (a answers) share(pod string) float64 { return 100 * float64(a.byPod[pod]) / float64(a.total) }

// spread is how far from the mean a pod's answers are in 19 of 20 runs, when each of
// n pods is as likely as the others: twice the standard deviation.
func (a answers) spread(n int) int {
	p := 1 / float64(n)
	return int(math.Round(2 * math.Sqrt(float64(a.total)*p*(1-p))))
}

// summary is the answers in one line: "web-a 98, web-b 101".
func (a answers) summary() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(a.byPod)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, a.byPod[name]))
	}
	return strings.Join(parts, ", ")
}

// askMany asks many times, tells how the answers spread, and checks that none is
// missing.
func (w *world) askMany(ctx context.Context, r *report, from *lab.Host, url string, pods []string) (answers, error) {
	if err := w.zero(ctx); err != nil {
		return answers{}, err
	}
	r.command(from.Name(), "curl", curlArgs(url, requests)...)
	got, err := ask(ctx, from, url, requests)
	if err != nil {
		return got, err
	}
	r.spread(got, pods)
	if err := got.complete(pods); err != nil {
		return got, fmt.Errorf("%s: %w", url, err)
	}
	return got, nil
}
