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
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// errNoScratch says that the process may not make a network namespace.
var errNoScratch = errors.New("could not make a network namespace to try things in")

// abilities is what an agent finds that its rules can use.
type abilities struct {
	host proxier.Host
	// kernels are those that can rewrite addresses, and can is what each has.
	kernels []*iptables.Runner
	can     map[model.Family]*capabilities
	// untried is errNoScratch if nothing could be tried.
	untried error
}

// lookAtHost finds out what an agent would, but writes nothing in the host's network
// namespace: what kernel and programs can do is tried in a namespace of its own. Where
// that is not permitted, as in most containers, they are taken to have everything.
func lookAtHost(ctx context.Context, kernels []*iptables.Runner, sctp bool) (abilities, error) {
	found := abilities{kernels: kernels, can: map[model.Family]*capabilities{}}
	var err error
	if found.host.TCPBeLiberal, err = sysctl.New().TCPBeLiberal(); err != nil {
		return found, err
	}
	err = inScratch(func() (err error) {
		ctx := klog.NewContext(ctx, logr.Discard())
		var accounts error
		found.host, accounts = withAccounts(found.host)
		if found.kernels, found.can, err = lookAt(ctx, kernels, accounts); err != nil {
			return err
		}
		for _, c := range found.can {
			if sctp {
				c.askSCTP()
				err = errors.Join(err, c.look(ctx))
			}
		}
		return err
	})
	if errors.Is(err, errNoScratch) {
		found.untried = err
		found.host.InvalidAccount = existing(nfacct.InvalidDropped)
		found.host.LocalhostAccount = existing(nfacct.LocalhostNodePorts)
		for _, kernel := range kernels {
			found.can[kernel.Family()] = newCapabilities(kernel)
		}
		err = nil
	}
	return found, err
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
