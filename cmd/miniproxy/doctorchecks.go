package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"time"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/doctor"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// checkBackend finds out which backend an agent would use, and its programs.
func (e *examination) checkBackend(ctx context.Context) {
	forced, err := e.forcedBackend()
	if err == nil {
		e.choice, err = iptables.Detect(ctx, forced)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.couldNotLook("backend", err)
		return
	case err != nil:
		e.add(doctor.NoBackend(err))
		return
	}
	e.add(doctor.Backend(e.choice))
	for _, family := range model.Families {
		kernel, err := iptables.New(ctx, family, e.choice.Backend)
		if err == nil {
			err = supportedUntouched(ctx, kernel)
		}
		switch {
		case errors.Is(err, iptables.ErrFamilyUnsupported):
			e.add(doctor.FamilyUnsupported(family, err))
		case err != nil:
			e.couldNotLook("programs "+family.String(), err)
		default:
			e.kernels = append(e.kernels, kernel)
			e.add(doctor.Programs(family, e.choice.Backend, kernel.Version()))
		}
	}
}

// checkRules counts what both backends hold.
func (e *examination) checkRules(ctx context.Context) {
	if e.choice.Backend == "" {
		return // what could not be looked at was said
	}
	for _, backend := range []iptables.Backend{e.choice.Backend, otherBackend(e.choice.Backend)} {
		usage := doctor.Usage{Backend: backend}
		var err error
		if usage.Rules, err = iptables.CountRules(ctx, backend); err == nil {
			usage.Chains, err = iptables.CountChains(ctx, backend, render.Owns)
		}
		e.look("rules in "+string(backend), err, func() doctor.Finding {
			if backend == e.choice.Backend {
				return doctor.InUse(usage)
			}
			return doctor.NotInUse(usage)
		})
	}
}

// checkJumps looks whether packets find their way into the rules.
func (e *examination) checkJumps(ctx context.Context) {
	for _, kernel := range e.kernels {
		var lacks render.Lacks
		if can := e.can[kernel.Family()]; can != nil {
			lacks = can.lacks()
		}
		differences, err := audit.Jumps(ctx, kernel, lacks.Hooks())
		e.look("jump rules "+kernel.Family().String(), err, func() doctor.Finding {
			return doctor.Jumps(kernel.Family(), differences)
		})
	}
}

// checkCapabilities tries what the rules use.
func (e *examination) checkCapabilities(ctx context.Context) {
	if len(e.kernels) == 0 {
		return
	}
	const check = "capabilities"
	found, err := lookAtHost(ctx, e.kernels, e.cluster != nil && e.cluster.hasSCTP())
	switch {
	case err != nil:
		e.couldNotLook(check, err)
		return
	case found.untried != nil:
		e.add(doctor.CouldNotLook(check, errors.New("it takes CAP_SYS_ADMIN to try them in a network namespace of their own; the agent's log and its metric miniproxy_capability tell")))
		return
	}
	e.can = found.can
	for _, kernel := range found.kernels {
		lost := map[string]string{}
		for _, feature := range found.can[kernel.Family()].missing() {
			lost[feature.Name] = feature.loses
		}
		e.add(doctor.Capabilities(kernel.Family(), lost))
	}
}

// checkSettings looks at the kernel's settings.
func (e *examination) checkSettings(context.Context) {
	forwarding, err := e.machine.Setting("net/ipv4/ip_forward")
	e.look("ip_forward", err, func() doctor.Finding { return doctor.Forwarding(forwarding) })
	forwarding6, err := e.machine.Setting("net/ipv6/conf/all/forwarding")
	if !errors.Is(err, fs.ErrNotExist) {
		e.look("ip_forward IPv6", err, func() doctor.Finding {
			return doctor.ForwardingIPv6(forwarding6, e.cluster == nil || len(e.cluster.snapshot(model.IPv6).Services) > 0)
		})
	}
	localnet, err := sysctl.New().RouteLocalnet()
	e.look("route_localnet", err, func() doctor.Finding { return doctor.RouteLocalnet(localnet, servesLoopback(e.config)) })
	filters, err := e.machine.ReversePath()
	e.look("rp_filter", err, func() doctor.Finding { return doctor.ReversePath(filters) })
	e.checkBridges()
}

