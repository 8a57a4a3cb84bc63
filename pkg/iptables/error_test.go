package iptables

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// restoreFailures are what iptables-restore 1.8.9 printed and exited with for a
// faulty input, on both backends.
var restoreFailures = []struct {
	name   string
	status int
	stderr string
	line   int
	busy   bool
}{
	// Shape 1: legacy.
	{
		name:   "legacy append to a missing chain",
		status: 1,
		stderr: "iptables-restore: line 2 failed\n",
		line:   2,
	},
	{
		name:   "legacy kernel refusal, blamed on COMMIT",
		status: 1,
		stderr: "ip6tables-restore: line 4 failed\n",
		line:   4,
	},
	// Shape 2: nft with a reason.
	{
		name:   "nft append to a missing chain",
		status: 1,
		stderr: "iptables-nft-restore: line 2 failed: No chain/target/match by that name.\n",
		line:   2,
	},
	{
		name:   "nft delete of a missing rule",
		status: 1,
		stderr: "iptables-nft-restore: line 2 failed: Bad rule (does a matching rule exist in that chain?).\n",
		line:   2,
	},
	{
		name:   "nft with a warning before it",
		status: 1,
		stderr: "# Warning: iptables-legacy tables present, use iptables-legacy-restore to see them\niptables-nft-restore: line 5 failed: No chain/target/match by that name.\n",
		line:   5,
	},
	// Shape 3: nft, refused by the kernel.
	{
		name:   "nft delete of a chain in use",
		status: 4,
		stderr: "iptables-nft-restore v1.8.9 (nf_tables): \nline 5: CHAIN_DEL failed (Device or resource busy): chain KUBE-B\n",
		line:   5,
	},
	{
		name:   "nft MASQUERADE in the filter table",
		status: 4,
		stderr: "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Invalid argument): rule in chain KUBE-A\n",
		line:   3,
	},
	{
		name:   "nft loop",
		status: 4,
		stderr: "ip6tables-nft-restore v1.8.9 (nf_tables): \nline 6: RULE_APPEND failed (Too many links): rule in chain KUBE-B\n",
		line:   6,
	},
	// Shape 4: refused by the parser.
	{
		name:   "nft jump to a missing chain, blamed on COMMIT",
		status: 2,
		stderr: "iptables-nft-restore v1.8.9 (nf_tables): Chain 'KUBE-MISSING' does not exist\nError occurred at line: 4\nTry `iptables-nft-restore -h' or 'iptables-nft-restore --help' for more information.\n",
		line:   4,
	},
	{
		name:   "legacy jump to a missing chain",
		status: 2,
		stderr: "iptables-restore v1.8.9 (legacy): Couldn't load target `KUBE-MISSING':No such file or directory\n\nError occurred at line: 3\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
		line:   3,
	},
	{
		name:   "empty source",
		status: 2,
		stderr: "Bad argument `RETURN'\nError occurred at line: 3\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
		line:   3,
	},
	{
		name:   "nft unknown table",
		status: 2,
		stderr: "iptables-nft-restore v1.8.9 (nf_tables): iptables-nft-restore: line 1 table name 'natty' invalid\nError occurred at line: 1\nTry `iptables-nft-restore -h' or 'iptables-nft-restore --help' for more information.\n",
		line:   1,
	},
	// Shape 5: the input is cut off.
	{
		name:   "no COMMIT",
		status: 1,
		stderr: "iptables-restore: COMMIT expected at line 3\n",
		line:   3,
	},
	// And one more.
	{
		name:   "legacy policy of a chain that is not built in",
		status: 1,
		stderr: "iptables-restore v1.8.9 (legacy): Can't set policy `ACCEPT' on `KUBE-A' line 2: Bad built-in chain name\n",
		line:   2,
	},
	// No line is to blame.
	{
		name:   "B-43: legacy lock held",
		status: 4,
		stderr: "Can't lock /run/xtables.lock: Resource temporarily unavailable\nAnother app is currently holding the xtables lock. Stopped waiting after 1s.\n",
		busy:   true,
	},
	{
		name:   "legacy lock file not to be opened",
		status: 4,
		stderr: "Fatal: can't open lock file /run/xtables.lock: Permission denied\n",
		busy:   true,
	},
	{
		name:   "nft not permitted",
		status: 4,
		stderr: "iptables-nft-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)\n",
		busy:   true,
	},
	{
		name:   "silence",
		status: 3,
	},
}

