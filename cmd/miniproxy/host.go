package main

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// kernelSettings are what the configuration asks of connection tracking.
func kernelSettings(c *config.Config) sysctl.Conntrack {
	return sysctl.Conntrack{
		MaxPerCore:            c.Conntrack.MaxPerCore,
		Min:                   c.Conntrack.Min,
		TCPEstablishedTimeout: c.Conntrack.TCPEstablishedTimeout,
		TCPCloseWaitTimeout:   c.Conntrack.TCPCloseWaitTimeout,
		TCPBeLiberal:          c.Conntrack.TCPBeLiberal,
		UDPTimeout:            c.Conntrack.UDPTimeout,
		UDPStreamTimeout:      c.Conntrack.UDPStreamTimeout,
	}
}

// initOnly does what needs more rights than NET_ADMIN: it has the kernel load what the
// rules need, which asking for it does, and writes the settings, some of which are
// there only after that. An agent that runs after it finds everything as it wants it.
func (o *options) initOnly(ctx context.Context, c *config.Config) error {
	_, accounts := withAccounts(proxier.Host{})
	kernels, err := o.kernels(ctx)
	var can map[model.Family]*capabilities
	if err == nil {
		kernels, can, err = lookAt(ctx, kernels, accounts)
	}
	err = errors.Join(err, sysctl.New().SetConntrack(ctx, kernelSettings(c)))
	for _, kernel := range kernels {
		if kernel.Family() == model.IPv4 && servesLoopback(c) {
			err = errors.Join(err, openLoopback(ctx, kernel, can[model.IPv4]))
		}
	}
	return err
}

// openLoopback lets node ports answer on 127.0.0.1, once the rule is in the kernel that
// guards it: the agent writes the same one, but only when it knows the cluster, and
// until then neighbours could reach what listens there.
func openLoopback(ctx context.Context, kernel *iptables.Runner, can *capabilities) error {
	if !can.has(featureConntrack) {
		klog.FromContext(ctx).Info("Node ports will not answer on 127.0.0.1: the rule that guards it needs what the kernel lacks", "feature", featureConntrack)
		return nil
	}
	guard := render.LoopbackGuard()
	for _, rule := range guard.Rules {
		if err := kernel.EnsureRule(ctx, guard.ChainID, rule); err != nil {
			return err
		}
	}
	jumps := slices.DeleteFunc(can.lacks().Hooks(), func(h ruleset.Hook) bool { return h.Rule.Target() != guard.Name })
	if _, err := kernel.EnsureJumps(ctx, jumps); err != nil {
		return err
	}
	return sysctl.New().SetRouteLocalnet(ctx)
}

// servesLoopback reports whether node ports are to answer on 127.0.0.1.
func servesLoopback(c *config.Config) bool {
	return proxier.Options(c, model.IPv4, model.NodeFacts{}, proxier.Host{}).NodePorts.Loopback
}

// prepareHost sets what the configuration asks of the kernel, and says what the rules
// can count on. What cannot be set is no reason not to run. The error says why packets
// cannot be counted.
func prepareHost(ctx context.Context, c *config.Config) (proxier.Host, error) {
	logger := klog.FromContext(ctx)
	kernel := sysctl.New()
	if err := kernel.SetConntrack(ctx, kernelSettings(c)); err != nil {
		logger.Error(err, "Could not set up connection tracking as configured; going on with what there is")
	}
	if err := kernel.SetOOMScoreAdj(ctx, c.OOMScoreAdj); err != nil {
		logger.V(2).Info("Could not set oom_score_adj", "err", err)
	}
	var host proxier.Host
	var err error
	if host.TCPBeLiberal, err = kernel.TCPBeLiberal(); err != nil {
		logger.Error(err, "Could not read how strict connection tracking is; packets that it cannot place are dropped")
	}
	return withAccounts(host)
}

// withAccounts makes the accounting objects, and names them in what the host offers.
func withAccounts(host proxier.Host) (proxier.Host, error) {
	for _, name := range []string{nfacct.InvalidDropped, nfacct.LocalhostNodePorts} {
		if err := (nfacct.Kernel{}).Ensure(name); err != nil {
			return host, err
		}
	}
	host.InvalidAccount, host.LocalhostAccount = nfacct.InvalidDropped, nfacct.LocalhostNodePorts
	return host, nil
}

// registerAccounting shows what the objects count, if some rule counts on them.
func registerAccounting(host proxier.Host, can map[model.Family]*capabilities) {
	for _, c := range can {
		if c.has(featureNFAcct) {
			metrics.RegisterAccounting(metrics.ProcessRegistry{}, nfacct.Kernel{}, host.InvalidAccount, host.LocalhostAccount)
			return
		}
	}
}
