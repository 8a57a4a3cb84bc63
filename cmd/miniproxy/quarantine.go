package main

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
)

// quarantine shows which Service ports are left out, and why.
type quarantine struct {
	mu       sync.Mutex
	refusals map[model.Family][]proxier.Refusal
}

func newQuarantine() *quarantine {
	return &quarantine{refusals: map[model.Family][]proxier.Refusal{}}
}

// set takes note of one family's refusals, and returns those that are new or were
// refused once more.
func (q *quarantine) set(family model.Family, refusals []proxier.Refusal) []proxier.Refusal {
	q.mu.Lock()
	defer q.mu.Unlock()
	failures := map[model.ServicePortName]int{}
	for _, r := range q.refusals[family] {
		failures[r.Name] = r.Failures
	}
	q.refusals[family] = refusals
	var news []proxier.Refusal
	for _, r := range refusals {
		if r.Failures != failures[r.Name] {
			news = append(news, r)
		}
	}
	return news
}

// page is /debug/miniproxy/quarantine.
func (q *quarantine) page() metrics.DebugPage {
	return metrics.DebugPage{
		Name:  "quarantine",
		About: "Service ports whose rules the kernel does not take",
		Write: q.write,
	}
}

func (q *quarantine) write(page *bytes.Buffer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, family := range model.Families {
		for _, r := range q.refusals[family] {
			fmt.Fprintf(page, "%s %s %s: refused %d times since %s, to be tried again by %s, %s: %v\n",
				family, r.Name, r.Name.Protocol, r.Failures, r.Since.UTC().Format(time.RFC3339), r.Retry.UTC().Format(time.RFC3339), keeps(r), r.Err)
		}
	}
	return nil
}

// keeps says in words what a refused Service port has.
func keeps(r proxier.Refusal) string {
	if r.KeepsRules {
		return "keeps its last good rules"
	}
	return "has no rules"
}
