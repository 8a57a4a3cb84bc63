package iptables

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"
)

// run runs a program to its end with the given standard input, and returns its
// standard output. Every failure is a *CommandError.
func run(ctx context.Context, input []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	if input != nil {
		cmd.Stdin = bytes.NewReader(input)
	}
	// A child of the program's, such as modprobe, that keeps the pipes open must not
	// hold up the caller forever. On a busy host a second was once too short for the
	// program's own last words.
	cmd.WaitDelay = 30 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, newCommandError(ctx, cmd.Args, stderr.String(), err)
	}
	return stdout.Bytes(), nil
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
