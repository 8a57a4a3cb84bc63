package demo

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestEnd(t *testing.T) {
	tests := []struct {
		name   string
		script string
		grace  time.Duration
	}{
		{"one that ends when asked", "echo ready; read line", grace},
		{"one that does not listen", "trap '' TERM; echo ready; while :; do read line; done", 10 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stdin, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			defer writer.Close()
			cmd := exec.Command("sh", "-c", tt.script)
			cmd.Stdin = stdin
			p, err := start(cmd, filepath.Join(t.TempDir(), "log"))
			if err != nil {
				t.Fatal(err)
			}
			if !p.id.lives() || p.ended() {
				t.Fatal("the process is not running after start")
			}
			// The trap must be in place, or the test proves nothing.
			for p.lastWords() != "ready" {
				if p.ended() {
					t.Fatalf("the process ended by itself: %s", p.lastWords())
				}
			}

			stranger := processID{PID: p.id.PID, Start: p.id.Start + 1}
			if err := stranger.end(grace); err != nil {
				t.Errorf("end of another process with the same pid = %v, want nil", err)
			}
			if p.ended() || !p.id.lives() {
				t.Fatal("the process was ended in the place of another with the same pid")
			}

			if err := p.id.end(tt.grace); err != nil {
				t.Fatal(err)
			}
			<-p.done
			if p.id.lives() {
				t.Error("the process lives after end")
			}
			if err := p.id.end(tt.grace); err != nil {
				t.Errorf("end of a process that is gone = %v, want nil", err)
			}
		})
	}
}

func TestLastWords(t *testing.T) {
	p := &process{log: filepath.Join(t.TempDir(), "log")}
	for text, want := range map[string]string{
		"":                       "it said nothing",
		"\n":                     "it said nothing",
		"starting\ncannot run\n": "cannot run",
	} {
		if err := os.WriteFile(p.log, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := p.lastWords(); got != want {
			t.Errorf("last words of %q = %q, want %q", text, got, want)
		}
	}
}
