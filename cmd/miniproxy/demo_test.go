package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/demo"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// TestMain lets the test binary be the command too: the demo starts itself as agent
// and as pod.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
	}
	os.Exit(m.Run())
}

// self is the path of the command.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// left lists what stands of the demo that a process has built: namespaces, files,
// and processes that run the binary.
func left(t *testing.T, pid int, binary string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/run/netns/mpdemo-%d-*", "/run/miniproxy-demo/mpdemo-%d-*"} {
		files, err := filepath.Glob(fmt.Sprintf(pattern, pid))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range exes {
		if exe == fmt.Sprintf("/proc/%d/exe", os.Getpid()) {
			continue
		}
		if target, err := os.Readlink(exe); err == nil && target == binary {
			found = append(found, exe)
		}
	}
	return found
}

func TestDemo(t *testing.T) {
	labtest.Require(t)
	binary := self(t)
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, "demo", "--iptables-backend="+backend)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("demo: %v\n%s", err, out)
			}
			for _, want := range []string{
				"1. A cluster of network namespaces",
				"The pods saw: 10.244.1.50 (1000 times)",
				"2. From a pod to a cluster IP",
				"statistic mode random probability 0.333",
				"3. From outside to a node port",
				"MASQUERADE",
				"4. A pod is deleted",
				"5. Somebody flushes the nat table",
				"The agent noticed",
			} {
				if !strings.Contains(string(out), want) {
					t.Errorf("the demo does not say %q:\n%s", want, out)
				}
			}
			if strings.Contains(string(out), "\x1b") {
				t.Error("the demo writes colours to what is no terminal")
			}
			if found := left(t, cmd.Process.Pid, binary); len(found) > 0 {
				t.Errorf("the demo left %v", found)
			}
		})
	}
}

// TestDemoIsInterrupted ends the demo in the middle, in each way that a user can.
func TestDemoIsInterrupted(t *testing.T) {
	labtest.Require(t)
	binary := self(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd, out := startDemo(t, binary)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(out)
			if err != nil {
				t.Fatal(err)
			}
			if got := exitCode(cmd.Wait()); got != exitFailed {
				t.Errorf("exit code = %d, want %d\n%s", got, exitFailed, rest)
			}
			if want := "the demo was stopped"; !strings.Contains(string(rest), want) {
				t.Errorf("the demo does not say %q:\n%s", want, rest)
			}
			if found := left(t, cmd.Process.Pid, binary); len(found) > 0 {
				t.Errorf("the demo left %v", found)
			}
		})
	}
	t.Run("reader leaves", func(t *testing.T) {
		cmd, out := startDemo(t, binary)
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the demo went on without anybody to read it")
		}
		if found := left(t, cmd.Process.Pid, binary); len(found) > 0 {
			t.Errorf("the demo left %v", found)
		}
	})
	t.Run("killed, then cleaned up", func(t *testing.T) {
		cmd, _ := startDemo(t, binary)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the demo ended well after SIGKILL")
		}
		if len(left(t, cmd.Process.Pid, binary)) == 0 {
			t.Error("nothing was left to clean up: the test proves nothing")
		}
		cleanUpDemo(t, binary, cmd.Process.Pid)
		if found := left(t, cmd.Process.Pid, binary); len(found) > 0 {
			t.Errorf("the cleanup left %v", found)
		}
	})
}

// panicky is a writer that fails in the worst way, in the middle of the demo.
type panicky struct{}

func (panicky) Write(text []byte) (int, error) {
	if strings.Contains(string(text), "$ curl") {
		panic("of the test")
	}
	return len(text), nil
}

func TestDemoPanics(t *testing.T) {
	labtest.Require(t)
	func() {
		defer func() {
			if got := recover(); got != "of the test" {
				t.Errorf("recovered %v, want the test's own panic", got)
			}
		}()
		err := demo.Run(t.Context(), demo.Options{Out: panicky{}})
		t.Errorf("demo = %v, want a panic", err)
	}()
	if found := left(t, os.Getpid(), self(t)); len(found) > 0 {
		t.Errorf("the demo left %v", found)
	}
}

func TestDemoIsKept(t *testing.T) {
	labtest.Require(t)
	binary := self(t)
	cmd := exec.CommandContext(t.Context(), binary, "demo", "--keep")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, text)
	}
	t.Cleanup(func() { cleanUpDemo(t, binary, cmd.Process.Pid) })

	// Every command that it prints must work as it stands.
	commands := regexp.MustCompile(`(?m)^  (ip netns exec .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) < 5 {
		t.Fatalf("%d commands to look around, want at least 5:\n%s", len(commands), text)
	}
	for _, command := range commands {
		if out, err := exec.Command("sh", "-c", command[1]).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command[1], err, out)
		}
	}

	cleanUpDemo(t, binary, cmd.Process.Pid)
	if found := left(t, cmd.Process.Pid, binary); len(found) > 0 {
		t.Errorf("the cleanup left %v", found)
	}
}

func TestDemoWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"demo", "now"}, {"demo", "--no-such-flag"}, {"demo", "--iptables-backend=ipvs"}} {
		if got := execute(t.Context(), args, streams{io.Discard, io.Discard}); got != exitUsage {
			t.Errorf("exit code of %q = %d, want %d", args, got, exitUsage)
		}
	}
}

// startDemo starts the demo and reads what it says until it asks its first question.
func startDemo(t *testing.T, binary string) (*exec.Cmd, io.ReadCloser) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "demo")
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "$ curl") {
			return cmd, reader
		}
	}
	t.Fatalf("the demo ended early: %v", cmd.Wait())
	return nil, nil
}

// cleanUpDemo cleans up after the demo of one process, and no other.
func cleanUpDemo(t *testing.T, binary string, pid int) {
	t.Helper()
	records, err := filepath.Glob(fmt.Sprintf("/run/miniproxy-demo/mpdemo-%d-*.json", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records {
		name := strings.TrimSuffix(filepath.Base(record), ".json")
		if out, err := exec.Command(binary, "demo", "--cleanup", name).CombinedOutput(); err != nil {
			t.Errorf("demo --cleanup %s: %v\n%s", name, err, out)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return exitOK
}