func (e *examination) checkBridges() {
	names, err := interfaces()
	var call *int
	if err == nil {
		var value int
		switch value, err = e.machine.Setting("net/bridge/bridge-nf-call-iptables"); {
		case err == nil:
			call = &value
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
	}
	e.look("bridge-nf-call", err, func() doctor.Finding { return doctor.Bridges(e.machine.Bridges(names), call) })
	e.look("IPVS", err, func() doctor.Finding { return doctor.Interfaces(names) })
}

func interfaces() ([]string, error) {
	all, err := net.Interfaces()
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names, err
}

// checkConntrack looks at connection tracking.
func (e *examination) checkConntrack(context.Context) {
	most, err := e.machine.Setting("net/netfilter/nf_conntrack_max")
	e.look("nf_conntrack_max", err, func() doctor.Finding {
		return doctor.ConntrackSize(most, kernelSettings(e.config).Max(sysctl.New().CPUs()))
	})
	have, countErr := e.machine.Setting("net/netfilter/nf_conntrack_count")
	e.look("conntrack fill", errors.Join(err, countErr), func() doctor.Finding { return doctor.ConntrackFill(have, most) })
	liberal, err := sysctl.New().TCPBeLiberal()
	e.look("tcp_be_liberal", err, func() doctor.Finding { return doctor.BeLiberal(liberal, e.config.Conntrack.TCPBeLiberal) })
}

// checkLock looks who holds the lock of iptables-legacy. Everybody does for a moment,
// so that only who is met twice is held against.
func (e *examination) checkLock(ctx context.Context) {
	holder, err := e.machine.LockHolder(e.lockFile)
	if holder != nil && err == nil {
		select {
		case <-ctx.Done():
		case <-time.After(e.lockPause):
		}
		var again *doctor.Process
		if again, err = e.machine.LockHolder(e.lockFile); again == nil || again.PID != holder.PID {
			holder = nil
		}
	}
	e.look("xtables lock", err, func() doctor.Finding { return doctor.Lock(e.choice.Backend, holder) })
}

// checkWriters looks who else writes to the tables, or judges packets.
func (e *examination) checkWriters(ctx context.Context) {
	e.add(doctor.KubeProxy(e.processes))
	e.add(doctor.OtherWriters(e.processes)...)
	if e.choice.Backend != "" {
		var chains []string
		ids, err := iptables.FindChains(ctx, e.choice.Backend, model.IPv4, func(id ruleset.ChainID) bool { return id.Table == ruleset.Filter })
		for _, id := range ids {
			chains = append(chains, id.Name)
		}
		e.look("ufw", err, func() doctor.Finding { return doctor.UFW(chains) })
	}
	tables, err := iptables.NFTTables(ctx)
	var others []string
	for _, table := range tables {
		if !table.IsIPTables() {
			others = append(others, table.String())
		}
	}
	e.look("nft tables", err, func() doctor.Finding { return doctor.OtherTables(others) })
}

// lookAtCluster sees what the agent would. What it finds is told by checkCluster.
func (e *examination) lookAtCluster(ctx context.Context) {
	see, err := lookAtCluster(ctx, e.config, nil, doctorPatience)
	if err == nil {
		e.cluster, err = see()
	}
	e.clusterErr = err
}

// checkCluster tells how the cluster can be reached.
func (e *examination) checkCluster(context.Context) {
	_, isLoop := errors.AsType[*config.LoopError](e.clusterErr)
	c := doctor.Cluster{Err: e.clusterErr, IsLoop: isLoop, Node: e.config.NodeName}
	if e.cluster != nil {
		c.Source, c.HasNode = e.cluster.source, e.cluster.hasNode()
		c.IsServiceAddress = e.config.Manifests == "" && config.IsServiceAddress(c.Source)
		for _, family := range model.Families {
			c.Services += len(e.cluster.snapshot(family).Services)
		}
	}
	e.add(c.Judge()...)
}

// checkPorts looks who listens where the agent does, and on node ports.
func (e *examination) checkPorts(context.Context) {
	sockets, err := e.machine.Sockets(e.processes)
	if err != nil {
		e.couldNotLook("ports", err)
		return
	}
	runs := e.agentRuns()
	e.add(doctor.ServerPort("healthz", e.config.Healthz, sockets, runs))
	e.add(doctor.ServerPort("metrics", e.config.Metrics, sockets, runs))
	nodePorts, healthChecks := map[doctor.PortUse]string{}, map[doctor.PortUse]string{}
	if e.cluster != nil {
		for _, family := range model.Families {
			for name, port := range e.cluster.snapshot(family).Services {
				if port.NodePort != 0 {
					nodePorts[doctor.PortUse{Protocol: string(name.Protocol), Port: port.NodePort}] = name.String()
				}
				if port.HealthCheckNodePort != 0 {
					healthChecks[doctor.PortUse{Protocol: "TCP", Port: port.HealthCheckNodePort}] = name.ServiceName.String()
				}
			}
		}
	}
	e.add(doctor.NodePorts(sockets, nodePorts, healthChecks)...)
}
