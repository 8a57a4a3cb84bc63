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
	}{
		{"transaction ends soon", lastWords / 2, nil},
		{"transaction hangs", time.Hour, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := newWriter(slowKernel{takes: test.takes}, Settings{Chunk: ChunkNFT}, newLedger())
				w.write(ruleset.Chain{ChainID: ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-A"}}, nil)
				time.AfterFunc(time.Second, cancel)
				start := time.Now()
				if err := w.flush(ctx); !errors.Is(err, test.want) {
					t.Errorf("got error %v, want %v", err, test.want)
				}
				if got, most := time.Since(start), time.Second+lastWords; got > most {
					t.Errorf("stopped after %v, want at most %v", got, most)
				}
			})
		})
	}
}
