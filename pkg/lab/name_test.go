package lab

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestNewName(t *testing.T) {
	for _, prefix := range []string{"", "Demo", "a-b", "1st", "sixteenletterstoomany", "a*"} {
		if name, err := newName(prefix); err == nil {
			t.Errorf("newName(%q) = %q, want an error", prefix, name)
		}
	}
	one, err := newName("mptest")
	if err != nil {
		t.Fatal(err)
	}
	if !nameForm.MatchString(one) {
		t.Errorf("newName = %q, want the form %s", one, nameForm)
	}
	if m := netnsForm.FindStringSubmatch(one + "-pod-1"); m == nil || m[1] != one {
		t.Errorf("lab of namespace %s-pod-1 = %q, want %q", one, m, one)
	}
}

func TestOwnerLives(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	start, err := StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	name := labName("mptest", pid, start, 0xab)

	tests := []struct {
		name string
		lab  string
		want bool
	}{
		{"running process", name, true},
		{"same pid, started at another time", labName("mptest", pid, start+1, 0xab), false},
		{"no such process", labName("mptest", 1<<30, start, 0xab), false},
		{"not a lab's name", "something-else", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ownerLives(tt.lab); got != tt.want {
				t.Errorf("ownerLives(%q) = %v, want %v", tt.lab, got, tt.want)
			}
		})
	}

	if err := stdin.(io.Closer).Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if ownerLives(name) {
		t.Errorf("ownerLives(%q) = true after the process ended", name)
	}
}

func TestStale(t *testing.T) {
	if err := Available(); err != nil {
		if os.Getenv("MINIPROXY_REQUIRE_ROOT") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	mine, err := New("mpstale")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mine.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := mine.Host("a"); err != nil {
		t.Fatal(err)
	}
	// A process id above the kernel's limit belongs to nobody.
	left := labName("mpstale", 1<<30, 1, 1)
	for _, host := range []string{"a", "b"} {
		if err := runIP("netns", "add", left+"-"+host); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := Remove(left); err != nil {
			t.Error(err)
		}
	})

	stale, err := Stale("mpstale")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{left}; !slices.Equal(stale, want) {
		t.Errorf("Stale = %q, want %q", stale, want)
	}
	if err := Remove(left); err != nil {
		t.Fatal(err)
	}
	if stale, err = Stale("mpstale"); err != nil || len(stale) != 0 {
		t.Errorf("Stale after Remove = %q, %v, want none", stale, err)
	}
}

func TestStartTimeOfNobody(t *testing.T) {
	if start, err := StartTime(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("StartTime of no process = %d, %v, want os.ErrNotExist", start, err)
	}
}
