package iptables

import (
	"errors"
	"slices"
	"testing"
)

func TestNarrow(t *testing.T) {
	refusal := &RestoreError{CommandError: &CommandError{Command: "iptables-restore", Status: 1}}
	busy := &RestoreError{CommandError: &CommandError{Command: "iptables-restore", Status: 4}}
	killed := &CommandError{Command: "iptables-restore", Status: -1, Err: errors.New("signal: killed")}
	tests := []struct {
		name  string
		items int
		// bad are the items that are refused. From the run stopAt on, 0 for never, it is
		// stop that happens.
		bad    []int
		stopAt int
		stop   error
		want   []int
		runs   int
	}{
		{name: "nothing", items: 0, runs: 0},
		{name: "all accepted", items: 64, runs: 1},
		{name: "one of one", items: 1, bad: []int{0}, want: []int{0}, runs: 2},
		{name: "one of 64", items: 64, bad: []int{63}, want: []int{63}, runs: 1 + 6*2 + 1},
		{name: "two of three", items: 3, bad: []int{0, 2}, want: []int{0, 2}, runs: 1 + 2 + 1 + 1 + 2},
		{name: "locked", items: 64, bad: []int{0}, stopAt: 1, stop: busy, runs: 1},
		{name: "locked after the first", items: 64, bad: []int{0}, stopAt: 2, stop: busy, runs: 2},
		{name: "killed after the first", items: 64, bad: []int{0}, stopAt: 2, stop: killed, runs: 2},
		{name: "locked before the second time", items: 1, bad: []int{0}, stopAt: 2, stop: busy, runs: 2},
		{name: "locked after one is found", items: 64, bad: []int{0, 63}, stopAt: 9, stop: busy, want: []int{0}, runs: 9},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			runs := 0
			refused, err := Narrow(numbers(test.items), func(items []int) error {
				runs++
				if test.stopAt > 0 && runs >= test.stopAt {
					return test.stop
				}
				if slices.ContainsFunc(items, func(i int) bool { return slices.Contains(test.bad, i) }) {
					return refusal
				}
				return nil
			})
			var got []int
			for _, culprit := range refused {
				got = append(got, culprit.Item)
				if !errors.Is(culprit.Err, refusal) {
					t.Errorf("%d is refused because of %v", culprit.Item, culprit.Err)
				}
			}
			if !slices.Equal(got, test.want) || !errors.Is(err, test.stop) {
				t.Errorf("got %v, %v; want %v, %v", got, err, test.want, test.stop)
			}
			if runs != test.runs {
				t.Errorf("got %d runs, want %d", runs, test.runs)
			}
		})
	}
}

// What is refused only once is not to blame.
func TestNarrowBelievesTheSecondTime(t *testing.T) {
	refusal := &RestoreError{CommandError: &CommandError{Command: "iptables-restore", Status: 1}}
	for once := range 4 {
		runs := 0
		refused, err := Narrow(numbers(4), func(items []int) error {
			runs++
			if runs <= once {
				return refusal
			}
			return nil
		})
		if len(refused) > 0 || err != nil {
			t.Errorf("refused %d times: got %v, %v", once, refused, err)
		}
	}
}
