package proxier

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// slowKernel is a kernel whose Restore takes a while, unless its context ends.
type slowKernel struct {
	Kernel
	takes time.Duration
}

func (k slowKernel) Restore(ctx context.Context, _ []byte) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(k.takes):
		return nil
	}
}

// A transaction that has begun goes on when the agent is told to stop, and one that
// hangs does not keep the agent from stopping.
func TestWriterIsToldToStop(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		want  error
		flush func(*writer, context.Context) error
	}{
		{"transaction ends soon", lastWords / 2, nil, (*writer).flush},
		{"transaction hangs", time.Hour, context.Canceled, (*writer).flush},
		{"several at a time, which end soon", lastWords / 2, context.Canceled, flushFour},
		{"several at a time, which hang", time.Hour, context.Canceled, flushFour},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := newWriter(slowKernel{takes: test.takes}, Settings{Chunk: ChunkNFT, Parallel: 2}, newLedger())
				w.write(ruleset.Chain{ChainID: ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-A"}}, nil)
				time.AfterFunc(time.Second, cancel)
				start := time.Now()
				if err := test.flush(w, ctx); !errors.Is(err, test.want) {
					t.Errorf("got error %v, want %v", err, test.want)
				}
				if got, most := time.Since(start), time.Second+lastWords; got > most {
					t.Errorf("stopped after %v, want at most %v", got, most)
				}
			})
		})
	}
}

// flushFour has two transactions under way, and two more wait for their turn.
func flushFour(w *writer, ctx context.Context) error {
	w.flushed = true
	for range 4 {
		if err := w.flushBehind(ctx); err != nil {
			return err
		}
	}
	return w.wait()
}
