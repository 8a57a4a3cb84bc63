package iptables

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
)

const (
	// insideEnv marks a test process that has a network namespace of its own.
	insideEnv = "MINIPROXY_TEST_NAMESPACE"
	// requireEnv turns a test that is skipped for want of privileges into a failed one.
	requireEnv = "MINIPROXY_REQUIRE_ROOT"
)

// skip ends a test for want of something, as skipped or as failed.
func skip(t *testing.T, want string, err error) {
	t.Helper()
	if os.Getenv(requireEnv) != "" {
		t.Fatalf("needs %s, and %s is set: %v", want, requireEnv, err)
	}
	t.Skipf("needs %s: %v", want, err)
}

// needLegacyTables ends a test that must know which legacy tables there are, where
// the kernel does not tell.
func needLegacyTables(t *testing.T) {
	t.Helper()
	if _, err := legacyTables(model.IPv4); err != nil {
		skip(t, "root outside of user namespaces", err)
	}
}

// inNamespace runs the calling test function once more, in a process with a new
// network namespace, a new user namespace if need be, and an xtables lock of its
// own, and passes on its result. It reports whether the caller is that process:
// only then may a test touch the kernel.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	t.Parallel() // the processes have nothing in common
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1", "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "xtables.lock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	output, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		skip(t, "a network namespace", err)
	}
	if err != nil {
		t.Fatalf("in a network namespace: %v\n%s", err, output)
	}
	t.Logf("in a network namespace:\n%s", output)
	return false
}
