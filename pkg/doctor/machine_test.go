package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// machineWith is a tree of files, and of links where the content begins with "->".
func machineWith(t *testing.T, files map[string]string) Machine {
	t.Helper()
	m := Machine{root: t.TempDir()}
	for name, content := range files {
		path := filepath.Join(m.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "->"); isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestSetting(t *testing.T) {
	m := machineWith(t, map[string]string{
		"proc/sys/net/ipv4/ip_forward":               "1\n",
		"proc/sys/net/ipv4/word":                     "on\n",
		"proc/sys/net/ipv4/conf/all/rp_filter":       "2\n",
		"proc/sys/net/ipv4/conf/eth0/rp_filter":      "1\n",
		"proc/sys/net/ipv4/conf/gone/route_localnet": "0\n",
		"sys/class/net/cni0/bridge/stp_state":        "0\n",
		"sys/class/net/eth0/mtu":                     "1500\n",
	})
	if got, err := m.Setting("net/ipv4/ip_forward"); got != 1 || err != nil {
		t.Errorf("got %d, %v; want 1", got, err)
	}
	if _, err := m.Setting("net/ipv4/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a setting that does not exist: got %v", err)
	}
	if _, err := m.Setting("net/ipv4/word"); err == nil {
		t.Error("a setting that is no number: got no error")
	}
	filters, err := m.ReversePath()
	if want := map[string]int{"all": 2, "eth0": 1}; err != nil || !maps.Equal(filters, want) {
		t.Errorf("rp_filter: got %v, %v; want %v", filters, err, want)
	}
	if got := m.Bridges([]string{"lo", "eth0", "cni0"}); !slices.Equal(got, []string{"cni0"}) {
		t.Errorf("bridges: got %v, want cni0", got)
	}
}

func TestProcesses(t *testing.T) {
	m := machineWith(t, map[string]string{
		"proc/thread-self/ns/net": "->net:[1]",
		"proc/10/comm":            "miniproxy\n",
		"proc/10/cmdline":         "/bin/miniproxy\x00run\x00",
		"proc/10/ns/net":          "->net:[1]",
		"proc/7/comm":             "kube-proxy\n",
		"proc/7/cmdline":          "kube-proxy\x00",
		"proc/7/ns/net":           "->net:[2]",
		"proc/8/comm":             "kworker\n",
		"proc/8/cmdline":          "",
		"proc/9/environ":          "", // has ended
		"proc/locks":              "",
	})
	want := []Process{
		{PID: 7, Name: "kube-proxy", Args: []string{"kube-proxy"}, Network: NetworkOther},
		{PID: 8, Name: "kworker"},
		{PID: 10, Name: "miniproxy", Args: []string{"/bin/miniproxy", "run"}, Network: NetworkSame},
	}
	got, err := m.Processes()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestLockHolder(t *testing.T) {
	const lock = "run/xtables.lock"
	for _, test := range []struct {
		name  string
		locks string // with the file's numbers in the place of FILE
		want  int
	}{
		{"nobody", "1: FLOCK  ADVISORY  WRITE 99 00:1a:1 0 EOF\n", 0},
		{"somebody", "1: POSIX  ADVISORY  WRITE 98 FILE 0 EOF\n2: FLOCK  ADVISORY  WRITE 7 FILE 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 8 FILE 0 EOF\n", 7},
		{"somebody who cannot be seen", "1: FLOCK  ADVISORY  WRITE -1 FILE 0 EOF\n", 0},
		{"somebody who has ended", "1: FLOCK  ADVISORY  WRITE 9 FILE 0 EOF\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := machineWith(t, map[string]string{lock: "", "proc/7/comm": "iptables\n", "proc/7/cmdline": "iptables\x00-w\x00"})
			var stat unix.Stat_t
			if err := unix.Stat(filepath.Join(m.root, lock), &stat); err != nil {
				t.Fatal(err)
			}
			file := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
			text := []byte(strings.ReplaceAll(test.locks, "FILE", file))
			if err := os.WriteFile(filepath.Join(m.root, "proc/locks"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			holder, err := m.LockHolder(lock)
			got := 0
			if holder != nil {
				got = holder.PID
			}
			if got != test.want || err != nil {
				t.Errorf("got %v, %v; want process %d", holder, err, test.want)
			}
		})
	}
	if holder, err := machineWith(t, nil).LockHolder(lock); holder != nil || err != nil {
		t.Errorf("a lock that was never taken: got %v, %v", holder, err)
	}
}

// The real list of locks names the one who holds one.
func TestLockHolderOfRealLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if holder, err := NewMachine().LockHolder(path); holder != nil || err != nil {
		t.Fatalf("before: got %v, %v; want nobody", holder, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if holder, err := NewMachine().LockHolder(path); err != nil || holder == nil || holder.PID != os.Getpid() {
		t.Errorf("got %v, %v; want process %d", holder, err, os.Getpid())
	}
}

const tcp4 = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7580 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0000000000000000 100 0 0 10 0
   1: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0000000000000000 100 0 0 10 0
   2: 0100007F:2809 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 102 1 0000000000000000 100 0 0 10 0
`

const tcp6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:2810 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 103 1 0000000000000000 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:2811 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 104 1 0000000000000000 100 0 0 10 0
`

const udp4 = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
   0: 0100000A:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 105 2 0000000000000000 0
   1: 0100000A:9000 0200000A:0035 01 00000000:00000000 00:00000000 00000000     0        0 106 2 0000000000000000 0
`

func TestSockets(t *testing.T) {
	if !isLittleEndian() {
		t.Skip("the lists above are those of a little-endian machine")
	}
	m := machineWith(t, map[string]string{
		"proc/thread-self/net/tcp":  tcp4,
		"proc/thread-self/net/tcp6": tcp6,
		"proc/thread-self/net/udp":  udp4,
		"proc/10/fd/3":              "->socket:[100]",
		"proc/10/fd/4":              "->/dev/null",
		"proc/11/fd/9":              "->socket:[105]",
	})
	processes := []Process{{PID: 10, Name: "nginx"}, {PID: 11, Name: "named"}, {PID: 12, Name: "gone"}}
	got, err := m.Sockets(processes)
	var texts []string
	for _, s := range got {
		texts = append(texts, s.String())
	}
	want := []string{
		"nginx (pid 10) on TCP 0.0.0.0:30080",
		"somebody on TCP 127.0.0.1:10249",
		"somebody on TCP [::]:10256",
		"somebody on TCP 127.0.0.1:10257",
		"named (pid 11) on UDP 10.0.0.1:53",
	}
	if err != nil || !slices.Equal(texts, want) {
		t.Errorf("got %q, %v; want %q", texts, err, want)
	}
}

// The real lists name a socket of this process.
func TestSocketsOfThisProcess(t *testing.T) {
	listener, address := listen(t)
	defer listener.Close()
	m := NewMachine()
	processes, err := m.Processes()
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := m.Sockets(processes)
	if err != nil {
		t.Fatal(err)
	}
	found := slices.ContainsFunc(sockets, func(s Socket) bool {
		return s.Protocol == "TCP" && s.Address == address && s.Owner != nil && s.Owner.PID == os.Getpid()
	})
	if !found {
		t.Errorf("the socket on %v is not among %v", address, sockets)
	}
}

func FuzzReadSocket(f *testing.F) {
	f.Add(tcp4)
	f.Add(udp4)
	f.Add("0: :0 :0 0A 0 0 0 0 0 1")
	f.Fuzz(func(t *testing.T, line string) {
		address, inode, ok := readSocket(line, "0A")
		if ok != (address != netip.AddrPort{} && inode != "") {
			t.Errorf("%q: got %v, %q, %t", line, address, inode, ok)
		}
	})
}

func isLittleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

func listen(t *testing.T) (net.Listener, netip.AddrPort) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener, listener.Addr().(*net.TCPAddr).AddrPort()
}
