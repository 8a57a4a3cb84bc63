package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// maxRestoreText is how much of one restore input is kept, in bytes: all of one chunk
// on the nft backend. On legacy the input of a full sync of a large cluster is tens of
// megabytes; its beginning tells enough.
const maxRestoreText = 1 << 20

// Restores keeps, per family, the last restore input that was applied and the last
// one that failed with its error, for people who ask what the agent did to this
// node. Its methods can be called concurrently.
type Restores struct {
	mu      sync.Mutex
	applied map[model.Family]restore
	failed  map[model.Family]restore
}

type restore struct {
	at    time.Time
	text  []byte
	total int
	err   error
}

// NewRestores returns an empty record.
func NewRestores() *Restores {
	return &Restores{applied: map[model.Family]restore{}, failed: map[model.Family]restore{}}
}

// Restored records a restore of the family: its input, and its error if it failed.
// The input is copied.
func (r *Restores) Restored(fam model.Family, input []byte, err error) {
	kept := restore{at: time.Now(), text: append([]byte(nil), input[:min(len(input), maxRestoreText)]...), total: len(input), err: err}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[fam] = kept
	} else {
		r.applied[fam] = kept
	}
}

// Pages are the debug pages that show the record.
func (r *Restores) Pages() []DebugPage {
	return []DebugPage{
		{Name: "restore/applied", About: "last iptables-restore input that was applied, per family", Write: r.writer(r.applied)},
		{Name: "restore/failed", About: "last iptables-restore input that failed, with its error, per family", Write: r.writer(r.failed)},
	}
}

// writer shows one of the two maps. What is not a rule is a comment, so that the
// page of one family is valid input for iptables-restore.
func (r *Restores) writer(of map[model.Family]restore) func(*bytes.Buffer) error {
	return func(b *bytes.Buffer) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, fam := range model.Families {
			last, ok := of[fam]
			if !ok {
				fmt.Fprintf(b, "# %s: none since the agent started\n", fam)
				continue
			}
			fmt.Fprintf(b, "# %s, %s, %d bytes\n", fam, last.at.UTC().Format(time.RFC3339), last.total)
			if last.err != nil {
				fmt.Fprintf(b, "# error: %q\n", last.err.Error())
				writeExcerpt(b, last.err)
			}
			if len(last.text) < last.total {
				fmt.Fprintf(b, "# only the first %d bytes were kept\n", len(last.text))
			}
			b.Write(last.text)
		}
		return nil
	}
}

// excerpter is an error that knows the lines of the input around the one that was
// refused.
type excerpter interface {
	error
	Excerpt() string
}

// writeExcerpt shows the lines that an error is about: the refused one may stand far
// down in the input, or behind what was kept of it.
func writeExcerpt(b *bytes.Buffer, err error) {
	refused, ok := errors.AsType[excerpter](err)
	if !ok {
		return
	}
	for line := range strings.Lines(refused.Excerpt()) {
		fmt.Fprintf(b, "# %s\n", strings.TrimRight(line, "\n"))
	}
}
