package proxier

import "sync"

// doubt remembers why what was written cannot be relied on.
type doubt struct {
	mu     sync.Mutex
	raised bool
	reason string
}

// raise says that the kernel may hold anything. The first reason since the doubt
// was last settled is the one that counts.
func (d *doubt) raise(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.raised {
		d.raised, d.reason = true, reason
	}
}

// settle returns the doubt and ends it. What is raised from here on concerns the
// sync after the one that begins now.
func (d *doubt) settle() (reason string, raised bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reason, raised = d.reason, d.raised
	d.reason, d.raised = "", false
	return reason, raised
}
