package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	tests := []struct {
		name   string
		events string
		want   Total
		// prints and silent are what the output must hold, and must not.
		prints, silent string
	}{
		{
			name: "passed tests are counted, subtests too, and their output is dropped",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`,
			want: Total{Passed: 2}, prints: "ok    p (500ms)", silent: "chatter",
		},
		{
			name: "a failed test prints what it wrote, and the package adds no failure",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			want: Total{Failed: 1}, prints: "got 1, want 2",
		},
		{
			name: "a package that does not build is one failure",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p.go:3:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`,
			want: Total{Failed: 1}, prints: "undefined: x",
		},
		{
			name: "a test binary that dies is one failure, with the output of the test it died in",
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}
`,
			want: Total{Failed: 1}, prints: "panic: no",
		},
		{
			name: "a skipped test is counted apart, and says why",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"no root\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"p"}
`,
			want: Total{Skipped: 1}, prints: "no root", silent: "ok",
		},
		{
			name:   "a slow test is named when it ends",
			events: `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":61.5}` + "\n",
			want:   Total{Passed: 1}, prints: "pass  TestA (1m1.5s)",
		},
		{
			name:   "text that is no event is passed on",
			events: "go: cannot find main module\n",
			prints: "go: cannot find main module",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			got, err := Read(strings.NewReader(tt.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("total: got %+v, want %+v", got, tt.want)
			}
			if !strings.Contains(out.String(), tt.prints) {
				t.Errorf("output: got %q, want %q in it", out.String(), tt.prints)
			}
			if tt.silent != "" && strings.Contains(out.String(), tt.silent) {
				t.Errorf("output: got %q, want no %q in it", out.String(), tt.silent)
			}
		})
	}
}

func TestParseTotal(t *testing.T) {
	for _, total := range []Total{{}, {Passed: 3}, {Passed: 3, Failed: 2, Skipped: 1}} {
		got, err := ParseTotal(total.String() + "\n")
		if err != nil || got != total {
			t.Errorf("ParseTotal(%q): got %+v, %v; want %+v", total, got, err, total)
		}
	}
	for _, bad := range []string{"", "ok", "3 passed", "3 passed, 2 failed, x", "3 passed, 2 failed."} {
		if got, err := ParseTotal(bad); err == nil {
			t.Errorf("ParseTotal(%q): got %+v, want an error", bad, got)
		}
	}
}

func TestRunExitStatus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", "3 passed, 0 failed\n")
	bad := write("bad", "1 passed, 2 failed, 4 skipped\n")
	none := write("none", "0 passed, 0 failed\n")
	tests := []struct {
		name string
		args []string
		want int
		last string
	}{
		{name: "all passed", args: []string{good, good}, want: 0, last: "6 passed, 0 failed"},
		{name: "one file holds failures", args: []string{good, bad}, want: 1, last: "4 passed, 2 failed, 4 skipped"},
		{name: "nothing ran", args: []string{none}, want: 1, last: "0 passed, 0 failed"},
		{name: "a file is missing", args: []string{good, filepath.Join(dir, "missing")}, want: 1},
		{name: "an unknown flag", args: []string{"-x"}, want: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(tt.args, strings.NewReader(""), &stdout, &stderr); got != tt.want {
				t.Errorf("status: got %d, want %d; stderr %q", got, tt.want, stderr.String())
			}
			if got := strings.TrimSpace(stdout.String()); got != tt.last {
				t.Errorf("stdout: got %q, want %q", got, tt.last)
			}
		})
	}
}
