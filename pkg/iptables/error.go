package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// ErrFamilyUnsupported says that this host cannot do NAT for an IP family: its
// programs are not installed, or the kernel has no nat table for it.
var ErrFamilyUnsupported = errors.New("no nat table for this IP family")

// The exit statuses of iptables(8) that decide something. The text beside them
// differs by version and backend, and at times misleads, so nothing is decided by it.
const (
	exitNotFound    = 1 // no such chain or rule, or it is there already
	exitUnsupported = 3 // no such table in this kernel
	exitBusy        = 4 // lock held, not permitted; on nft also: the kernel refused a line
)

// CommandError says that a program could not be run, or ran and failed.
type CommandError struct {
	// Command is the program with its arguments.
	Command string
	// Status is the exit status; -1 if the program did not start or was killed.
	Status int
	// Stderr is what the program said, trimmed and cut to a few kilobytes.
	Stderr string
	// Err is the error that running it gave.
	Err error
}

// Error implements error.
func (e *CommandError) Error() string {
	if e.Status < 0 {
		return fmt.Sprintf("run %s: %v", e.Command, e.Err)
	}
	if e.Stderr == "" {
		return fmt.Sprintf("run %s: exit status %d", e.Command, e.Status)
	}
	return fmt.Sprintf("run %s: exit status %d: %s", e.Command, e.Status, oneLine(e.Stderr))
}

// Unwrap returns the error that running the program gave.
func (e *CommandError) Unwrap() error { return e.Err }

// ExitStatus returns Status. go-iptables' errors have the same method.
func (e *CommandError) ExitStatus() int { return e.Status }

// RestoreError says that iptables-restore refused its input. Nothing of the table
// in which the refused line stands was applied; tables before it were.
type RestoreError struct {
	*CommandError
	// Line is the number of the input line that the program blames, from 1; 0 if
	// it blames none. The legacy backend blames the COMMIT line for whatever the
	// kernel refuses, the nft backend for a jump to a chain that does not exist.
	Line int
	// Text is that line, empty if there is none of that number.
	Text string
	// around is what Excerpt returns.
	around string
}

// newRestoreError finds the line of the input that a failed restore blames.
func newRestoreError(failed *CommandError, input []byte) *RestoreError {
	e := &RestoreError{CommandError: failed, Line: failedLine(failed.Stderr)}
	if e.Line > 0 {
		e.Text, e.around = excerpt(input, e.Line)
	}
	return e
}

// Error names the failing line only: the whole input can be many megabytes.
func (e *RestoreError) Error() string {
	if e.Text == "" {
		return e.CommandError.Error()
	}
	return fmt.Sprintf("%v (input line %d: %s)", e.CommandError, e.Line, oneLine(e.Text))
}

// Excerpt returns the input from three lines before to three lines after Line, each
// with its number, the blamed one marked; nothing if no line is blamed.
func (e *RestoreError) Excerpt() string { return e.around }

// Unwrap returns the CommandError within.
func (e *RestoreError) Unwrap() error { return e.CommandError }

// IsBusy reports whether err says that the tables could not be got at for now: the
// lock was held, or a resource or permission was lacking. It says nothing about
// what is in them.
func IsBusy(err error) bool {
	if refused, ok := errors.AsType[*RestoreError](err); ok && refused.Line > 0 {
		// The nft backend uses the same status when the kernel refuses a line.
		return false
	}
	return exitStatus(err) == exitBusy
}

// IsRefused reports whether err says that restore input was refused for what is in it,
// rather than that nothing can be written for now.
func IsRefused(err error) bool {
	_, refused := errors.AsType[*RestoreError](err)
	return refused && !IsBusy(err)
}

// exitStatus returns the exit status of the program that failed, -1 if err does
// not come from one.
func exitStatus(err error) int {
	var exited interface {
		error
		ExitStatus() int
	}
	if errors.As(err, &exited) {
		return exited.ExitStatus()
	}
	return -1
}

// blames are the shapes in which the programs say which input line they refused,
// as seen with versions 1.8.x of both backends.
var blames = []*regexp.Regexp{
	// iptables-restore: line 4 failed
	// iptables-nft-restore: line 2 failed: No chain/target/match by that name.
	regexp.MustCompile(`(?m)^(?:[^\s:]+: )?line (\d+) failed\b`),
	// line 5: CHAIN_DEL failed (Device or resource busy): chain KUBE-B
	regexp.MustCompile(`(?m)^line (\d+): [A-Z_]+ failed\b`),
	// Error occurred at line: 3
	regexp.MustCompile(`(?m)^Error occurred at line: (\d+)$`),
	// iptables-restore: COMMIT expected at line 3
	regexp.MustCompile(`(?m)\bCOMMIT expected at line (\d+)$`),
	// iptables-restore v1.8.9 (legacy): Can't set policy `ACCEPT' on `KUBE-A' line 2: Bad built-in chain name
	regexp.MustCompile(`(?m)' line (\d+): [A-Z]`),
}

// failedLine returns the number of the input line that stderr blames, 0 if none.
func failedLine(stderr string) int {
	for _, blame := range blames {
		if found := blame.FindStringSubmatch(stderr); found != nil {
			if n, err := strconv.Atoi(found[1]); err == nil {
				return n
			}
		}
	}
	return 0
}

// excerpt returns line n of the input, and the lines around it with their numbers.
func excerpt(input []byte, n int) (text, around string) {
	const context = 3
	var b strings.Builder
	number := 0
	for line := range bytes.Lines(input) {
		number++
		if number < n-context {
			continue
		}
		if number > n+context {
			break
		}
		line = bytes.TrimRight(line, "\n")
		mark := ' '
		if number == n {
			mark, text = '>', string(line)
		}
		fmt.Fprintf(&b, "%c%6d  %s\n", mark, number, line)
	}
	return text, b.String()
}

// oneLine puts text of several lines on one, without the blank ones.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// clip cuts the middle out of a long text: what matters in a program's complaints
// stands at the beginning or at the end.
func clip(s string) string {
	const half = 2048
	if len(s) <= 2*half {
		return s
	}
	return strings.ToValidUTF8(s[:half]+"\n...\n"+s[len(s)-half:], "")
}
