package metrics

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/time/rate"
)

// DebugPage is one page under /debug/miniproxy/. It shows something and changes
// nothing.
type DebugPage struct {
	// Name is the last part of the path.
	Name string
	// About says in one line what the page shows, for the index.
	About string
	// ContentType defaults to plain text.
	ContentType string
	// Write writes the page, to memory first, so that a failure can still become a
	// status.
	Write func(*bytes.Buffer) error
}

// debugRate is how many debug pages may be fetched a second, all pages taken
// together, and debugBurst how many at once: a page can be as large as all rules of
// the node, and the port is open to the cluster where people scrape it.
const (
	debugRate  = 1
	debugBurst = 5
)

const debugPath = "/debug/miniproxy/"

// installDebug serves the pages and an index of them.
func installDebug(m *listedMux, pages []DebugPage) {
	limiter := rate.NewLimiter(debugRate, debugBurst)
	var index strings.Builder
	for _, p := range pages {
		fmt.Fprintf(&index, "%s%s\t%s\n", debugPath, p.Name, p.About)
		m.Handle(debugPath+p.Name, limited(limiter, p))
	}
	m.Handle(debugPath+"{$}", text(index.String()))
}

// limited serves a page while the limiter allows.
func limited(limiter *rate.Limiter, p DebugPage) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !limiter.Allow() {
			w.Header().Set("Retry-After", "1")
			writeText(w, http.StatusTooManyRequests, "debug pages are limited to one a second\n")
			return
		}
		var body bytes.Buffer
		if err := p.Write(&body); err != nil {
			writeText(w, http.StatusInternalServerError, fmt.Sprintf("show %s: %v\n", p.Name, err))
			return
		}
		contentType := p.ContentType
		if contentType == "" {
			contentType = "text/plain; charset=utf-8"
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body.Bytes()) // it fails when the caller hung up
	})
}
