package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// scripts fills a directory with shell scripts and makes it PATH.
func scripts(t *testing.T, content map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, body := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

// suite is the three programs of a name, of which the first does body.
func suite(name, body string) map[string]string {
	return map[string]string{name: body, name + "-save": "exit 9", name + "-restore": "exit 9"}
}

func TestFindPrograms(t *testing.T) {
	const (
		nft    = `echo "iptables v1.8.9 (nf_tables)"`
		legacy = `echo "iptables v1.8.9 (legacy)"`
		old    = `echo "iptables v1.6.1"`
	)
	tests := []struct {
		name    string
		suites  []map[string]string
		family  model.Family
		backend Backend
		want    string
	}{
		{
			name:    "by the backend's name",
			suites:  []map[string]string{suite("iptables-nft", nft), suite("iptables", legacy)},
			family:  model.IPv4,
			backend: NFT,
			want:    "iptables-nft",
		},
		{
			name:    "plain ones of the backend",
			suites:  []map[string]string{suite("iptables", nft)},
			family:  model.IPv4,
			backend: NFT,
			want:    "iptables",
		},
		{
			name:    "plain ones of the other backend",
			suites:  []map[string]string{suite("iptables", nft)},
			family:  model.IPv4,
			backend: Legacy,
		},
		{
			name:    "plain ones of a time without backends",
			suites:  []map[string]string{suite("ip6tables", old)},
			family:  model.IPv6,
			backend: Legacy,
			want:    "ip6tables",
		},
		{
			name:    "of the other family",
			suites:  []map[string]string{suite("iptables-nft", nft)},
			family:  model.IPv6,
			backend: NFT,
		},
		{
			name:    "incomplete",
			suites:  []map[string]string{{"iptables-nft": nft}},
			family:  model.IPv4,
			backend: NFT,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all := map[string]string{}
			for _, s := range test.suites {
				for name, body := range s {
					all[name] = body
				}
			}
			dir := scripts(t, all)
			got, err := findPrograms(t.Context(), test.family, test.backend)
			if test.want == "" {
				if err == nil {
					t.Errorf("got %+v, want an error", got)
				}
				return
			}
			want := programs{
				tables:  filepath.Join(dir, test.want),
				save:    filepath.Join(dir, test.want+"-save"),
				restore: filepath.Join(dir, test.want+"-restore"),
			}
			if err != nil || got != want {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

// B-76: a family that cannot be used is told from one that could not be looked at.
func TestNewTellsUnsupportedFamilies(t *testing.T) {
	tests := []struct {
		name     string
		programs map[string]string
		// newErr and lookErr say whether New and then Supported fail, with
		// ErrFamilyUnsupported or otherwise.
		newErr, lookErr   bool
		unsupportedFamily bool
	}{
		{
			name:              "not installed",
			programs:          map[string]string{},
			newErr:            true,
			unsupportedFamily: true,
		},
		{
			name:              "every call exits 3",
			programs:          suite("ip6tables-nft", "exit 3"),
			newErr:            true,
			unsupportedFamily: true,
		},
		{
			name:              "no nat table",
			programs:          suite("ip6tables-nft", `test "$1" = --version && echo "ip6tables v1.8.9 (nf_tables)" || exit 3`),
			lookErr:           true,
			unsupportedFamily: true,
		},
		{
			name:     "lock held",
			programs: suite("ip6tables-nft", `test "$1" = --version && echo "ip6tables v1.8.9 (nf_tables)" || exit 4`),
			lookErr:  true,
		},
		{
			name:     "there",
			programs: suite("ip6tables-nft", `echo "ip6tables v1.8.9 (nf_tables)"`),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			scripts(t, test.programs)
			r, err := New(t.Context(), model.IPv6, NFT)
			if (err != nil) != test.newErr {
				t.Fatalf("New: got %v, want error %t", err, test.newErr)
			}
			if err == nil {
				err = r.Supported(t.Context())
				if (err != nil) != test.lookErr {
					t.Fatalf("Supported: got %v, want error %t", err, test.lookErr)
				}
			}
			if got := errors.Is(err, ErrFamilyUnsupported); got != test.unsupportedFamily {
				t.Errorf("got %v; ErrFamilyUnsupported is %t, want %t", err, got, test.unsupportedFamily)
			}
		})
	}
}

// What a program prints does not fill the agent's memory: its first and its last
// words are kept.
func TestStderrIsBounded(t *testing.T) {
	scripts(t, map[string]string{"talker": `echo first >&2
i=0; while [ $i -lt 20000 ]; do echo "warning $i" >&2; i=$((i+1)); done
echo "line 7 failed" >&2
exit 1`})
	_, err := run(t.Context(), nil, "talker")
	failed, ok := errors.AsType[*CommandError](err)
	if !ok {
		t.Fatalf("got %v, want a CommandError", err)
	}
	if !strings.HasPrefix(failed.Stderr, "first\n") || !strings.HasSuffix(failed.Stderr, "line 7 failed") {
		t.Errorf("got stderr %q", failed.Stderr)
	}
	var kept headTail
	for range 1 << 10 {
		if n, err := kept.Write(make([]byte, 1<<10)); n != 1<<10 || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
	}
	if got := len(kept.String()); got > keptHead+keptTail+10 {
		t.Errorf("kept %d bytes of a megabyte", got)
	}
}

// A restore that is cancelled says so, and is no refusal of its input.
func TestRestoreCancelled(t *testing.T) {
	programs := suite("iptables-nft", `echo "iptables v1.8.9 (nf_tables)"`)
	programs["iptables-nft-restore"] = "while :; do :; done"
	scripts(t, programs)
	r, err := New(t.Context(), model.IPv4, NFT)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errGivenUp)
	defer cancel()
	err = r.Restore(ctx, []byte("*nat\nCOMMIT\n"))
	if !errors.Is(err, errGivenUp) {
		t.Errorf("got %v, want it to wrap %v", err, errGivenUp)
	}
	if refused, ok := errors.AsType[*RestoreError](err); ok {
		t.Errorf("got a RestoreError: %v", refused)
	}
}

var errGivenUp = errors.New("given up")
