// Package seed gives tests random numbers that a failure can be repeated with.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Env is the environment variable that chooses the seed.
const Env = "MINIPROXY_TEST_SEED"

// Of returns the seed for a test, a decimal number from Env or else another one each
// time, and logs it. A value that is no number ends the test.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(Env); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Env, err)
		}
	}
	t.Logf("%s=%d", Env, seed)
	return seed
}

// Rand returns random numbers that begin with the test's seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 0))
}
