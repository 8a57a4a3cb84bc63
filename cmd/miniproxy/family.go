package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/conntrack"
	"github.com/miniproxy/miniproxy/pkg/health"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// familyAgent is the agent's part for one IP family. The two stand alone: what one
// cannot do does not keep the other from working.
type familyAgent struct {
	*agent
	family  model.Family
	kernel  *iptables.Runner
	can     *capabilities
	tracker *tracker.Tracker
	proxier *proxier.Proxier
	runner  *proxier.Runner
	// healthPorts answers on the health-check node ports.
	healthPorts *health.Services
	// conflicts are those that events were written about.
	conflicts []render.Conflict
	// told are the missing features that the Services concerned were told of.
	told map[string]bool
	// noLoopback says that node ports cannot answer on loopback addresses here.
	noLoopback bool
	// flows removes UDP flows to where no rule leads any more.
	flows *conntrack.Cleaner
	// drift has repaired what others change.
	drift *drift
	// tried is closed by firstTry, when the first sync has ended.
	tried    chan struct{}
	firstTry func()
	// failover frees TCP connections that wait for an endpoint that has left.
	failover *conntrack.Failover
}

func newFamilyAgent(a *agent, kernel *iptables.Runner, can *capabilities) *familyAgent {
	f := &familyAgent{
		agent:       a,
		family:      kernel.Family(),
		kernel:      kernel,
		can:         can,
		told:        map[string]bool{},
		tried:       make(chan struct{}),
		tracker:     tracker.New(kernel.Family(), a.config.NodeName),
		healthPorts: health.NewServices(a.health.Healthy, a.reportHealthPort),
		flows:       conntrack.New(kernel.Family(), conntrack.Kernel{}, a.metrics),
		failover:    conntrack.NewFailover(kernel.Family(), conntrack.Kernel{}, a.metrics, a.options.dropEstablished),
	}
	f.firstTry = sync.OnceFunc(func() { close(f.tried) })
	settings := proxier.Settings{
		Chunk:      proxier.ChunkNFT,
		Parallel:   min(runtime.GOMAXPROCS(0), proxier.ParallelNFT), // one CPU does one at a time
		JumpPeriod: a.config.SyncPeriod,
		JumpsAwait: func() bool { return f.drift.jumpsAwait() },
	}
	if kernel.Backend() == iptables.Legacy {
		settings.Chunk, settings.Parallel, settings.JumpsFirst = proxier.ChunkLegacy, 1, true
	}
	f.proxier = proxier.New(f.family, f, recordingKernel{kernel, a}, settings, f.rendering, f)
	f.runner = proxier.NewRunner(f.sync, pace(a.config))
	f.drift = newDrift(f)
	return f
}

// recordingKernel is the kernel's door, with a record of what went through it.
type recordingKernel struct {
	*iptables.Runner
	agent *agent
}

// Restore implements proxier.Kernel.
func (k recordingKernel) Restore(ctx context.Context, input []byte) error {
	err := k.Runner.Restore(ctx, input)
	k.agent.restores.Restored(k.Family(), input, err)
	if err != nil {
		k.agent.metrics.RestoreFailed(k.Family())
	}
	return err
}

// pace says how fast changes are followed, and how often the rules are looked after.
func pace(c *config.Config) proxier.Pace {
	p := proxier.Pace{Pause: proxier.PaceByCost, Retry: proxier.Backoff(c.SyncPeriod), Max: c.SyncPeriod}
	if c.MinSyncPeriodSet {
		p.Pause = proxier.PaceFixed(c.MinSyncPeriod)
	}
	return p
}

// run keeps the family's rules until the context ends.
func (f *familyAgent) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("family", f.family.String()))
	f.tellLacks(ctx)
	select {
	case <-ctx.Done():
		return
	case <-f.begun:
	}
	watch := canary.New(f.canaries(), f.config.SyncPeriod, f.touched)
	var parts sync.WaitGroup
	parts.Go(func() {
		f.untilWorthWatching(ctx)
		parts.Go(func() { watch.Run(ctx) })
		f.drift.run(ctx, watch)
	})
	parts.Go(func() { f.healthPorts.Run(ctx) })
	f.runner.Run(ctx)
	parts.Wait()
}

