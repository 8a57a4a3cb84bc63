package proxier

import "sync"

// Trigger is what made a sync happen.
type Trigger string

// The triggers. Start and Failure make a full sync.
const (
	// Start is the first sync of the process.
	Start Trigger = "start"
	// Failure is the sync after one that failed.
	Failure Trigger = "failure"
	// Touched is the sync after somebody else changed the tables: a full one unless it
	// is known which chains they were.
	Touched Trigger = "touched"
	// Change is any other sync: something changed in the cluster, or it was time to
	// look after the rules.
	Change Trigger = "change"
)

// doubt remembers why what was written cannot be relied on.
type doubt struct {
	mu      sync.Mutex
	trigger Trigger
	detail  string
}

// raise says that the kernel may hold anything. The first reason since the doubt
// was last settled is the one that counts.
func (d *doubt) raise(trigger Trigger, detail string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trigger == "" {
		d.trigger, d.detail = trigger, detail
	}
}

// settle returns the doubt and ends it, or returns Change if there is none. What is
// raised from here on concerns the sync after the one that begins now.
func (d *doubt) settle() (trigger Trigger, detail string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	trigger, detail = d.trigger, d.detail
	d.trigger, d.detail = "", ""
	if trigger == "" {
		trigger = Change
	}
	return trigger, detail
}

// isRaised reports whether there is a doubt.
func (d *doubt) isRaised() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trigger != ""
}
