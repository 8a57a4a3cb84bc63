package main

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much the heap may grow over what is in use before the next
// collection. The agent is idle most of the time and there is one on every node: what
// it takes for good counts for more than the second that the start of a large cluster
// lasts longer than with Go's 100.
const gcPercent = 30

// saveMemory collects garbage earlier than Go does by default, unless GOGC says how.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// returnMemory gives back to the host what a sync of all Services needed for a moment:
// the next one may be months away.
func returnMemory() { debug.FreeOSMemory() }
