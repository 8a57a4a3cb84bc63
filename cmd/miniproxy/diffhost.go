package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// errNoScratch says that the process may not make a network namespace.
var errNoScratch = errors.New("could not make a network namespace to try things in")

// hostAsFound is what the agent finds on the host, but nothing in the host's network
// namespace is changed for it: what the kernel and its iptables can do is tried in a
// namespace of its own. Where that is not permitted, as in most containers, they are
// taken to be able to do everything, and rules to count on the objects that exist.
func hostAsFound(ctx context.Context, kernels []*iptables.Runner) (proxier.Host, error) {
	var host proxier.Host
	var err error
	if host.TCPBeLiberal, err = sysctl.New().TCPBeLiberal(); err != nil {
		return host, err
	}
	err = inScratch(func() error {
		ctx := klog.NewContext(ctx, logr.Discard())
		host.InvalidAccount = accountFor(ctx, kernels, nfacct.InvalidDropped)
		host.LocalhostAccount = accountFor(ctx, kernels, nfacct.LocalhostNodePorts)
		return ctx.Err()
	})
	if errors.Is(err, errNoScratch) {
		host.InvalidAccount = existing(nfacct.InvalidDropped)
		host.LocalhostAccount = existing(nfacct.LocalhostNodePorts)
		err = nil
	}
	return host, err
}

// existing returns the name of an accounting object if there is one of that name.
func existing(name string) string {
	if _, err := (nfacct.Kernel{}).Packets(name); err != nil {
		return ""
	}
	return name
}

// inScratch runs f on a thread in a new network namespace, which ends with it. Programs
// that f runs are in it too. The error wraps errNoScratch if there is none to be had.
func inScratch(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and is not used for others.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("%w: %w", errNoScratch, err)
			return
		}
		result <- f()
	}()
	return <-result
}
