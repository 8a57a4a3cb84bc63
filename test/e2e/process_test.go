package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a running program whose output goes to a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; to be read after done is closed
}

// startProcess starts cmd and appends what it prints to the file log.
func startProcess(name, log string, cmd *exec.Cmd) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// signal sends sig to the process.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", sig, p.name, err)
	}
	return nil
}

// end sends sig, waits for the end and returns how it ended: nil is exit status 0.
// A process that outlives the patience is killed, and that is an error.
func (p *process) end(sig syscall.Signal) error {
	if err := p.signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		killed := p.signal(syscall.SIGKILL)
		<-p.done
		return errors.Join(fmt.Errorf("%s did not end on %v", p.name, sig), killed)
	}
}

// endedError says that a process ended that should still run. Nothing that is waited
// for comes true after it.
type endedError struct {
	name string
	how  error
	log  string
}

func (e *endedError) Error() string {
	return fmt.Sprintf("%s has ended (%v); its last words:\n%s", e.name, e.how, e.log)
}

// alive returns an *endedError when the process does not run any more.
func (p *process) alive() error {
	select {
	case <-p.done:
		return &endedError{name: p.name, how: p.err, log: tail(p.log, 0)}
	default:
		return nil
	}
}

// tailLimit is how much of a log a failure shows, in bytes.
const tailLimit = 32 << 10

// tail returns the end of a log, but nothing from before offset.
func tail(log string, offset int64) string {
	f, err := os.Open(log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size := fileSize(log); size-offset > tailLimit {
		offset = size - tailLimit
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// fileSize returns the size of a file, 0 for one that is not there.
func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}
