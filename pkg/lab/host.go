package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is one network namespace: a node, a pod, a client, a switch.
type Host struct {
	name  string
	netns string
}

// Name is the host's name within its lab.
func (h *Host) Name() string { return h.name }

// NetNS is the name of the host's namespace, as ip netns knows it.
func (h *Host) NetNS() string { return h.netns }

// prepare gives the namespace a known state: some settings are inherited from the
// machine, and a router's settings would make a pod forward or believe redirects.
func (h *Host) prepare() error {
	settings := []Setting{
		{"net/ipv4/ip_forward", "0"},
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
		{"net/ipv4/conf/all/route_localnet", "0"},
		{"net/ipv4/conf/default/route_localnet", "0"},
		{"net/ipv4/conf/all/accept_redirects", "0"},
		{"net/ipv4/conf/default/accept_redirects", "0"},
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
	}
	if HasIPv6() {
		settings = append(settings,
			Setting{"net/ipv6/conf/all/disable_ipv6", "0"},
			Setting{"net/ipv6/conf/default/disable_ipv6", "0"},
			Setting{"net/ipv6/conf/all/accept_redirects", "0"},
			Setting{"net/ipv6/conf/default/accept_redirects", "0"},
			Setting{"net/ipv6/conf/default/accept_ra", "0"},
			// Without this a new address may not be used for a second or two, until the
			// kernel has asked the link whether somebody else has it.
			Setting{"net/ipv6/conf/default/accept_dad", "0"},
		)
	}
	if err := h.Sysctl(settings...); err != nil {
		return err
	}
	return h.ip("link", "set", "lo", "up")
}

// HasIPv6 reports whether this kernel speaks IPv6.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// Setting is one kernel setting: a path below /proc/sys and what to write there.
type Setting struct {
	Path  string
	Value string
}

// Sysctl writes kernel settings of this namespace, those below net/.
func (h *Host) Sysctl(settings ...Setting) error {
	return h.Do(func() error {
		for _, s := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", s.Path), []byte(s.Value), 0o644); err != nil {
				return fmt.Errorf("set %s to %s: %w", s.Path, s.Value, err)
			}
		}
		return nil
	})
}

// ip runs one ip command on the namespace.
func (h *Host) ip(args ...string) error {
	return runIP(append([]string{"-n", h.netns}, args...)...)
}

// Command returns a command that will run in the namespace. The process that starts
// is the program itself, so signals and the exit status are the program's own.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path, err := exec.LookPath(name)
	if err != nil {
		path = name
	}
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.netns, path}, args...)...)
	if err != nil {
		// Said at Start like every exec.Cmd does; ip would only report an exit status.
		cmd.Err = err
	}
	return cmd
}

// Run runs a command in the namespace and returns its standard output. The error
// holds the command, its exit status and what it wrote to standard error.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := h.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("on %s: %s %s: %w: %s",
			h.name, name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// errGoexit is what Do returns when its function ended the goroutine instead of
// returning, as testing.T.FailNow does.
var errGoexit = errors.New("the function did not return")

// Do calls f on a thread that is in the namespace and returns f's error. Sockets and
// files that f opens stay in the namespace afterwards; goroutines that f starts do
// not run in it. f runs on a goroutine of its own.
func (h *Host) Do(f func() error) error {
	err := errGoexit
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = h.doLocked(f)
	}()
	<-done
	return err
}

// doLocked is Do on the calling goroutine, which must end after it: a thread that
// cannot be brought back stays locked, so that it is thrown away with the goroutine.
func (h *Host) doLocked(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", h.name, err)
	}
	defer home.Close()
	away, err := os.Open(filepath.Join(netnsDir, h.netns))
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", h.name, err)
	}
	defer away.Close()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", h.name, err)
	}
	defer func() {
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Listen is net.Listen in the namespace. The address must be a literal one: names
// are looked up on other goroutines, which are elsewhere.
func (h *Host) Listen(ctx context.Context, network, addr string) (l net.Listener, err error) {
	err = h.Do(func() error {
		l, err = (&net.ListenConfig{}).Listen(ctx, network, addr)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket in the namespace, for a literal address.
func (h *Host) ListenPacket(ctx context.Context, network, addr string) (c net.PacketConn, err error) {
	err = h.Do(func() error {
		c, err = (&net.ListenConfig{}).ListenPacket(ctx, network, addr)
		return err
	})
	return c, err
}

// Dial connects from the namespace to a literal address. It has the form of
// http.Transport.DialContext.
func (h *Host) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("dial from %s: want a literal address and port: %w", h.name, err)
	}
	err = h.Do(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}
