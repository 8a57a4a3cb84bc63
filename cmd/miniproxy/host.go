package main

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/proxier"
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

// initOnly sets what needs more rights than NET_ADMIN. An agent that runs after it
// finds everything as it wants it.
func initOnly(ctx context.Context, c *config.Config) error {
	kernel := sysctl.New()
	err := kernel.SetConntrack(ctx, kernelSettings(c))
	if servesLoopback(c) {
		err = errors.Join(err, kernel.SetRouteLocalnet(ctx))
	}
	return err
}

// servesLoopback reports whether node ports are to answer on 127.0.0.1.
func servesLoopback(c *config.Config) bool {
	return proxier.Options(c, model.IPv4, model.NodeFacts{}, proxier.Host{}).NodePorts.Loopback
}

// prepareHost sets what the configuration asks of the kernel, and says what the rules
// can count on. What cannot be set is no reason not to run.
func prepareHost(ctx context.Context, c *config.Config, kernels []*iptables.Runner) proxier.Host {
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
	host.InvalidAccount = accountFor(ctx, kernels, nfacct.InvalidDropped)
	host.LocalhostAccount = accountFor(ctx, kernels, nfacct.LocalhostNodePorts)
	metrics.RegisterAccounting(metrics.ProcessRegistry{}, nfacct.Kernel{}, host.InvalidAccount, host.LocalhostAccount)
	return host
}

// accountFor makes an accounting object and returns its name, empty if the kernel
// or its iptables cannot count on it.
func accountFor(ctx context.Context, kernels []*iptables.Runner, name string) string {
	err := nfacct.Kernel{}.Ensure(name)
	for _, kernel := range kernels {
		if err == nil {
			var missing map[string]error
			counts := ruleset.Rule{Matches: []ruleset.Match{ruleset.NFAcct{Name: name}}}
			missing, err = kernel.Probe(ctx, []iptables.Feature{{Name: name, Table: ruleset.Filter, Rules: []ruleset.Rule{counts}}})
			err = errors.Join(err, missing[name])
		}
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Rules do not count on an accounting object, and its metric is absent", "object", name, "err", err)
		return ""
	}
	return name
}
