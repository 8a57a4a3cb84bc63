package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const cleanupUsage = `Removes every rule and chain of ours, in both families, and in both backends unless
--iptables-backend names one. Nobody else's are touched. Stop the agent first: it would write
them again. It needs root; for iptables-nft alone, CAP_NET_ADMIN. It can be repeated.
`

// cleanUp removes every rule of ours from both families, and from both backends
// unless one is named: rules may be left over from an agent that used the other one.
func cleanUp(ctx context.Context, args []string, io streams) error {
	o := newOptions("cleanup")
	o.about = cleanupUsage
	if _, err := o.parse(args, io); err != nil {
		return err
	}
	return o.cleanUp(ctx)
}

func (o *options) cleanUp(ctx context.Context) error {
	return needsRoot("cleanup", o.removeRules(ctx))
}

func (o *options) removeRules(ctx context.Context) error {
	forced, err := o.forcedBackend()
	if err != nil {
		return err
	}
	choice, err := iptables.Detect(ctx, forced)
	if err != nil {
		return err
	}
	backends := []iptables.Backend{choice.Backend}
	var errs []error
	if forced == "" {
		other := otherBackend(choice.Backend)
		left, err := countOurs(ctx, other)
		if left > 0 {
			backends = append(backends, other)
		}
		errs = append(errs, err)
	}
	for _, backend := range backends {
		for _, family := range model.Families {
			errs = append(errs, cleanUpFamily(ctx, family, backend))
		}
	}
	return errors.Join(errs...)
}

func cleanUpFamily(ctx context.Context, family model.Family, backend iptables.Backend) error {
	kernel, err := iptables.New(ctx, family, backend)
	if errors.Is(err, iptables.ErrFamilyUnsupported) {
		mayHold, lookErr := mayHoldOurs(ctx, family, backend)
		if !mayHold && lookErr == nil {
			return nil // nothing to remove, and nothing to remove it with
		}
		return errors.Join(err, lookErr)
	}
	if err != nil {
		return err
	}
	shared, err := isShared(ctx, kernel)
	if err != nil {
		return err
	}
	return kernel.Cleanup(ctx, func(id ruleset.ChainID) bool {
		return render.Owns(id) || iptables.IsProbe(id) || render.Shares(id) && !shared
	})
}

// mayHoldOurs reports whether there can be chains of ours in a family without programs,
// which legacy tables cannot be read without.
func mayHoldOurs(ctx context.Context, family model.Family, backend iptables.Backend) (bool, error) {
	if backend == iptables.Legacy {
		return iptables.HasLegacyTables(family)
	}
	ids, err := iptables.FindChains(ctx, backend, family, render.Owns)
	return len(ids) > 0, err
}

// isShared reports whether a kubelet keeps chains here. In IPv4 it would miss
// KUBE-FIREWALL, which it has in common with the proxy; in IPv6 it has none.
func isShared(ctx context.Context, kernel *iptables.Runner) (bool, error) {
	if kernel.Family() != model.IPv4 {
		return false, nil
	}
	names, err := kernel.ChainNames(ctx, ruleset.Mangle)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return iptables.IsHint(ruleset.ChainID{Table: ruleset.Mangle, Name: name})
	}), nil
}

// otherBackend is the backend that is not b.
func otherBackend(b iptables.Backend) iptables.Backend {
	if b == iptables.NFT {
		return iptables.Legacy
	}
	return iptables.NFT
}

// countOurs counts the chains of ours in a backend.
func countOurs(ctx context.Context, backend iptables.Backend) (int, error) {
	n, err := iptables.CountChains(ctx, backend, render.Owns)
	if err != nil {
		return 0, fmt.Errorf("look for chains of ours in the %s backend: %w", backend, err)
	}
	return n, nil
}
