// Package labtest gives tests a lab of network namespaces.
package labtest

import (
	"os"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// RequireRoot is the environment variable that, set to anything, turns the skip of a
// test that cannot have a lab into a failure. CI sets it: a test that is always
// skipped proves nothing.
const RequireRoot = "MINIPROXY_REQUIRE_ROOT"

// prefix begins the names of all labs of tests.
const prefix = "mptest"

// Require skips a test where no lab can be made, or fails it when the environment
// requires root tests.
func Require(t testing.TB) {
	t.Helper()
	err := lab.Available()
	switch {
	case err == nil:
	case os.Getenv(RequireRoot) != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// New returns a lab that goes with the test, or skips the test like Require. It first
// removes the labs of test runs that were killed, by a timeout for example.
func New(t testing.TB) *lab.Lab {
	t.Helper()
	Require(t)
	stale, err := lab.Stale(prefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stale {
		if err := lab.Remove(name); err != nil {
			t.Log(err) // another test process may have been faster
		}
	}
	l, err := lab.New(prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// NewCluster returns the cluster of the default plan in a lab that goes with the test.
func NewCluster(t testing.TB) *lab.Cluster {
	t.Helper()
	c, err := lab.NewCluster(New(t), lab.DefaultPlan())
	if err != nil {
		t.Fatal(err)
	}
	return c
}
