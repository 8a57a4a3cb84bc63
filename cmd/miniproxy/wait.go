package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
)

// busyPause is how long to wait before tables are looked at again that could not be
// got at. The programs wait for the lock themselves, each time.
const busyPause = time.Second

// waitForTables calls look until it does not say any more that the tables cannot be
// got at: a lock that is held at the very start is no reason not to start. Whoever has
// no right to get at them waits for nothing, and is told at once.
func waitForTables(ctx context.Context, look func() error) error {
	for said := false; ; said = true {
		err := look()
		if !iptables.IsBusy(err) || !mayAdministerNetwork() {
			return err
		}
		if !said {
			klog.FromContext(ctx).Error(err, "Cannot get at the iptables tables, most likely because another program holds their lock; waiting")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(busyPause):
		}
	}
}

// mayAdministerNetwork reports whether the process has CAP_NET_ADMIN. Programs say the
// same of a lock that is held and of a right that is lacking.
func mayAdministerNetwork() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}
