package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// gcPercent is how much the heap may grow over what is in use before the next
// collection. The agent is idle most of the time and there is one on every node: what
// it takes for good counts for more than the second that the start of a large cluster
// lasts longer than with Go's 100.
const gcPercent = 30

// During the start there may be startGarbage bytes of garbage, or as much as startPercent of
// what is in use if that is less, but never less than gcPercent. Of a heap that grows from
// nothing, 30 percent is so little that a sixth of the start with 1,000 Services went into
// 43 collections.
const (
	startGarbage = 8 << 20
	startPercent = 200
)

// writtenOnce says that the start is over.
var writtenOnce atomic.Bool

// saveMemory collects garbage earlier than Go does by default, unless GOGC says how.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		setGCPercent()
	}
}

// setGCPercent decides when the next collection shall be, and with it decides anew, until
// the start is over.
func setGCPercent() {
	percent := gcPercent
	if !writtenOnce.Load() {
		percent = max(gcPercent, min(startPercent, percentOf(heapInUse())))
		// A pointer: Go puts the smallest objects without one together with others, which may
		// be in use for long.
		runtime.SetFinalizer(new(*byte), func(**byte) { setGCPercent() })
	}
	debug.SetGCPercent(percent)
}

// percentOf says how much startGarbage is of what is in use.
func percentOf(inUse uint64) int { return int(startGarbage * 100 / max(inUse, 1<<20)) }

// heapInUse is how much the last collection has left, in bytes.
func heapInUse() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// returnMemory gives back to the host what a sync of all Services needed for a moment:
// the next one may be months away.
func returnMemory() {
	writtenOnce.Store(true)
	debug.FreeOSMemory()
}
