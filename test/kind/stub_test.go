// Package kind tests what this project gives to kind: the cluster's configuration,
// judged by kind's own code, and the script that drives kind, kubectl and docker. No
// Docker engine is needed: the commands that would talk to one are stubs that write
// down how they were called.
package kind

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The environment that turns this test program into a stub.
const (
	envLog    = "MINIPROXY_STUB_LOG"    // where calls are written down, one JSON line each
	envAnswer = "MINIPROXY_STUB_ANSWER" // which set of answers to give
)

func TestMain(m *testing.M) {
	if log := os.Getenv(envLog); log != "" {
		os.Exit(stub(log))
	}
	os.Exit(m.Run())
}

// call is one call of a stub.
type call struct {
	Name  string
	Args  []string
	Stdin string
}

// stub writes the call down and answers it.
func stub(log string) int {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	var stdin []byte
	// Only a command that was told to reads its input; any other would wait for the
	// end of what the test program was started with.
	if slices.Contains(args, "-i") || strings.HasSuffix(strings.Join(args, " "), "-f -") {
		stdin, _ = io.ReadAll(os.Stdin)
	}
	c := call{name, args, string(stdin)}
	before, err := readLog(log)
	if err == nil {
		err = writeDown(log, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	output, status := answers[os.Getenv(envAnswer)](c, before)
	// kind takes an empty line for the name of a node.
	if output != "" {
		fmt.Println(output)
	}
	return status
}

// writeDown appends the call to the log, in one piece: kind starts its containers
// side by side.
func writeDown(log string, c call) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(line, '\n')); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// readLog returns the calls of a log, none when there is no log yet.
func readLog(log string) ([]call, error) {
	text, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var calls []call
	for line := range bytes.Lines(text) {
		var c call
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("read %s: %w in %q", log, err, line)
		}
		calls = append(calls, c)
	}
	return calls, nil
}

// stubs are the commands that a test put in front of the PATH.
type stubs struct{ log string }

// newStubs replaces the named commands for the time of the test.
func newStubs(t *testing.T, names ...string) stubs {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := stubs{log: filepath.Join(dir, "log")}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv(envLog, s.log)
	t.Setenv(envAnswer, "")
	// kind edits the kubeconfig of a cluster that it fails to create. That must not be
	// the one of the person who runs the tests.
	t.Setenv("KUBECONFIG", filepath.Join(dir, "kubeconfig"))
	return s
}

// calls returns how the stubs were called so far.
func (s stubs) calls(t *testing.T) []call {
	t.Helper()
	calls, err := readLog(s.log)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}
