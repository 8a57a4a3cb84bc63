package demo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// grace is how long a process has to end after SIGTERM, before SIGKILL.
const grace = 5 * time.Second

// processID names one process for good: a pid alone may be given to another one.
type processID struct {
	PID int `json:"pid"`
	// Start is in clock ticks since boot.
	Start uint64 `json:"start"`
}

// identify names a process that is running or has not been waited for.
func identify(pid int) (processID, error) {
	start, err := lab.StartTime(pid)
	return processID{PID: pid, Start: start}, err
}

// lives reports whether the process is still there.
func (id processID) lives() bool {
	start, err := lab.StartTime(id.PID)
	return err == nil && start == id.Start
}

// end ends the process and waits until it has ended; one that does not listen to
// SIGTERM is killed after grace. One that is gone is no error.
func (id processID) end(grace time.Duration) error {
	// The file descriptor holds on to this very process, so that the look at the start
	// time and the signal cannot meet different ones.
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end process %d: %w", id.PID, err)
	}
	defer unix.Close(fd)
	if !id.lives() {
		return nil
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d: %w", id.PID, err)
		}
		if ended, err := awaitEnd(fd, grace); ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end", id.PID)
}

// awaitEnd waits until the process of a pidfd has ended.
func awaitEnd(pidfd int, timeout time.Duration) (bool, error) {
	deadline := time.Now().Add(timeout)
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// process is a child of this process.
type process struct {
	id  processID
	log string
	// done is closed when the process has ended.
	done chan struct{}
}

// start starts a command that outlives this process and its terminal, with its
// output in a log file.
func start(cmd *exec.Cmd, log string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr, cmd.Dir = file, file, "/"
	// A session of its own: Ctrl-C is meant for the demo, which ends its processes in
	// order, and closing the terminal must not end what is to be kept.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{log: log, done: make(chan struct{})}
	// Before the wait, while a process that has already ended can still be identified.
	p.id, err = identify(cmd.Process.Pid)
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // what it said is in the log
	}()
	return p, err
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// lastWords is the last line of the process's log.
func (p *process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return "it said nothing"
	}
	return lastLine(string(text))
}
