package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// loadRate is how many connections a load opens per second.
const loadRate = 50

// load is a curl that keeps asking for one address, a new connection each time.
type load struct {
	proc *process
	to   netip.AddrPort
}

// startLoad starts a load; it is ended with the test if not before.
func startLoad(t *testing.T, c *cluster, from *lab.Host, to netip.AddrPort) *load {
	t.Helper()
	log := filepath.Join(c.dir, fmt.Sprintf("load-%s-%d", from.Name(), to.Port()))
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	// A rate keeps the requests evenly apart, and the count only ends what was
	// forgotten.
	cmd := curlCommand(context.Background(), from, fmt.Sprintf("http://%s/[1-1000000]", to),
		"--rate", fmt.Sprintf("%d/s", loadRate), "--no-buffer")
	proc, err := startProcess("curl", log, cmd)
	if err != nil {
		t.Fatal(err)
	}
	l := &load{proc: proc, to: to}
	t.Cleanup(func() { _ = l.proc.end(syscall.SIGKILL) }) // it has ended, or ends by the signal
	l.waitForMore(t, 1)
	return l
}

// count is the number of requests that are done.
func (l *load) count(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(l.proc.log)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n")) / 2
}

// waitForMore waits until n more requests are done, well or not.
func (l *load) waitForMore(t *testing.T, n int) {
	t.Helper()
	want := l.count(t) + n
	eventually(t, fmt.Sprintf("%d more requests to %s", n, l.to), func() error {
		if err := l.proc.alive(); err != nil {
			return err
		}
		if got := l.count(t); got < want {
			return fmt.Errorf("%d requests done, want %d", got, want)
		}
		return nil
	})
}

// stop ends the load and fails the test if any of its requests had failed.
func (l *load) stop(t *testing.T) {
	t.Helper()
	_ = l.proc.end(syscall.SIGTERM) // it ends by the signal, never well
	text, err := os.ReadFile(l.proc.log)
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseTransfers(string(text))
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i, tr := range list {
		if tr.exit != 0 {
			failed++
			t.Errorf("request %d of %d to %s: exit status %d: %s", i+1, len(list), l.to, tr.exit, tr.message)
		}
	}
	t.Logf("%d requests to %s, %d failed", len(list), l.to, failed)
}
