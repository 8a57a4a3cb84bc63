package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// columns are the measures of the table.
var columns = []string{
	"", "start to ready", "change, p50 / p99", "CPU per change", "memory: peak / at the end / command",
	"connection through Services, p50 / p99", "direct connection, p50 / p99",
}

// report is the results as Markdown: what was measured and where, then one table with
// the values and, below them, miniproxy's in relation to kube-proxy's.
func report(c config, m machine, results []*result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d Services with %d endpoints each; %d rounds of %d changes and %d connections; %s\n\n",
		c.load.services, c.load.endpoints, c.rounds, c.flips, c.connections, m)
	line := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(columns...)
	line(slices.Repeat([]string{"---"}, len(columns))...)
	var floor []time.Duration
	for _, r := range results {
		floor = append(floor, r.floor...)
	}
	line("no rules (the floor)", "", "", "", "", "", pair(floor, 3))
	for _, r := range results {
		line(r.values()...)
	}
	for _, r := range results {
		for _, name := range r.row.against {
			i := slices.IndexFunc(results, func(o *result) bool { return o.row.name == name })
			if i >= 0 && r.failure == nil {
				line(r.ratios(results[i], floor)...)
			}
		}
	}
	return b.String()
}

// values are the cells of a row.
func (r *result) values() []string {
	if r.failure != nil {
		return []string{r.row.name, strings.ReplaceAll(r.failure.Error(), "\n", " "), "", "", "", "", ""}
	}
	return []string{
		r.row.name,
		fmt.Sprintf("%.2f s", quantile(r.starts, 0.5).Seconds()),
		pair(r.changes, 0),
		fmt.Sprintf("%.3f s", r.perChange().Seconds()),
		fmt.Sprintf("%d / %d / %d MB", r.agentPeak>>20, r.agentEnd>>20, r.childPeak>>20),
		pair(r.via, 3),
		pair(r.direct, 3),
	}
}

// perChange is the CPU time of a change.
func (r *result) perChange() time.Duration {
	return r.cpu / time.Duration(max(1, len(r.changes)))
}

// ratios are the cells of a row that divides r by another. Of connections it divides
// what is above the floor.
func (r *result) ratios(o *result, floor []time.Duration) []string {
	name := r.row.name + " ÷ " + o.row.name
	if o.failure != nil {
		if late, ok := errors.AsType[notReadyError](o.failure); ok {
			return []string{name, fmt.Sprintf("< %.3f", quantile(r.starts, 0.5).Seconds()/late.bound.Seconds()), "", "", "", "", ""}
		}
		return []string{name, "", "", "", "", "", ""}
	}
	divide := func(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
	p50 := func(a, b []time.Duration) string {
		return divide(float64(quantile(a, 0.5)), float64(quantile(b, 0.5)))
	}
	above := func(a, b []time.Duration) string {
		under := quantile(floor, 0.5)
		x, y := quantile(a, 0.5)-under, quantile(b, 0.5)-under
		if y < under/5 {
			return "–" // next to nothing: the ratio would be noise
		}
		return divide(float64(x), float64(y)) + " above the floor"
	}
	return []string{
		name,
		p50(r.starts, o.starts),
		p50(r.changes, o.changes),
		divide(r.perChange().Seconds(), o.perChange().Seconds()),
		divide(float64(r.agentPeak), float64(o.agentPeak)) + " / " + divide(float64(r.agentEnd), float64(o.agentEnd)),
		above(r.via, o.via),
		above(r.direct, o.direct),
	}
}

// pair is the p50 and the p99 of a sample in milliseconds.
func pair(sample []time.Duration, digits int) string {
	return fmt.Sprintf("%.*f / %.*f ms", digits, milliseconds(quantile(sample, 0.5)), digits, milliseconds(quantile(sample, 0.99)))
}
