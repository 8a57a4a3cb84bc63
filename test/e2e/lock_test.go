package e2e

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// xtablesLock is the file that iptables-legacy locks. Here /run is the test's own.
const xtablesLock = "/run/xtables.lock"

// lockTables holds the lock of iptables until the file is closed.
func lockTables() (*os.File, error) {
	f, err := os.OpenFile(xtablesLock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", xtablesLock, err), f.Close())
	}
	return f, nil
}

// holdLock holds the lock of iptables until the function that it returns is called.
func holdLock(t *testing.T) (release func()) {
	t.Helper()
	f, err := lockTables()
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}
