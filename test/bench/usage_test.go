package main

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, text string
		want       time.Duration
		fails      bool
	}{
		{name: "all four", text: "12 (a) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 0 0", want: 260 * time.Millisecond},
		{name: "a parenthesis in the name", text: "12 (a) b (c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1", want: 260 * time.Millisecond},
		{name: "cut off", text: "12 (a) S 1 12", fails: true},
		{name: "no number", text: "12 (a) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 x 8 20 0 1", fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat([]byte(tt.text))
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("got %v, %v; want %v, failure %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	got := parseStatus("Name:\tVmRSS\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t7\n")
	if want := (memory{resident: 1 << 20, peak: 2 << 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestOwnUsage reads the kernel's real files.
func TestOwnUsage(t *testing.T) {
	m, err := memoryOf(os.Getpid())
	if err != nil || m.resident < 1<<20 || m.peak < 1<<20 {
		t.Errorf("memory: got %+v, %v, want at least a megabyte", m, err)
	}
	if _, err := cpuTime(os.Getpid()); err != nil {
		t.Error(err)
	}
	if busy, err := busyTime(); err != nil || busy <= 0 {
		t.Errorf("the machine's CPU time: got %v, %v", busy, err)
	}
}
