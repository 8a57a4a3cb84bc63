package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/health"
	"github.com/miniproxy/miniproxy/pkg/httpserver"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// agent is the running program: the rooms, connected.
type agent struct {
	config   *config.Config
	options  *options
	host     proxier.Host
	report   *reporter
	health   *health.State
	metrics  *metrics.Metrics
	restores *metrics.Restores
	refused  *quarantine
	families []*familyAgent
	// prepared is closed when prepare has ended, which sets host, report and families.
	prepared chan struct{}
	// begun is closed when everything that the rules need has been delivered once.
	// Nothing is written before: half of a cluster's Services would look as if the other
	// half had been deleted.
	begun   chan struct{}
	started time.Time

	// What events have said so far; they never overlap.
	listed bool
	node   *corev1.Node
}

func newAgent(c *config.Config, o *options) *agent {
	return &agent{
		config:   c,
		options:  o,
		report:   &reporter{},
		health:   health.NewState(2 * c.SyncPeriod),
		metrics:  metrics.New(metrics.ProcessRegistry{}),
		restores: metrics.NewRestores(),
		refused:  newQuarantine(),
		prepared: make(chan struct{}),
		begun:    make(chan struct{}),
		started:  time.Now(),
	}
}

// run works until the context ends or something fails that the agent cannot work
// without. It answers probes before anything else: what comes then may have to wait,
// for the lock of iptables or for the API server.
func (a *agent) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts := make(chan error)
	running := 0
	start := func(name string, run func(context.Context) error) {
		running++
		go func() {
			err := run(ctx)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				stop()
			}
			parts <- err
		}()
	}
	for _, server := range a.servers() {
		start("serve "+server.Name, server.Run)
	}
	source, failure := a.prepare(ctx)
	close(a.prepared)
	if failure == nil {
		start("watch the cluster", func(ctx context.Context) error { return source.Run(ctx, a) })
		start("watch the configuration", a.watchConfig)
		for _, f := range a.families {
			start(f.family.String(), func(ctx context.Context) error { f.run(ctx); return nil })
		}
	} else {
		failure = untilDone(ctx, failure)
		stop()
	}

	// A part that fails takes the others with it: half an agent would look alive.
	for ; running > 0; running-- {
		failure = errors.Join(failure, <-parts)
	}
	klog.FromContext(ctx).Info("Stopped; the rules stay in place")
	return failure
}

// prepare finds out what the kernel can do and which API server answers, and returns
// where the objects come from.
func (a *agent) prepare(ctx context.Context) (config.Source, error) {
	kernels, err := a.options.kernels(ctx)
	if err != nil {
		return nil, needsRoot("run", err)
	}
	source, report, err := newSource(ctx, a.config, kernels)
	if err != nil {
		return nil, err
	}
	a.report = report
	host, accounts := prepareHost(ctx, a.config)
	kernels, can, err := lookAt(ctx, kernels, accounts)
	if err != nil {
		return nil, err
	}
	registerAccounting(host, can)
	a.host = host
	var families []model.Family
	for _, k := range kernels {
		families = append(families, k.Family())
		a.families = append(a.families, newFamilyAgent(a, k, can[k.Family()]))
	}
	a.metrics.SetFamilies(families...)
	a.health.SetFamilies(families...)
	a.report.aboutNode(corev1.EventTypeNormal, reasonStarting, actionStart, "")
	if a.config.ModeDefaulted {
		a.report.aboutNode(corev1.EventTypeWarning, reasonDefaultMode, actionStart, defaultModeDescribed)
	}
	return source, nil
}

// errReload ends an agent whose configuration file has changed.
var errReload = errors.New("the configuration file has changed: start again to use it")

// watchConfig ends the agent with errReload when its configuration changes. Flows
// and rules stay as they are until the next start, which begins with all of it.
func (a *agent) watchConfig(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := a.options.config.WatchConfig(ctx, a.config, func(*config.Config) { stop(errReload) })
	if errors.Is(context.Cause(ctx), errReload) {
		return errReload
	}
	return err
}

