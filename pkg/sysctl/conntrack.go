package sysctl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Conntrack is what the configuration says of connection tracking, kube-proxy's
// settings of the same names. Zero leaves a setting as it is. Descriptions of the
// settings are in the kernel's Documentation/networking/nf_conntrack-sysctl.rst.
type Conntrack struct {
	// MaxPerCore and Min give the size of the table, see Max. MaxPerCore 0 leaves it.
	MaxPerCore, Min       int
	TCPEstablishedTimeout time.Duration
	TCPCloseWaitTimeout   time.Duration
	TCPBeLiberal          bool
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
}

// mostEntries caps the size of the table on machines with many cores: an entry
// costs about 300 bytes of kernel memory, its share of the hash table not counted.
const mostEntries = 1 << 20

// Max is how many entries the table shall hold on a machine with that many CPUs, 0
// to leave it as it is.
func (c Conntrack) Max(cpus int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	scaled := c.MaxPerCore * cpus
	if scaled > mostEntries {
		return mostEntries
	}
	return max(scaled, c.Min)
}

const (
	conntrackMax      = "proc/sys/net/netfilter/nf_conntrack_max"
	conntrackHashSize = "sys/module/nf_conntrack/parameters/hashsize"
	onlineCPUs        = "sys/devices/system/cpu/online"
)

// SetConntrack applies the settings. One that cannot be written does not keep the
// others from being tried; the error joins what failed, a *WriteError each.
func (k Kernel) SetConntrack(ctx context.Context, c Conntrack) error {
	var errs []error
	if want := c.Max(k.CPUs()); want > 0 {
		errs = append(errs, k.raise(ctx, conntrackMax, want), k.raise(ctx, conntrackHashSize, want/4))
	}
	if c.TCPBeLiberal {
		errs = append(errs, k.set(ctx, tcpBeLiberal, "1"))
	}
	for _, timeout := range []struct {
		name string
		want time.Duration
	}{
		{"tcp_timeout_established", c.TCPEstablishedTimeout},
		{"tcp_timeout_close_wait", c.TCPCloseWaitTimeout},
		{"udp_timeout", c.UDPTimeout},
		{"udp_timeout_stream", c.UDPStreamTimeout},
	} {
		if timeout.want > 0 {
			seconds := strconv.FormatInt(int64(timeout.want/time.Second), 10)
			errs = append(errs, k.set(ctx, "proc/sys/net/netfilter/nf_conntrack_"+timeout.name, seconds))
		}
	}
	return errors.Join(errs...)
}

// raise sets the setting to at least want. A larger value is somebody's choice.
func (k Kernel) raise(ctx context.Context, file string, want int) error {
	have, err := k.readInt(file)
	switch {
	case err != nil:
		return &WriteError{Path: filepath.Join(k.root, file), Have: "unknown", Want: strconv.Itoa(want), Err: bare(err)}
	case have >= want:
		return nil
	}
	return k.set(ctx, file, strconv.Itoa(want))
}

// CPUs is how many CPUs of the machine are online. The table is the machine's, but
// runtime.NumCPU counts only those that this process may use, which a static CPU
// policy can make one.
func (k Kernel) CPUs() int {
	list, err := k.read(onlineCPUs)
	if err != nil {
		return runtime.NumCPU()
	}
	n, err := countCPUs(list)
	if err != nil {
		return runtime.NumCPU()
	}
	return n
}

// countCPUs counts the CPUs of a list such as "0-3,8".
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 31)
		b, errB := strconv.ParseUint(last, 10, 31)
		if errA != nil || errB != nil || b < a {
			return 0, fmt.Errorf("list of CPUs %q: want ranges of numbers", list)
		}
		n += int(b-a) + 1
	}
	return n, nil
}
