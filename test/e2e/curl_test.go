package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// Exit statuses of curl.
const (
	curlFailedToConnect = 7
	curlTimedOut        = 28
)

// transfer is one request of curl.
type transfer struct {
	exit    int    // exit status that curl would end with, 0 for success
	message string // why not, as curl says it
	answer  answer
}

// curlWriteOut makes curl print a line of its own after each body.
const curlWriteOut = `\n%{exitcode} %{http_code} %{errormsg}\n`

// curlCommand is a curl on host that asks for url, which may have curl's [1-n] in it
// for n requests, one after another, each on a new connection.
func curlCommand(ctx context.Context, host *lab.Host, url string, args ...string) *exec.Cmd {
	fixed := []string{"--silent", "--noproxy", "*", "--max-time", "30", "--write-out", curlWriteOut, "--url", url}
	return host.Command(ctx, "curl", append(fixed, args...)...)
}

// parseTransfers reads what curlCommand printed. An unfinished last line, of a curl
// that was ended, is left out.
func parseTransfers(out string) ([]transfer, error) {
	lines := strings.Split(out, "\n")
	lines = lines[:len(lines)-1]
	var list []transfer
	for i := 0; i+1 < len(lines); i += 2 {
		body, status := lines[i], strings.SplitN(lines[i+1], " ", 3)
		if len(status) != 3 {
			return nil, fmt.Errorf("curl printed %q where the status of a request should be", lines[i+1])
		}
		exit, err := strconv.Atoi(status[0])
		if err != nil {
			return nil, fmt.Errorf("curl printed %q where the status of a request should be", lines[i+1])
		}
		tr := transfer{exit: exit, message: status[2]}
		if exit == 0 {
			if err := json.Unmarshal([]byte(body), &tr.answer); err != nil {
				return nil, fmt.Errorf("HTTP %s with body %q: %w", status[1], body, err)
			}
		}
		list = append(list, tr)
	}
	return list, nil
}

// fetch makes n requests from a host to a Service address, one connection each.
func fetch(ctx context.Context, from *lab.Host, to netip.AddrPort, n int) ([]transfer, error) {
	var out, stderr strings.Builder
	cmd := curlCommand(ctx, from, fmt.Sprintf("http://%s/[1-%d]", to, n))
	cmd.Stdout, cmd.Stderr = &out, &stderr
	// The exit status is that of the last request only; each has its own in the output.
	runErr := cmd.Run()
	list, err := parseTransfers(out.String())
	if err != nil {
		return nil, err
	}
	if len(list) != n {
		return nil, errors.Join(fmt.Errorf("curl on %s made %d of %d requests to %s: %s", from.Name(), len(list), n, to, stderr.String()), runErr)
	}
	return list, nil
}

// fetchOne makes one request that must succeed.
func fetchOne(ctx context.Context, from *lab.Host, to netip.AddrPort) (answer, error) {
	list, err := fetch(ctx, from, to, 1)
	if err != nil {
		return answer{}, err
	}
	if tr := list[0]; tr.exit != 0 {
		return answer{}, fmt.Errorf("curl from %s to %s: exit status %d: %s", from.Name(), to, tr.exit, tr.message)
	}
	return list[0].answer, nil
}

// countAnswers counts who answered; a request without an answer is an error.
func countAnswers(list []transfer) (map[string]int, error) {
	counts := map[string]int{}
	for i, tr := range list {
		if tr.exit != 0 {
			return nil, fmt.Errorf("request %d of %d: exit status %d: %s", i+1, len(list), tr.exit, tr.message)
		}
		counts[tr.answer.Pod]++
	}
	return counts, nil
}

// servedBy returns nil when every connection from a host to a Service address is
// answered, and by exactly those pods, each at least once.
func servedBy(ctx context.Context, from *lab.Host, to netip.AddrPort, pods ...string) error {
	// So many that a pod with an equal share is missed once in 10^9 times.
	list, err := fetch(ctx, from, to, 1+21*len(pods))
	if err != nil {
		return err
	}
	counts, err := countAnswers(list)
	if err != nil {
		return fmt.Errorf("from %s to %s: %w", from.Name(), to, err)
	}
	got := slices.Sorted(func(yield func(string) bool) {
		for pod := range counts {
			if !yield(pod) {
				return
			}
		}
	})
	if want := slices.Sorted(slices.Values(pods)); !slices.Equal(got, want) {
		return fmt.Errorf("from %s to %s: answered by %v, want %v", from.Name(), to, got, want)
	}
	return nil
}

// refused returns nil when a connection from a host to an address is refused, rather
// than answered or left without a word.
func refused(ctx context.Context, from *lab.Host, to netip.AddrPort) error {
	tr, verbose, err := tryOnce(ctx, from, to, "--verbose")
	if err != nil {
		return err
	}
	// The exit status is the same for "no route to host".
	if tr.exit != curlFailedToConnect || !strings.Contains(verbose, "Connection refused") {
		return fmt.Errorf("curl from %s to %s: %+v; want the connection refused; it said:\n%s", from.Name(), to, tr, verbose)
	}
	return nil
}

// unreachable returns nil when the network says that there is no way from a host to
// an address.
func unreachable(ctx context.Context, from *lab.Host, to netip.AddrPort) error {
	tr, verbose, err := tryOnce(ctx, from, to, "--verbose")
	if err != nil {
		return err
	}
	if tr.exit != curlFailedToConnect || strings.Contains(verbose, "Connection refused") {
		return fmt.Errorf("curl from %s to %s: %+v; want no way to there; it said:\n%s", from.Name(), to, tr, verbose)
	}
	return nil
}

// dropped returns nil when a connection from a host to an address gets no word in
// reply. A second is the time after which TCP would ask again.
func dropped(ctx context.Context, from *lab.Host, to netip.AddrPort) error {
	tr, _, err := tryOnce(ctx, from, to, "--connect-timeout", "1")
	if err != nil {
		return err
	}
	if tr.exit != curlTimedOut {
		return fmt.Errorf("curl from %s to %s: %+v; want no answer at all", from.Name(), to, tr)
	}
	return nil
}

// tryOnce makes one request that may fail, and returns how it went with what curl
// wrote to its standard error.
func tryOnce(ctx context.Context, from *lab.Host, to netip.AddrPort, args ...string) (transfer, string, error) {
	var out, verbose strings.Builder
	cmd := curlCommand(ctx, from, fmt.Sprintf("http://%s/", to), args...)
	cmd.Stdout, cmd.Stderr = &out, &verbose
	runErr := cmd.Run()
	list, err := parseTransfers(out.String())
	if err != nil {
		return transfer{}, "", err
	}
	if len(list) != 1 {
		return transfer{}, "", errors.Join(fmt.Errorf("curl on %s made %d requests instead of one: %s", from.Name(), len(list), verbose.String()), runErr)
	}
	return list[0], verbose.String(), nil
}
