// Package sysctl reads and writes the few kernel settings that the agent depends
// on: sizes and timeouts of connection tracking, route_localnet, and the process's
// own place in the order of the out-of-memory killer.
//
// In an unprivileged container /proc/sys is mounted read-only; then an init
// container does this part (--init-only). So a setting that cannot be written is
// reported and never a reason not to run: the rules work without it.
//
// How the agent uses it. main calls SetConntrack and SetOOMScoreAdj at start and
// logs what they return as warnings; with --init-only their errors are the exit
// status. The renderer's DropInvalid is the negation of TCPBeLiberal. Where node
// ports are to answer on loopback addresses, main calls SetRouteLocalnet after a sync
// of IPv4, when the rule that protects these is in the kernel (B-12), and has loopback
// node ports left out when it fails.
package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Kernel are the settings of the running kernel, those below net/ of the network
// namespace of the process.
type Kernel struct {
	// root is where proc and sys are found.
	root string
}

// New returns the settings of this machine.
func New() Kernel { return Kernel{root: "/"} }

// WriteError says that a setting is not as it was asked for.
type WriteError struct {
	// Path is the file of the setting.
	Path string
	// Have and Want are the value that it has ("unknown" if it cannot be read) and the
	// value that it should have.
	Have, Want string
	Err        error
}

// Error names the setting, both values and the cause.
func (e *WriteError) Error() string {
	text := fmt.Sprintf("set %s to %s (it is %s): %v", e.Path, e.Want, e.Have, e.Err)
	if e.IsReadOnly() {
		text += "; set it on the host, or run --init-only in a privileged init container"
	}
	return text
}

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Err }

// IsReadOnly reports whether the process may not write the setting at all, as in an
// unprivileged container.
func (e *WriteError) IsReadOnly() bool {
	return errors.Is(e.Err, unix.EROFS) || errors.Is(e.Err, fs.ErrPermission)
}

// The settings, by their files.
const (
	tcpBeLiberal  = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"
	routeLocalnet = "proc/sys/net/ipv4/conf/all/route_localnet"
	oomScoreAdj   = "proc/self/oom_score_adj"
)

// TCPBeLiberal reports whether connection tracking accepts TCP packets outside of
// the window. If it does, packets of state INVALID must not be dropped (B-49). A
// kernel without the setting does not.
func (k Kernel) TCPBeLiberal() (bool, error) {
	value, err := k.read(tcpBeLiberal)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return value != "0", nil
}

// SetRouteLocalnet lets packets to 127.0.0.0/8 be routed, which node ports on
// loopback addresses need. It also lets neighbours on the link reach what listens
// there, unless a rule forbids it (CVE-2020-8558).
func (k Kernel) SetRouteLocalnet(ctx context.Context) error { return k.set(ctx, routeLocalnet, "1") }

// RouteLocalnet reports whether packets to 127.0.0.0/8 are routed.
func (k Kernel) RouteLocalnet() (bool, error) {
	value, err := k.read(routeLocalnet)
	return value == "1", err
}

// SetOOMScoreAdj sets how willing the kernel is to kill this process when memory
// runs out, from -1000 (never) to 1000. A value below the current one needs
// CAP_SYS_RESOURCE.
func (k Kernel) SetOOMScoreAdj(ctx context.Context, score int) error {
	return k.set(ctx, oomScoreAdj, strconv.Itoa(score))
}

// set writes the setting unless it has the value. The error is a *WriteError.
func (k Kernel) set(ctx context.Context, file, want string) error {
	have, err := k.read(file)
	if err == nil && have == want {
		return nil
	}
	if err != nil {
		have = "unknown"
	}
	path := filepath.Join(k.root, file)
	if err := write(path, want); err != nil {
		return &WriteError{Path: path, Have: have, Want: want, Err: err}
	}
	klog.FromContext(ctx).Info("Changed kernel setting", "setting", path, "from", have, "to", want)
	return nil
}

// write writes to a file that exists. A setting that the kernel lacks must not
// become a file where the root is a directory of a test.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return bare(err)
	}
	_, err = f.WriteString(value)
	return bare(errors.Join(err, f.Close()))
}

// bare takes the path off an error that will be told with the path anyway.
func bare(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

func (k Kernel) read(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(k.root, file))
	if err != nil {
		return "", fmt.Errorf("read kernel setting: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (k Kernel) readInt(file string) (int, error) {
	text, err := k.read(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read kernel setting %s: %w", filepath.Join(k.root, file), err)
	}
	return n, nil
}
