package demo

import (
	"fmt"
	"strings"
	"testing"
)

func TestReportChain(t *testing.T) {
	short, err := parseChain(listing)
	if err != nil {
		t.Fatal(err)
	}
	long := short
	for i := range longChain {
		long.rules = append(long.rules, rule{text: fmt.Sprintf("    0     0 KUBE-SVC-%d", i), packets: "0"})
	}
	for _, tt := range []struct {
		name  string
		chain chain
		want  []string
		not   string
	}{
		{"short: whole", short, []string{"> " + short.rules[1].text, "  " + short.rules[0].text}, "more rules"},
		{"long: only what packets met", long, []string{"> " + short.rules[1].text, fmt.Sprintf("(%d more rules)", longChain+1)}, short.rules[0].text},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := &report{out: &out}
			r.chain(tt.chain)
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want+"\n") {
					t.Errorf("the report lacks the line %q:\n%s", want, out.String())
				}
			}
			if strings.Contains(out.String(), tt.not) {
				t.Errorf("the report has %q:\n%s", tt.not, out.String())
			}
		})
	}
}

func TestReportCommandCanBePasted(t *testing.T) {
	var out strings.Builder
	(&report{out: &out}).command("shell", "curl", curlArgs("http://10.96.0.80/", 1000)...)
	if got, want := out.String(), "  shell $ curl -sS --connect-timeout 2 'http://10.96.0.80/?[1-1000]'\n"; got != want {
		t.Errorf("command = %q, want %q", got, want)
	}
}

func TestReportBold(t *testing.T) {
	for _, bold := range []bool{true, false} {
		var out strings.Builder
		(&report{out: &out, bold: bold}).heading("Something")
		if got := strings.Contains(out.String(), "\x1b["); got != bold {
			t.Errorf("bold = %v: the heading is %q", bold, out.String())
		}
	}
}
