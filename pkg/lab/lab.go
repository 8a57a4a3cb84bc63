// Package lab builds small networks of network namespaces on one machine: nodes,
// pods and clients with links, bridges, routes and addresses of their own. The
// demo and the tests send real packets through them.
//
// A lab has no link to the machine's own interfaces and no route that leads out of
// it. Every namespace of a lab carries the lab's name, which in turn carries the
// identity of the process that made it, so several labs can stand side by side and
// one that a killed process left behind can be found and removed.
//
// The package needs root and the ip command of iproute2.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// netnsDir is where iproute2 keeps the names of network namespaces, see ip-netns(8).
const netnsDir = "/run/netns"

// ipTimeout bounds one call of ip. It takes milliseconds; a call that takes longer
// than this waits for a kernel lock that nobody will release.
const ipTimeout = 30 * time.Second

var (
	// ErrNotRoot says that the process may not make network namespaces.
	ErrNotRoot = errors.New("network namespaces need root")
	// ErrNoIP says that the ip command is missing.
	ErrNoIP = errors.New("the ip command is missing (package iproute2)")
)

// Available says whether this process can make a lab: nil, ErrNotRoot or ErrNoIP.
func Available() error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return ErrNoIP
	}
	return nil
}

// Lab is a set of network namespaces with a name of its own. Its methods may be
// called from several goroutines.
type Lab struct {
	name string

	mu    sync.Mutex
	hosts map[string]*Host
}

// New returns an empty lab whose name begins with prefix, a short word of lower-case
// letters and digits. The caller must Close it.
func New(prefix string) (*Lab, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	name, err := newName(prefix)
	if err != nil {
		return nil, err
	}
	return &Lab{name: name, hosts: map[string]*Host{}}, nil
}

// Name is the lab's name. The namespace of a host is named Name-host.
func (l *Lab) Name() string { return l.name }

// Host adds a network namespace with its loopback interface up and nothing else in it.
func (l *Lab) Host(name string) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[name] != nil {
		return nil, fmt.Errorf("lab %s has a host %q already", l.name, name)
	}
	h := &Host{name: name, netns: l.name + "-" + name}
	if err := runIP("netns", "add", h.netns); err != nil {
		return nil, fmt.Errorf("add host %s: %w", name, err)
	}
	l.hosts[name] = h
	if err := h.prepare(); err != nil {
		return nil, fmt.Errorf("prepare host %s: %w", name, err)
	}
	return h, nil
}

// Close removes every namespace of the lab, also after building it failed half way.
// A namespace goes when the last process in it has ended: processes started in the
// lab are the caller's to end.
func (l *Lab) Close() error { return Remove(l.name) }

// Remove removes every namespace of the lab of that name. A lab that is not there
// is no error.
func Remove(name string) error {
	hosts, err := namespaces(name)
	if err != nil {
		return fmt.Errorf("remove lab %s: %w", name, err)
	}
	var errs []error
	for _, netns := range hosts {
		errs = append(errs, runIP("netns", "del", netns))
	}
	return errors.Join(errs...)
}

// namespaces lists the namespaces of one lab.
func namespaces(lab string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(netnsDir, lab+"-*"))
	if err != nil {
		return nil, err
	}
	for i, path := range all {
		all[i] = filepath.Base(path)
	}
	return all, nil
}

// runIP runs one ip command. It has a process group of its own: a Ctrl-C at the
// terminal must not kill the commands that take the lab down.
func runIP(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), ipTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
