package iptables

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// A probe costs one run of a program as long as nothing is missing, and an error that
// is no refusal is no answer.
func TestProbeRuns(t *testing.T) {
	refused := &CommandError{Command: "iptables-restore", Status: 2, Stderr: "Error occurred at line: 3"}
	locked := &CommandError{Command: "iptables-restore", Status: 4, Stderr: "Another app is currently holding the xtables lock."}
	killed := &CommandError{Command: "iptables-restore", Status: -1, Err: errors.New("signal: killed")}
	tests := []struct {
		name string
		// fails says how an input fails.
		fails func(input string, run int) *CommandError
		// want are the missing features, wantErr says that nothing is known of any.
		want    []string
		wantErr bool
		runs    int
	}{
		{name: "all there", fails: func(string, int) *CommandError { return nil }, runs: 1},
		{name: "locked", fails: func(string, int) *CommandError { return locked }, wantErr: true, runs: 1},
		{name: "killed", fails: func(string, int) *CommandError { return killed }, wantErr: true, runs: 1},
		{
			name: "refuses everything",
			fails: func(string, int) *CommandError {
				return refused
			},
			wantErr: true,
			runs:    4, // all, its removal, none, its removal
		},
		{
			name: "refused once",
			fails: func(_ string, run int) *CommandError {
				if run == 1 {
					return refused
				}
				return nil
			},
			runs: 4, // all, its removal, none, all
		},
		{
			name: "locked halfway",
			fails: func(input string, run int) *CommandError {
				switch {
				case run > 3:
					return locked
				case strings.Contains(input, "recent"):
					return refused
				}
				return nil
			},
			wantErr: true,
			runs:    4,
		},
		{
			name: "one missing",
			fails: func(input string, _ int) *CommandError {
				if strings.Contains(input, "recent") {
					return refused
				}
				return nil
			},
			want: []string{"recent"},
			runs: 2 + 1 + 2 + 2 + 1 + 2 + 2 + 1, // all, none, all, first half, statistic, recent, recent again, second half
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			runs := 0
			r := NewWith(model.IPv4, NFT, Seams{Restore: "iptables-restore", Run: func(_ context.Context, input []byte, _ string, _ ...string) ([]byte, error) {
				runs++
				if err := test.fails(string(input), runs); err != nil {
					return nil, err
				}
				return nil, nil
			}})
			missing, err := r.Probe(t.Context(), known)
			if got := slices.Sorted(maps.Keys(missing)); !slices.Equal(got, test.want) || (err != nil) != test.wantErr {
				t.Errorf("got %v, %v; want %v, an error %t", missing, err, test.want, test.wantErr)
			}
			if runs != test.runs {
				t.Errorf("got %d runs, want %d", runs, test.runs)
			}
		})
	}
}