// ServiceChanged implements config.Events.
func (a *agent) ServiceChanged(old, current *corev1.Service) {
	a.metrics.ServiceChanged()
	if current != nil {
		if err := tracker.Unfit(current); err != nil {
			klog.Background().Error(err, "A Service gets no rules, or not for all of its ports", "service", klog.KObj(current))
		}
	}
	old, current = allowed(a.config, old), allowed(a.config, current)
	for _, f := range a.families {
		if hasSCTP(current) {
			f.can.askSCTP()
		}
		if f.tracker.ServiceChanged(old, current) {
			f.queue()
		}
	}
}

// allowed returns what of a Service the configuration lets count: spec.externalIPs may
// be turned off (KEP-5707). Objects are shared, and not changed.
func allowed(c *config.Config, svc *corev1.Service) *corev1.Service {
	if c.FeatureGates.Enabled(config.AllowServiceExternalIPs) || svc == nil || len(svc.Spec.ExternalIPs) == 0 {
		return svc
	}
	without := *svc
	without.Spec.ExternalIPs = nil
	return &without
}

// EndpointSliceChanged implements config.Events.
func (a *agent) EndpointSliceChanged(old, current *discoveryv1.EndpointSlice) {
	a.metrics.EndpointsChanged()
	for _, f := range a.families {
		if f.tracker.EndpointSliceChanged(old, current) {
			f.queue()
		}
	}
}

// NodeChanged implements config.Events.
func (a *agent) NodeChanged(old, current *corev1.Node) {
	a.node = current
	a.health.SetNode(current)
	for _, f := range a.families {
		if f.tracker.NodeChanged(old, current) {
			f.queue()
		}
	}
	a.begin()
}

// Synced implements config.Events.
func (a *agent) Synced() {
	a.listed = true
	a.health.SetNode(a.node)
	a.begin()
}

// begin lets the rules be written once everything that they need is known.
func (a *agent) begin() {
	if !a.listed || a.hasBegun() {
		return
	}
	if needsPodCIDR(a.config, a.node) {
		klog.Background().Info("Writing no rules before the Node has a podCIDR, which detectLocalMode NodeCIDR needs", "node", a.config.NodeName)
		return
	}
	close(a.begun)
	for _, f := range a.families {
		f.queue()
	}
}

// needsPodCIDR reports whether the rules need the Node's range of pods, and it has none
// yet. Without it every pod would count as a stranger, and be masqueraded.
func needsPodCIDR(c *config.Config, node *corev1.Node) bool {
	return c.LocalDetector.Mode == config.LocalModeNodeCIDR && (node == nil || node.Spec.PodCIDR == "")
}

// hasBegun reports whether the rules may be written.
func (a *agent) hasBegun() bool { return isClosed(a.begun) }

// servers are the pages that the agent shows.
func (a *agent) servers() []httpserver.Server {
	pages := metrics.Pages{
		Metrics:      metrics.ProcessRegistry{}.Handler(),
		ProxyMode:    "iptables",
		Component:    "miniproxy",
		Version:      versionName(),
		Config:       a.config.Raw,
		Flags:        a.options.values(),
		Debug:        append(a.restores.Pages(), a.refused.page()),
		Profiling:    a.config.Profiling,
		SetVerbosity: logs.GlogSetter,
	}
	return []httpserver.Server{
		{
			Name:     "health",
			Address:  address(a.config.Healthz),
			Handler:  a.health.Handler(a.metrics),
			HardFail: a.config.BindAddressHardFail,
			Failed:   a.reportServer(reasonHealthFailed),
		},
		{
			Name:         "metrics",
			Address:      address(a.config.Metrics),
			Handler:      pages.Handler(),
			HardFail:     a.config.BindAddressHardFail,
			WriteTimeout: pages.WriteTimeout(),
			Failed:       a.reportServer(reasonMetricsFailed),
		},
	}
}

// reportServer returns what reports that a server could not listen, once there is an
// API server to report to.
func (a *agent) reportServer(reason string) func(error) {
	return func(err error) {
		go func() {
			<-a.prepared
			a.report.aboutNode(corev1.EventTypeWarning, reason, actionStart, "%v", err)
		}()
	}
}

// address spells where to listen; nothing for a server that is switched off.
func address(addr netip.AddrPort) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}
