// Package doctor looks at a node from all sides on which the rules depend, and says
// what it found and what to do about it. Each check is a function of facts; Machine
// reads those that are in files. It changes nothing.
package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	// OK is as it should be.
	OK Level = "ok"
	// Warn may be meant, or may do harm some day, or could not be looked at.
	Warn Level = "warn"
	// Bad keeps packets from where they should go.
	Bad Level = "bad"
)

// Finding is the outcome of one check.
type Finding struct {
	Level Level `json:"level"`
	// Check names what was looked at.
	Check string `json:"check"`
	// Found is what was found.
	Found string `json:"found"`
	// Do is what to do about it; empty if there is nothing to do.
	Do string `json:"do,omitempty"`
}

func ok(check, format string, args ...any) Finding {
	return Finding{Level: OK, Check: check, Found: fmt.Sprintf(format, args...)}
}

func warn(check, found, do string) Finding { return Finding{Warn, check, found, do} }

func bad(check, found, do string) Finding { return Finding{Bad, check, found, do} }

// ErrNeedsRoot says that something could not be looked at for want of rights.
var ErrNeedsRoot = errors.New("needs root")

// CouldNotLook is the finding of a check whose facts could not be had. That says
// nothing about what is to be found.
func CouldNotLook(check string, err error) Finding {
	if errors.Is(err, fs.ErrPermission) {
		err = ErrNeedsRoot
	}
	return warn(check, "could not look: "+oneLine(err.Error()), "")
}

// oneLine puts text of several lines on one.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Print prints findings one to a line, in columns.
func Print(out io.Writer, findings []Finding) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Check))
	}
	var text []byte
	for _, f := range findings {
		text = fmt.Appendf(text, "%-4s  %-*s  %s", f.Level, width, f.Check, oneLine(f.Found))
		if f.Do != "" {
			text = fmt.Appendf(text, "; to do: %s", oneLine(f.Do))
		}
		text = append(text, '\n')
	}
	_, err := out.Write(text)
	return err
}

// AnyBad reports whether one of the findings is bad.
func AnyBad(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Bad {
			return true
		}
	}
	return false
}
