package demo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// chain is a chain as iptables -L -n -v prints it.
type chain struct {
	title, header string
	rules         []rule
}

// rule is one line of it.
type rule struct {
	text    string
	packets string
	target  string
	// probability is that of a random match, 1 without one.
	probability float64
}

// list lists a chain of the nat table on n1.
func (w *world) list(ctx context.Context, name string) (chain, error) {
	out, err := w.node("n1").Run(ctx, w.iptables, "-w", "-t", "nat", "-L", name, "-n", "-v")
	if err != nil {
		return chain{}, fmt.Errorf("list the chain %s: %w", name, err)
	}
	return parseChain(out)
}

// findWeb lists KUBE-SERVICES, and finds in it the chain that the cluster IP of Service
// web leads to.
func (w *world) findWeb(ctx context.Context) (services chain, target string, err error) {
	if services, err = w.list(ctx, "KUBE-SERVICES"); err != nil {
		return chain{}, "", err
	}
	web, err := services.find("/* default/web:http cluster IP */")
	return services, web.target, err
}

// zero sets the counters of n1's nat table to zero.
func (w *world) zero(ctx context.Context) error {
	if _, err := w.node("n1").Run(ctx, w.iptables, "-w", "-t", "nat", "-Z"); err != nil {
		return fmt.Errorf("zero the counters: %w", err)
	}
	return nil
}

// parseChain reads what iptables -L CHAIN -n -v prints: a line with the chain's name,
// one with the names of the columns, and one per rule.
func parseChain(text string) (chain, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "Chain ") {
		return chain{}, fmt.Errorf("read a chain: unexpected text %q", text)
	}
	c := chain{title: lines[0], header: strings.TrimRight(lines[1], " ")}
	for _, line := range lines[2:] {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return chain{}, fmt.Errorf("read %s: unexpected line %q", c.title, line)
		}
		c.rules = append(c.rules, rule{
			text:        strings.TrimRight(line, " "),
			packets:     fields[0],
			target:      fields[2],
			probability: probability(fields),
		})
	}
	return c, nil
}

// probability finds "statistic mode random probability 0.333" among a rule's words.
func probability(fields []string) float64 {
	for i, word := range fields {
		if word != "probability" || i+1 == len(fields) {
			continue
		}
		if p, err := strconv.ParseFloat(fields[i+1], 64); err == nil {
			return p
		}
	}
	return 1
}

// find returns the last rule that contains text: of the two lines of a node port, the
// first is for 127.0.0.0/8 alone.
func (c chain) find(text string) (rule, error) {
	for i := len(c.rules) - 1; i >= 0; i-- {
		if strings.Contains(c.rules[i].text, text) {
			return c.rules[i], nil
		}
	}
	return rule{}, fmt.Errorf("%s: no rule has %q", c.title, text)
}

// choice is one line of a KUBE-SVC chain: one pod's chance.
type choice struct {
	rule
	pod string
	// share is the part of all packets that this line gets.
	share float64
}

// choices works out which part of all packets each line of a Service's chain gets:
// its probability holds for what the lines above have left over.
func (c chain) choices() []choice {
	var list []choice
	left := 1.0
	for _, r := range c.rules {
		if !strings.HasPrefix(r.target, "KUBE-SEP-") {
			continue
		}
		share := left * r.probability
		left -= share
		list = append(list, choice{rule: r, share: share, pod: podOf(r.text)})
	}
	return list
}

// podOf names the pod whose address is in a rule's comment.
func podOf(text string) string {
	_, to, _ := strings.Cut(text, " -> ")
	addr, _, _ := strings.Cut(to, " ")
	for _, p := range webPods() {
		if addr == fmt.Sprintf("10.244.%s.%d:%d", strings.TrimPrefix(p.node, "n"), p.number, podPort) {
			return p.name
		}
	}
	return addr
}

// tellService shows a Service's chain and what its probabilities come to. It returns
// the chain of the first pod.
func (w *world) tellService(ctx context.Context, r *report, name string) (string, error) {
	c, err := w.list(ctx, name)
	if err != nil {
		return "", err
	}
	r.chain(c)
	choices := c.choices()
	if len(choices) == 0 {
		return "", fmt.Errorf("%s: no rule leads to a pod", c.title)
	}
	r.choices(choices)
	return choices[0].target, nil
}
