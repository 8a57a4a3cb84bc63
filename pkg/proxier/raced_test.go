//go:build race

package proxier

// raced says that the race detector watches, which makes everything slower.
const raced = true
