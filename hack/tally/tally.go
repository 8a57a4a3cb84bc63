package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// slow is how long a top-level test takes before its end is worth a line.
const slow = 5 * time.Second

// Total is the outcome of some test runs. Subtests count like tests.
type Total struct {
	Passed, Failed, Skipped int
}

// String returns the closing line.
func (t Total) String() string {
	s := fmt.Sprintf("%d passed, %d failed", t.Passed, t.Failed)
	if t.Skipped > 0 {
		s += fmt.Sprintf(", %d skipped", t.Skipped)
	}
	return s
}

// Plus returns the sum of two totals.
func (t Total) Plus(o Total) Total {
	return Total{t.Passed + o.Passed, t.Failed + o.Failed, t.Skipped + o.Skipped}
}

// ParseTotal reads a closing line.
func ParseTotal(s string) (Total, error) {
	var t Total
	s = strings.TrimSpace(s)
	if _, err := fmt.Sscanf(s, "%d passed, %d failed, %d skipped", &t.Passed, &t.Failed, &t.Skipped); err != nil {
		t.Skipped = 0
		if _, err := fmt.Sscanf(s, "%d passed, %d failed", &t.Passed, &t.Failed); err != nil {
			return Total{}, fmt.Errorf("not a closing line: %q", s)
		}
	}
	if t.String() != s {
		return Total{}, fmt.Errorf("not a closing line: %q", s)
	}
	return t, nil
}

// event is one line of go test -json, see go doc test2json and, for the build
// actions, go help buildjson.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// key names a test, or a whole package when test is empty.
type key struct{ pkg, test string }

// reader is the state of one run.
type reader struct {
	to    io.Writer
	total Total
	// output is what each test that has not ended has written so far.
	output map[key][]string
	// failed counts the failed tests of a package: a package that fails without one
	// did not build, or died outside its tests.
	failed map[string]int
}

// Read prints the events of one run to w and counts them. A line that is no event
// is passed on: the go command prints some of its own errors as plain text.
func Read(r io.Reader, w io.Writer) (Total, error) {
	run := reader{to: w, output: map[key][]string{}, failed: map[string]int{}}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			run.line(line)
		}
		if err == io.EOF {
			return run.total, nil
		}
		if err != nil {
			return run.total, fmt.Errorf("read test events: %w", err)
		}
	}
}

func (r *reader) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		fmt.Fprint(r.to, line)
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.to, e.Output)
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(k, e)
		} else {
			r.endTest(k, e)
		}
		delete(r.output, k)
	}
}

func (r *reader) endTest(k key, e event) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	switch e.Action {
	case "pass":
		r.total.Passed++
		if took >= slow && !strings.Contains(e.Test, "/") {
			fmt.Fprintf(r.to, "pass  %s (%v)\n", e.Test, took)
		}
	case "skip":
		r.total.Skipped++
		fmt.Fprintf(r.to, "skip  %s %s\n", e.Package, e.Test)
		r.flush(k)
	case "fail":
		r.total.Failed++
		r.failed[e.Package]++
		fmt.Fprintf(r.to, "FAIL  %s %s (%v)\n", e.Package, e.Test, took)
		r.flush(k)
	}
}

func (r *reader) endPackage(k key, e event) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	if e.Action != "fail" {
		// A package without tests has nothing to say.
		if e.Action == "pass" {
			fmt.Fprintf(r.to, "ok    %s (%v)\n", e.Package, took)
		}
		return
	}
	fmt.Fprintf(r.to, "FAIL  %s (%v)\n", e.Package, took)
	if r.failed[e.Package] == 0 {
		r.total.Failed++
		// The tests that had begun when it died hold the reason in their output.
		for other := range r.output {
			if other.pkg == k.pkg && other.test != "" {
				r.flush(other)
			}
		}
	}
	r.flush(k)
}

// flush prints what a test wrote.
func (r *reader) flush(k key) {
	for _, text := range r.output[k] {
		fmt.Fprint(r.to, "      ", text)
	}
}
