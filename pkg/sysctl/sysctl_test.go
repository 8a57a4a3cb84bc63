package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const netfilter = "proc/sys/net/netfilter/"

// machine is a tree of settings with these values.
func machine(t *testing.T, settings map[string]string) Kernel {
	t.Helper()
	k := Kernel{root: t.TempDir()}
	for file, value := range settings {
		path := filepath.Join(k.root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// settings are all values of the tree.
func settings(t *testing.T, k Kernel) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(k.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := filepath.Rel(k.root, path)
		if err != nil {
			return err
		}
		got[file], err = k.read(file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSetConntrack(t *testing.T) {
	defaults := map[string]string{
		onlineCPUs: "0-3", conntrackMax: "65536", conntrackHashSize: "16384", tcpBeLiberal: "0",
		netfilter + "nf_conntrack_tcp_timeout_established": "432000",
		netfilter + "nf_conntrack_tcp_timeout_close_wait":  "60",
		netfilter + "nf_conntrack_udp_timeout":             "30",
		netfilter + "nf_conntrack_udp_timeout_stream":      "120",
	}
	for _, tc := range []struct {
		name    string
		have    map[string]string
		want    Conntrack
		changed map[string]string
	}{
		{name: "nothing asked for"},
		{
			name: "kube-proxy's defaults",
			want: Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
			changed: map[string]string{
				conntrackMax: "131072", conntrackHashSize: "32768",
				netfilter + "nf_conntrack_tcp_timeout_established": "86400", netfilter + "nf_conntrack_tcp_timeout_close_wait": "3600",
			},
		},
		{
			name: "everything",
			want: Conntrack{MaxPerCore: 65536, TCPBeLiberal: true, UDPTimeout: 90 * time.Second, UDPStreamTimeout: 300 * time.Second},
			changed: map[string]string{
				conntrackMax: "262144", conntrackHashSize: "65536", tcpBeLiberal: "1",
				netfilter + "nf_conntrack_udp_timeout": "90", netfilter + "nf_conntrack_udp_timeout_stream": "300",
			},
		},
		{
			name: "a larger table is left",
			have: map[string]string{conntrackMax: "999999", conntrackHashSize: "999999"},
			want: Conntrack{MaxPerCore: 32768, Min: 131072},
		},
		{
			name:    "table large enough, hash too small",
			have:    map[string]string{conntrackMax: "999999"},
			want:    Conntrack{MaxPerCore: 32768, Min: 131072},
			changed: map[string]string{conntrackHashSize: "32768"},
		},
		{name: "minimum alone changes nothing", want: Conntrack{Min: 131072}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := maps.Clone(defaults)
			maps.Copy(start, tc.have)
			k := machine(t, start)
			if err := k.SetConntrack(t.Context(), tc.want); err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(start)
			maps.Copy(want, tc.changed)
			if got := settings(t, k); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestMax(t *testing.T) {
	for _, tc := range []struct {
		name            string
		perCore, min    int
		cpus, wantTable int
	}{
		{"off", 0, 131072, 64, 0},
		{"small machine gets the minimum", 32768, 131072, 2, 131072},
		{"scaled", 32768, 131072, 8, 262144},
		{"capped", 32768, 131072, 256, 1048576},
		{"no minimum", 32768, 0, 1, 32768},
		{"a minimum above the cap holds where scaling does not reach the cap", 32768, 2000000, 2, 2000000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (Conntrack{MaxPerCore: tc.perCore, Min: tc.min}).Max(tc.cpus); got != tc.wantTable {
				t.Errorf("got %d, want %d", got, tc.wantTable)
			}
		})
	}
}

// One setting that cannot be written does not keep the others back, and each is
// reported by name.
func TestSetConntrackReportsEachFailure(t *testing.T) {
	k := machine(t, map[string]string{onlineCPUs: "0", netfilter + "nf_conntrack_udp_timeout": "30"})
	err := k.SetConntrack(t.Context(), Conntrack{MaxPerCore: 32768, TCPBeLiberal: true, UDPTimeout: time.Minute})
	for _, want := range []string{
		"set " + filepath.Join(k.root, conntrackMax) + " to 32768 (it is unknown): no such file or directory",
		"set " + filepath.Join(k.root, conntrackHashSize) + " to 8192 (it is unknown)",
		"set " + filepath.Join(k.root, tcpBeLiberal) + " to 1 (it is unknown)",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want it to say %q", err, want)
		}
	}
	writeErr, ok := errors.AsType[*WriteError](err)
	if !ok || writeErr.IsReadOnly() || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %#v, want a WriteError of settings that do not exist", err)
	}
	if got, err := k.read(netfilter + "nf_conntrack_udp_timeout"); got != "60" || err != nil {
		t.Errorf("UDP timeout: got %q, %v, want 60", got, err)
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-1,4,6-7": 5, "": 0, "3-1": 0, "a": 0, "0,": 0} {
		got, err := countCPUs(list)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: got %d, %v, want %d", list, got, err, want)
		}
	}
}

func TestTCPBeLiberal(t *testing.T) {
	for value, want := range map[string]bool{"0": false, "1": true} {
		if got, err := machine(t, map[string]string{tcpBeLiberal: value}).TCPBeLiberal(); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", value, got, err, want)
		}
	}
	if got, err := machine(t, nil).TCPBeLiberal(); got || err != nil {
		t.Errorf("kernel without the setting: got %v, %v, want false", got, err)
	}
}

func TestSetRouteLocalnet(t *testing.T) {
	k := machine(t, map[string]string{routeLocalnet: "0"})
	for range 2 {
		if err := k.SetRouteLocalnet(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := k.read(routeLocalnet); got != "1" || err != nil {
			t.Errorf("got %q, %v, want 1", got, err)
		}
	}
}

func TestSetOOMScoreAdj(t *testing.T) {
	k := machine(t, map[string]string{oomScoreAdj: "0"})
	if err := k.SetOOMScoreAdj(t.Context(), -999); err != nil {
		t.Fatal(err)
	}
	if got, err := k.read(oomScoreAdj); got != "-999" || err != nil {
		t.Errorf("got %q, %v, want -999", got, err)
	}
}

// A read-only /proc/sys is what an unprivileged container has.
func TestReadOnly(t *testing.T) {
	k := machine(t, map[string]string{tcpBeLiberal: "0", routeLocalnet: "1"})
	failed := make(chan error, 1)
	go func() {
		// The thread is in a mount namespace of its own and ends with this goroutine.
		runtime.LockOSThread()
		if err := mountReadOnly(k.root); err != nil {
			failed <- fmt.Errorf("make a read-only mount: %w", err)
			return
		}
		if err := k.SetRouteLocalnet(t.Context()); err != nil {
			t.Errorf("a setting that is right already: got %v, want nil", err)
		}
		failed <- k.SetConntrack(t.Context(), Conntrack{TCPBeLiberal: true})
	}()
	err := <-failed
	if errors.Is(err, unix.EPERM) && os.Getenv("MINIPROXY_REQUIRE_ROOT") == "" {
		t.Skip(err)
	}
	writeErr, ok := errors.AsType[*WriteError](err)
	if !ok || !writeErr.IsReadOnly() || writeErr.Have != "0" || writeErr.Want != "1" {
		t.Fatalf("got %v, want a WriteError of a read-only setting", err)
	}
	want := "set " + filepath.Join(k.root, tcpBeLiberal) + " to 1 (it is 0): read-only file system; " +
		"set it on the host, or run --init-only in a privileged init container"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func mountReadOnly(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}
