package iptables

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"time"
)

// lastWords is how long a program's output may go on after its end. A child of the
// program's, such as modprobe, that keeps the pipes open must not hold up the caller
// forever. On a busy host a second was once too short for the program's own last words.
const lastWords = 30 * time.Second

// run runs a program to its end with the given standard input, and returns its
// standard output. Every failure is a *CommandError.
func run(ctx context.Context, input []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	if input != nil {
		cmd.Stdin = bytes.NewReader(input)
	}
	cmd.WaitDelay = lastWords
	var stdout bytes.Buffer
	var stderr headTail
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, newCommandError(ctx, cmd.Args, stderr.String(), err)
	}
	return stdout.Bytes(), nil
}

// longestLine is more than the kernel lets a rule be.
const longestLine = 1 << 20

// lines runs a program and hands over its output as it comes.
func (s *Seams) lines(ctx context.Context, read func(*bufio.Scanner) error, program string, args ...string) error {
	if s.Stream == nil {
		output, err := s.Run(ctx, nil, program, args...)
		if err != nil {
			return err
		}
		return read(newLines(bytes.NewReader(output)))
	}
	return s.Stream(ctx, func(output io.Reader) error { return read(newLines(output)) }, program, args...)
}

func newLines(output io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, longestLine)
	return lines
}

// stream runs a program to its end, and hands over its output as it comes. A failure of
// the program is a *CommandError.
func stream(ctx context.Context, read func(io.Reader) error, program string, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = lastWords
	var stderr headTail
	cmd.Stderr = &stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return newCommandError(ctx, cmd.Args, "", err)
	}
	if err := read(output); err != nil {
		cancel() // it may have more to say than anybody reads
		_ = cmd.Wait()
		return err
	}
	if err := cmd.Wait(); err != nil {
		return newCommandError(ctx, cmd.Args, stderr.String(), err)
	}
	return nil
}

// newCommandError describes the failure err of a command.
func newCommandError(ctx context.Context, args []string, stderr string, err error) *CommandError {
	e := &CommandError{
		Command: strings.Join(args, " "),
		Status:  -1,
		Stderr:  clip(strings.TrimSpace(stderr)),
		Err:     err,
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		e.Status = exit.ExitCode()
	}
	if e.Status < 0 && ctx.Err() != nil {
		e.Err = context.Cause(ctx)
	}
	return e
}

// keptHead and keptTail are how much of what a program complains about is kept, in
// bytes. A restore of a large cluster can draw a warning for each of its lines.
const (
	keptHead = 32 << 10
	keptTail = 32 << 10
)

// headTail is a writer that keeps the beginning and the end of what it is given.
type headTail struct {
	head, tail []byte
	lost       bool
}

// Write implements io.Writer.
func (w *headTail) Write(p []byte) (int, error) {
	n := min(len(p), keptHead-len(w.head))
	w.head = append(w.head, p[:n]...)
	w.tail = append(w.tail, p[n:]...)
	if over := len(w.tail) - keptTail; over > 0 {
		w.tail, w.lost = append(w.tail[:0], w.tail[over:]...), true
	}
	return len(p), nil
}

// String returns what was kept, with a mark where something is missing.
func (w *headTail) String() string {
	if w.lost {
		return string(w.head) + "\n...\n" + string(w.tail)
	}
	return string(w.head) + string(w.tail)
}
