package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// untouchedKernels returns the door to the kernel's tables for each of the families that an
// agent would serve here. Unlike options.kernels it changes nothing.
func (o *options) untouchedKernels(ctx context.Context, families []model.Family, notes io.Writer) ([]*iptables.Runner, error) {
	forced, err := o.forcedBackend()
	if err != nil {
		return nil, err
	}
	choice, err := iptables.Detect(ctx, forced)
	if err != nil {
		return nil, err
	}
	var kernels []*iptables.Runner
	for _, family := range families {
		kernel, err := iptables.New(ctx, family, choice.Backend)
		if err == nil {
			err = supportedUntouched(ctx, kernel)
		}
		switch {
		case errors.Is(err, iptables.ErrFamilyUnsupported):
			fmt.Fprintf(notes, "miniproxy: %v is left out: %v\n", family, err)
		case err != nil:
			return nil, err
		default:
			kernels = append(kernels, kernel)
		}
	}
	if len(kernels) == 0 {
		return nil, errors.New("no IP family to look at")
	}
	return kernels, nil
}

// supportedUntouched looks whether the kernel has a nat table for the family, as
// Supported does, but for a legacy table that would only come to be by looking.
func supportedUntouched(ctx context.Context, kernel *iptables.Runner) error {
	if kernel.Backend() == iptables.NFT {
		return kernel.Supported(ctx)
	}
	names, err := kernel.ChainNames(ctx, ruleset.NAT)
	if err != nil || len(names) == 0 {
		return err // nothing was ever written: everything is missing
	}
	return kernel.Supported(ctx)
}

// compareAll compares each family, and looks for what was left in the other backend.
func (o *options) compareAll(ctx context.Context, cluster *view, found abilities) ([]familyDiff, error) {
	var diffs []familyDiff
	for _, kernel := range found.kernels {
		want, err := o.want(cluster, kernel, found)
		if err != nil {
			return nil, err
		}
		differences, err := audit.Look(ctx, kernel, want)
		if err != nil {
			return nil, err
		}
		left, err := leftovers(ctx, kernel.Family(), otherBackend(kernel.Backend()))
		if err != nil {
			return nil, err
		}
		diffs = append(diffs, familyDiff{kernel.Family(), kernel.Backend(), differences}, left)
	}
	return diffs, nil
}

// leftovers are the chains of ours in the backend that is not in use. Packets pass
// through them too.
func leftovers(ctx context.Context, family model.Family, backend iptables.Backend) (familyDiff, error) {
	left := familyDiff{Family: family, Backend: backend}
	ids, err := iptables.FindChains(ctx, backend, family, render.Owns)
	for _, id := range ids {
		left.Differences = append(left.Differences, audit.Difference{
			Kind: audit.Foreign, Chain: id, Why: "this backend is not the one in use",
		})
	}
	return left, err
}

// want is what a kernel should hold, with the options with which the agent renders.
func (o *options) want(cluster *view, kernel *iptables.Runner, found abilities) (audit.Want, error) {
	can := found.can[kernel.Family()]
	snapshot := cluster.snapshot(kernel.Family())
	opts, err := o.renderingHere(cluster.config, can, snapshot.Node, found.host)
	if err != nil {
		return audit.Want{}, err
	}
	if opts.NodePorts.Loopback {
		// Where the agent may not set this, node ports do not answer on 127.0.0.1.
		if opts.NodePorts.Loopback, err = sysctl.New().RouteLocalnet(); err != nil {
			return audit.Want{}, err
		}
	}
	chains, _ := render.Snapshot(snapshot, opts)
	return audit.Want{
		Chains:   chains,
		Canaries: canaries(can.lacks()),
		Hooks:    can.lacks().Hooks(),
		Owns:     render.Owns,
		Shared:   render.SharedChains(),
	}, nil
}

// canaries are the canary chains as the agent keeps them.
func canaries(lacks render.Lacks) []ruleset.Chain {
	chains := canary.All()
	for _, chain := range chains {
		for i := range chain.Rules {
			if lacks.Comment {
				chain.Rules[i].Comment = ""
			}
		}
	}
	return chains
}
