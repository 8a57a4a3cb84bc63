package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// programsOf fills a directory with the iptables programs whose names begin with one of
// the prefixes, and makes it PATH.
func programsOf(t *testing.T, prefixes ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, prefix := range prefixes {
		for _, name := range []string{"-nft", "-legacy", "-nft-restore", "-legacy-restore", "-nft-save", "-legacy-save"} {
			path, err := exec.LookPath(prefix + name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, prefix+name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir)
}

// TestCleanupWithoutPrograms: a node without ip6tables is clean when its IPv4 rules are
// gone; where there are IPv6 rules, or legacy tables that cannot be read, it is not.
func TestCleanupWithoutPrograms(t *testing.T) {
	labtest.Require(t)
	l := labtest.New(t)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			host, err := l.Host(string(backend))
			if err != nil {
				t.Fatal(err)
			}
			path := os.Getenv("PATH")
			addServices(t, host, "iptables-"+string(backend))
			programsOf(t, "iptables")
			cleanUpOn(t, host, backend)
			t.Setenv("PATH", path)
			addServices(t, host, "ip6tables-"+string(backend))
			programsOf(t, "iptables")
			if got := runOn(t, host, cleanUp, "--iptables-backend="+string(backend)); got.code != exitFailed || !strings.Contains(got.err, "IPv6") {
				t.Errorf("IPv6 rules that cannot be removed: %+v", got)
			}
			t.Setenv("PATH", path)
			cleanUpOn(t, host, backend)
		})
	}
}

// addServices adds a chain of ours.
func addServices(t *testing.T, host *lab.Host, program string) {
	t.Helper()
	if _, err := host.Run(t.Context(), program, "-t", "nat", "-N", "KUBE-SERVICES"); err != nil {
		t.Fatal(err)
	}
}
