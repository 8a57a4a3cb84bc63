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

// New returns a lab that goes with the test. Where no lab can be made the test is
// skipped, or fails when the environment requires root tests.
func New(t testing.TB) *lab.Lab {
	t.Helper()
	if err := lab.Available(); err != nil {
		if os.Getenv(RequireRoot) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	l, err := lab.New("mptest")
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
