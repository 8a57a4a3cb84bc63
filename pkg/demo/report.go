package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// longChain is how many rules a chain may have to be shown whole. Of a longer one
// only the rules on the way are shown.
const longChain = 8

// report tells the story.
type report struct {
	out   io.Writer
	bold  bool
	steps int
}

func (r *report) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// heading begins a step.
func (r *report) heading(text string) {
	r.steps++
	line := fmt.Sprintf("%d. %s", r.steps, text)
	if r.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	if r.steps > 1 {
		r.say("")
	}
	r.say("%s\n", line)
}

// command shows a command before it runs, and where.
func (r *report) command(host, name string, args ...string) {
	words := []string{name}
	for _, arg := range args {
		if strings.ContainsAny(arg, "?[") {
			arg = "'" + arg + "'"
		}
		words = append(words, arg)
	}
	r.say("  %s $ %s", host, strings.Join(words, " "))
}

// spread shows how many requests each pod answered, and whom the pods saw.
func (r *report) spread(a answers, pods []string) {
	r.say("\n    %-8s %8s  %6s", "pod", "requests", "share")
	for _, name := range pods {
		share := a.share(name)
		r.say("    %-8s %8d  %5.1f%%  %s", name, a.byPod[name], share, strings.Repeat("#", int(share/2)))
	}
	if a.failed > 0 {
		r.say("    %-8s %8d", "(failed)", a.failed)
	}
	r.say("    Chance alone gives a pod %d, give or take %d, in 19 of 20 runs.", a.total/len(pods), a.spread(len(pods)))
	var saw []string
	for _, source := range slices.Sorted(maps.Keys(a.bySource)) {
		saw = append(saw, fmt.Sprintf("%s (%d times)", source, a.bySource[source]))
	}
	r.say("    The pods saw: %s", strings.Join(saw, ", "))
}

// chain shows a chain, with the rules marked that packets have met since the counters
// were zero.
func (r *report) chain(c chain) {
	r.say("\n  %s\n  %s", c.title, c.header)
	left := 0
	for _, rule := range c.rules {
		switch {
		case rule.packets != "0":
			r.say("> %s", rule.text)
		case len(c.rules) <= longChain:
			r.say("  %s", rule.text)
		default:
			left++
		}
	}
	if left > 0 {
		r.say("  (%d more rules)", left)
	}
	r.say("")
}

// choices shows what the probabilities of a Service's chain come to.
func (r *report) choices(list []choice) {
	r.say("Its lines are tried from the top; a probability holds for what is left over by then:\n")
	r.say("    %-8s %-24s %12s  %s", "pod", "probability of its line", "share of all", "connections")
	for _, c := range list {
		condition := fmt.Sprintf("%.3f", c.probability)
		if c.probability == 1 {
			condition = "1 (no condition)"
		}
		r.say("    %-8s %-24s %11.1f%%  %s", c.pod, condition, 100*c.share, c.packets)
	}
}