// longestStart is how long the first sync of one family may keep another one from being
// watched.
const longestStart = time.Minute

// untilWorthWatching waits for the first sync of every family, or not much longer than for
// the family's own. On nft the kernel would tell of each rule, of whichever family, and the
// programs that make the canaries need the CPUs, too. What others do meanwhile is found by
// the look that follows. On legacy the kernel tells nothing, and to make the canaries is
// dearer with each rule that there is.
func (f *familyAgent) untilWorthWatching(ctx context.Context) {
	if f.kernel.Backend() == iptables.Legacy {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-f.tried:
	}
	enough := time.After(longestStart)
	for _, other := range f.families {
		select {
		case <-ctx.Done():
			return
		case <-enough:
			return
		case <-other.tried:
		}
	}
}

// haveTried reports whether the first sync of every family has ended.
func (a *agent) haveTried() bool {
	return !slices.ContainsFunc(a.families, func(f *familyAgent) bool { return !isClosed(f.tried) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// queue asks for a sync.
func (f *familyAgent) queue() {
	f.recordPending()
	if !f.hasBegun() {
		return
	}
	f.health.Queued(f.family)
	f.metrics.SyncQueued(f.family, time.Now())
	f.runner.Trigger()
}

// touched is told that somebody else changed the tables.
func (f *familyAgent) touched(report canary.Report) {
	for _, table := range report.Tables {
		f.metrics.CanaryRepaired(f.family, string(table), string(report.Cause))
	}
	f.proxier.ForceFull(report.String())
	f.queue()
}

// Take implements proxier.Tracker.
func (f *familyAgent) Take() (model.Snapshot, tracker.Changes) {
	f.health.Started(f.family)
	snapshot, changes := f.tracker.Take()
	f.recordPending()
	return snapshot, changes
}

func (f *familyAgent) recordPending() {
	services, endpoints := f.tracker.Pending()
	f.metrics.Pending(f.family, services, endpoints)
}

// rendering says what the configuration means on the node and host as they are now.
func (f *familyAgent) rendering(node model.NodeFacts) (render.Options, error) {
	opts, err := f.options.renderingHere(f.config, f.can, node, f.host)
	if f.noLoopback {
		opts.NodePorts.Loopback = false
	}
	return opts, err
}

// hostAddresses are the addresses of all interfaces.
func hostAddresses() ([]netip.Addr, error) {
	networks, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var addresses []netip.Addr
	for _, network := range networks {
		if prefix, err := netip.ParsePrefix(network.String()); err == nil {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	return addresses, nil
}

// Synced implements proxier.Observer.
func (f *familyAgent) Synced(ctx context.Context, r proxier.Result) {
	f.record(r)
	f.firstTry()
	// Once for all families: else the first to be ready would have the garbage of the other
	// one collected in the middle of its start.
	if r.Full && f.haveTried() {
		returnMemory()
	}
	if r.Err != nil {
		f.health.Failed(f.family)
		return
	}
	f.health.Applied(f.family)
	f.drift.synced(r)
	f.healthPorts.Sync(ctx, healthCheckAddresses(r.Options), health.ServiceChecks(r.Snapshot))
	f.cleanFlows(ctx, r)
	f.failOver(ctx, r)
	f.reportServices(r)
	if r.Options.NodePorts.Loopback {
		f.openLoopback(ctx)
	}
}

// Writing implements proxier.Observer.
func (f *familyAgent) Writing(servicePorts, of int) {
	f.metrics.ApplyProgress(f.family, servicePorts, of)
}

// reportHealthPort reports a health-check node port that cannot be listened on.
func (a *agent) reportHealthPort(name model.ServiceName, check health.Check, err error) {
	a.report.aboutService(name, check.UID, reasonPortFailed, actionListen,
		"node %s cannot listen on healthCheckNodePort %d: %v", a.config.NodeName, check.Port, err)
}

// reportServices writes events about Services that do not get what they ask for.
func (f *familyAgent) reportServices(r proxier.Result) {
	for _, name := range r.Changes.ServicePorts {
		if port, exists := r.Snapshot.Services[name]; exists && port.RangesOfOtherFamily && len(port.LoadBalancerVIPs) > 0 {
			f.report.aboutServicePort(name, f.family, port.UID, reasonRangesNotUsed,
				"none of loadBalancerSourceRanges is an %s range: the load balancer IP of this family is open to everybody", f.family)
		}
	}
	for _, refusal := range f.refused.set(f.family, r.Refusals) {
		f.report.aboutServicePort(refusal.Name, f.family, r.Snapshot.Services[refusal.Name].UID, reasonRefused,
			"the rules of port %q are refused on node %s, which %s: %v", refusal.Name.Port, f.config.NodeName, keeps(refusal), refusal.Err)
	}
	f.reportConflicts(r)
	f.reportLacks(r)
}

// reportConflicts writes one event for each Service port that did not get addresses it
// asks for, with those that it has not been told of before.
func (f *familyAgent) reportConflicts(r proxier.Result) {
	lost := map[model.ServicePortName][]string{}
	for _, c := range r.Conflicts {
		if !slices.Contains(f.conflicts, c) {
			lost[c.Loser] = append(lost[c.Loser], fmt.Sprintf("%s does not lead here: %s has it", c.Frontend, c.Winner))
		}
	}
	for name, notes := range lost {
		f.report.aboutServicePort(name, f.family, r.Snapshot.Services[name].UID, reasonFrontendTaken, "%s", strings.Join(notes, "; "))
	}
	f.conflicts = r.Conflicts
}

// openLoopback lets node ports answer on 127.0.0.1, once the rule that guards it is
// in the kernel.
func (f *familyAgent) openLoopback(ctx context.Context) {
	if err := sysctl.New().SetRouteLocalnet(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Node ports will not answer on 127.0.0.1")
		f.noLoopback = true
		f.queue()
	}
}

// cleanFlows removes stale UDP flows, now that the rules no longer make new ones.
func (f *familyAgent) cleanFlows(ctx context.Context, r proxier.Result) {
	clean := f.flows.CleanIfChanged
	if r.Outage {
		clean = f.flows.Clean
	}
	if err := clean(ctx, r.Snapshot, conntrack.NodePorts(r.Options.NodePorts)); err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove stale UDP flows; trying again after the next sync")
	}
}

// failOver lets TCP connections that wait for an endpoint which has left try another
// one, now that the rules lead there.
func (f *familyAgent) failOver(ctx context.Context, r proxier.Result) {
	if r.Outage {
		f.failover.AfterOutage()
	}
	if err := f.failover.Clean(ctx, r.Snapshot, r.Changes.ServicePorts, conntrack.NodePorts(r.Options.NodePorts)); err != nil {
		klog.FromContext(ctx).Error(err, "Could not free TCP connections from endpoints that have left; trying again after the next sync")
	}
}

// record brings the metrics up to date.
func (f *familyAgent) record(r proxier.Result) {
	now := time.Now()
	f.metrics.SyncDone(f.family, r.Full, string(r.Trigger), r.Duration)
	for _, table := range render.Tables() {
		f.metrics.Rules(f.family, string(table), r.Total[table])
		f.metrics.RulesWritten(f.family, string(table), r.Written[table])
	}
	if r.Err != nil {
		if !r.Full {
			f.metrics.PartialSyncFailed(f.family)
		}
		return
	}
	f.metrics.SyncSucceeded(f.family, now)
	f.metrics.ApplyProgress(f.family, 1, 1)
	f.metrics.Refused(f.family, len(r.Refusals))
	f.metrics.NoLocalEndpoints(f.family, metrics.Internal, r.NoLocalInternal)
	f.metrics.NoLocalEndpoints(f.family, metrics.External, r.NoLocalExternal)
	for _, at := range r.Changes.Triggers {
		// What was caused before the agent ran says nothing about it.
		if at.After(f.started) {
			f.metrics.Programmed(f.family, now.Sub(at))
		}
	}
}

// healthCheckAddresses are where health-check node ports listen: where node ports
// answer.
func healthCheckAddresses(opts render.Options) []netip.Addr {
	if !opts.NodePorts.All {
		return opts.NodePorts.Addresses
	}
	if opts.Family == model.IPv6 {
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	return []netip.Addr{netip.IPv4Unspecified()}
}