func TestFailedLine(t *testing.T) {
	for _, test := range restoreFailures {
		t.Run(test.name, func(t *testing.T) {
			if got := failedLine(test.stderr); got != test.line {
				t.Errorf("got line %d, want %d, from:\n%s", got, test.line, test.stderr)
			}
		})
	}
}

// numberedInput is restore input of n lines, of which each says its number.
func numberedInput(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "input %d\n", i+1)
	}
	return []byte(b.String())
}

func TestRestoreError(t *testing.T) {
	for _, test := range restoreFailures {
		t.Run(test.name, func(t *testing.T) {
			failed := &CommandError{Command: "iptables-restore -w 5", Status: test.status, Stderr: strings.TrimSpace(test.stderr)}
			err := fmt.Errorf("apply: %w", newRestoreError(failed, numberedInput(9)))
			if got := IsBusy(err); got != test.busy {
				t.Errorf("IsBusy: got %t, want %t", got, test.busy)
			}
			text := err.Error()
			if strings.Contains(text, "\n") || strings.Contains(text, "; ;") {
				t.Errorf("not one clean line: %q", text)
			}
			if !strings.Contains(text, fmt.Sprintf("exit status %d", test.status)) {
				t.Errorf("no exit status in %q", text)
			}
			blamed := fmt.Sprintf("(input line %d: input %[1]d)", test.line)
			if got, want := strings.Contains(text, blamed), test.line > 0; got != want {
				t.Errorf("%q in %q: got %t, want %t", blamed, text, got, want)
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	tests := []struct {
		name        string
		input       []byte
		line        int
		text, lines string
	}{
		{
			name:  "in the middle",
			input: numberedInput(20),
			line:  10,
			text:  "input 10",
			lines: "7,8,9,>10,11,12,13",
		},
		{
			name:  "first",
			input: numberedInput(20),
			line:  1,
			text:  "input 1",
			lines: ">1,2,3,4",
		},
		{
			name:  "last",
			input: numberedInput(5),
			line:  5,
			text:  "input 5",
			lines: "2,3,4,>5",
		},
		{
			name:  "just past the end, where COMMIT was expected",
			input: numberedInput(2),
			line:  3,
			lines: "1,2",
		},
		{
			name:  "far past the end",
			input: numberedInput(2),
			line:  1 << 40,
		},
		{
			name: "no input",
			line: 1,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text, around := excerpt(test.input, test.line)
			if text != test.text {
				t.Errorf("got line %q, want %q", text, test.text)
			}
			var got []string
			for line := range strings.Lines(around) {
				mark, rest := strings.TrimSpace(line[:1]), strings.Fields(line[1:])
				got = append(got, mark+rest[0])
				if want := "input " + rest[0]; strings.Join(rest[1:], " ") != want {
					t.Errorf("got line %q, want %q in it", line, want)
				}
			}
			if strings.Join(got, ",") != test.lines {
				t.Errorf("got lines %v, want %s", got, test.lines)
			}
		})
	}
}

// B-41: what a failure leaves in the log does not grow with the input or with what
// the program says.
func TestErrorTextIsBounded(t *testing.T) {
	stderr := "iptables-nft-restore v1.8.9 (nf_tables): \n" + strings.Repeat("line 7: RULE_APPEND failed (Invalid argument): rule in chain KUBE-A\n", 100_000)
	failed := newCommandError(t.Context(), []string{"iptables-restore"}, stderr, errors.New("failed"))
	err := newRestoreError(failed, numberedInput(1_000_000))
	if err.Line != 7 {
		t.Errorf("got line %d, want 7", err.Line)
	}
	if got := len(err.Error()); got > 5000 {
		t.Errorf("got an error of %d bytes", got)
	}
}

func FuzzParseRestoreError(f *testing.F) {
	for _, test := range restoreFailures {
		f.Add(test.stderr, "*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n")
	}
	f.Add("line 99999999999999999999 failed", "")
	f.Fuzz(func(t *testing.T, stderr, input string) {
		failed := newCommandError(t.Context(), []string{"iptables-restore"}, stderr, errors.New("failed"))
		err := newRestoreError(failed, []byte(input))
		if err.Line < 0 {
			t.Errorf("got line %d from %q", err.Line, stderr)
		}
		if err.Line == 0 && (err.Text != "" || err.Excerpt() != "") {
			t.Errorf("no line is blamed, but there is an excerpt: %q", err.Excerpt())
		}
		if err.Text != "" && !strings.Contains(input, err.Text) {
			t.Errorf("blamed line %q is not of the input %q", err.Text, input)
		}
		if strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("not one line: %q", err)
		}
	})
}
