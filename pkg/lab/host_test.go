package lab_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

func newHost(t *testing.T) *lab.Host {
	t.Helper()
	h, err := labtest.New(t).Host("h")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func netns(t *testing.T) string {
	t.Helper()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestDoRunsInTheNamespace(t *testing.T) {
	h := newHost(t)
	home := netns(t)
	var ids sync.Map
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := h.Do(func() error {
				id, err := os.Readlink("/proc/thread-self/ns/net")
				ids.Store(id, true)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	ids.Range(func(id, _ any) bool {
		if n++; id == home {
			t.Errorf("Do ran in the machine's own namespace %s", id)
		}
		return true
	})
	if n != 1 {
		t.Errorf("Do ran in %d namespaces, want 1", n)
	}
	if got := netns(t); got != home {
		t.Errorf("the caller is in %s after Do, want %s", got, home)
	}
}

func TestDoReturnsErrors(t *testing.T) {
	h := newHost(t)
	want := errors.New("of its own")
	if got := h.Do(func() error { return want }); !errors.Is(got, want) {
		t.Errorf("Do = %v, want %v", got, want)
	}
	if err := h.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do of a function that ended its goroutine = nil, want an error")
	}
}

func TestRun(t *testing.T) {
	h := newHost(t)
	out, err := h.Run(t.Context(), "ip", "-o", "link", "show")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "lo: <LOOPBACK,UP") || strings.Contains(out, "eth0") {
		t.Errorf("links of a new host = %q, want lo alone, up", out)
	}

	_, err = h.Run(t.Context(), "sh", "-c", "echo no luck >&2; exit 7")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("error of a command that failed = %v, want exit status 7", err)
	}
	if err == nil || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("error of a command that failed = %v, want what it wrote", err)
	}

	if _, err = h.Run(t.Context(), "no-such-command"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error of a command that is missing = %v, want %v", err, exec.ErrNotFound)
	}
}

func TestCommandIsTheProgramItself(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := h.Command(ctx, "sh", "-c", "echo $$; exec cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 32)
	n, err := stdout.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(line[:n])), strconv.Itoa(cmd.Process.Pid); got != want {
		t.Errorf("pid of the program = %s, pid of the command = %s, want them equal", got, want)
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("the command ended without an error after its context was cancelled")
	}
}

func TestListenPacket(t *testing.T) {
	h := newHost(t)
	server, err := h.ListenPacket(t.Context(), "udp", "127.0.0.1:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := h.Dial(t.Context(), "udp", "127.0.0.1:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, from, err := server.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(buf[:n]); got != "hello" {
		t.Errorf("server got %q, want hello", got)
	}
	if got := from.(*net.UDPAddr).Port; got != client.LocalAddr().(*net.UDPAddr).Port {
		t.Errorf("server saw port %d, client has %v", got, client.LocalAddr())
	}
}

func TestDialWantsLiteralAddress(t *testing.T) {
	h := newHost(t)
	if _, err := h.Dial(t.Context(), "tcp", "localhost:80"); err == nil {
		t.Error("Dial of a name = nil, want an error")
	}
}
