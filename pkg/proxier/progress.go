package proxier

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// tellEvery is how often the log tells how far a long sync has come.
const tellEvery = 5 * time.Second

// progress is how far a sync has come with the Service ports that it looks at.
type progress struct {
	written, total int
	told           time.Time
}

func newProgress(total int) *progress { return &progress{total: total, told: time.Now()} }

// chunkWritten tells of a sync that is not at its end yet.
func (p *Proxier) chunkWritten(ctx context.Context, pr *progress) {
	p.observer.Writing(pr.written, pr.total)
	if time.Since(pr.told) < tellEvery {
		return
	}
	pr.told = time.Now()
	klog.FromContext(ctx).Info("Writing the rules", "writtenServicePorts", pr.written, "of", pr.total)
}

// takeMore takes up what has changed in the cluster while a chunk was written. With
// tens of thousands of chains to write, an endpoint that has left would else get
// connections until the last of them is in place. It returns the Service ports to be
// written with the chunks that follow.
func (p *Proxier) takeMore() []model.ServicePortName {
	_, more := p.tracker.Take()
	if len(more.ServicePorts) == 0 {
		return nil
	}
	p.unsynced = join(p.unsynced, more)
	for _, name := range more.ServicePorts {
		if refusal := p.quarantine[name]; refusal != nil {
			refusal.Retry = time.Now() // by the next sync, which the change has asked for
		}
	}
	return more.ServicePorts
}
