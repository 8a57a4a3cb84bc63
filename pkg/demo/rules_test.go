package demo

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// listing is what iptables 1.8.9 prints of a Service's chain with three endpoints.
const listing = `Chain KUBE-SVC-CDGGSHYLG3RE2FKL (1 references)
 pkts bytes target     prot opt in     out     source               destination         
    0     0 KUBE-MARK-MASQ  6    --  *      *      !10.244.0.0/16        10.96.0.80           /* default/web:http cluster IP */ tcp dpt:80
  342 20520 KUBE-SEP-ELX6N4Z5RGB67TLC  0    --  *      *       0.0.0.0/0            0.0.0.0/0            /* default/web:http -> 10.244.1.11:8080 */ statistic mode random probability 0.33333333349
  325 19500 KUBE-SEP-BQ6CYJXGREWSNKJL  0    --  *      *       0.0.0.0/0            0.0.0.0/0            /* default/web:http -> 10.244.1.12:8080 */ statistic mode random probability 0.50000000000
 333K   20M KUBE-SEP-YYQCU4TCGTAHGAPQ  0    --  *      *       0.0.0.0/0            0.0.0.0/0            /* default/web:http -> 10.244.2.11:8080 */
`

func TestParseChain(t *testing.T) {
	c, err := parseChain(listing)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.title, "Chain KUBE-SVC-CDGGSHYLG3RE2FKL (1 references)"; got != want {
		t.Errorf("title = %q, want %q", got, want)
	}
	var got strings.Builder
	for _, r := range c.rules {
		fmt.Fprintf(&got, "%s %s %.3f\n", r.packets, r.target, r.probability)
	}
	want := `0 KUBE-MARK-MASQ 1.000
342 KUBE-SEP-ELX6N4Z5RGB67TLC 0.333
325 KUBE-SEP-BQ6CYJXGREWSNKJL 0.500
333K KUBE-SEP-YYQCU4TCGTAHGAPQ 1.000
`
	if got.String() != want {
		t.Errorf("rules = \n%swant\n%s", got.String(), want)
	}
	for _, text := range []string{"", "iptables: No chain/target/match by that name.\n", "Chain X\n pkts\n1 2"} {
		if c, err := parseChain(text); err == nil {
			t.Errorf("parseChain(%q) = %v, want an error", text, c)
		}
	}
}

func TestChoices(t *testing.T) {
	c, err := parseChain(listing)
	if err != nil {
		t.Fatal(err)
	}
	choices := c.choices()
	if len(choices) != 3 {
		t.Fatalf("%d choices, want 3", len(choices))
	}
	for i, want := range []string{"web-a", "web-b", "web-c"} {
		if got := choices[i]; got.pod != want || math.Abs(got.share-1.0/3) > 1e-9 {
			t.Errorf("choice %d = %s with %f of all, want %s with a third", i, got.pod, got.share, want)
		}
	}
}

func TestFind(t *testing.T) {
	c, err := parseChain(listing)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.find("/* default/web:http cluster IP */")
	if err != nil || r.target != "KUBE-MARK-MASQ" {
		t.Errorf("find = %s, %v, want the rule to KUBE-MARK-MASQ", r.target, err)
	}
	if r, err := c.find("default/nobody"); err == nil {
		t.Errorf("find of nothing = %s, want an error", r.text)
	}
}
