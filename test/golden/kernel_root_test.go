package golden_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/test/golden"
)

// realKernel is the kernel of a host of the lab, through one backend.
type realKernel struct {
	host   *lab.Host
	runner *iptables.Runner
}

func newRealKernel(t *testing.T, host *lab.Host, family model.Family, backend iptables.Backend) realKernel {
	t.Helper()
	k := realKernel{host: host}
	err := host.Do(func() (err error) {
		for _, name := range []string{nfacct.InvalidDropped, nfacct.LocalhostNodePorts} {
			if err := (nfacct.Kernel{}).Ensure(name); err != nil {
				return fmt.Errorf("make the accounting object %s: %w", name, err)
			}
		}
		k.runner, err = iptables.New(t.Context(), family, backend)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Restore implements proxier.Kernel.
func (k realKernel) Restore(ctx context.Context, input []byte) error {
	return k.host.Do(func() error { return k.runner.Restore(ctx, input) })
}

// ChainNames implements proxier.Kernel.
func (k realKernel) ChainNames(ctx context.Context, table ruleset.Table) (names []string, err error) {
	err = k.host.Do(func() error {
		names, err = k.runner.ChainNames(ctx, table)
		return err
	})
	return names, err
}

// HasChain implements proxier.Kernel.
func (k realKernel) HasChain(ctx context.Context, id ruleset.ChainID) (found bool, err error) {
	err = k.host.Do(func() error {
		found, err = k.runner.HasChain(ctx, id)
		return err
	})
	return found, err
}

// EnsureChain implements proxier.Kernel.
func (k realKernel) EnsureChain(ctx context.Context, id ruleset.ChainID) (created bool, err error) {
	err = k.host.Do(func() error {
		created, err = k.runner.EnsureChain(ctx, id)
		return err
	})
	return created, err
}

// EnsureJumps implements proxier.Kernel.
func (k realKernel) EnsureJumps(ctx context.Context, hooks []ruleset.Hook) (changes []iptables.Change, err error) {
	err = k.host.Do(func() error {
		changes, err = k.runner.EnsureJumps(ctx, hooks)
		return err
	})
	return changes, err
}

// Save implements kernel.
func (k realKernel) Save() (text []byte, err error) {
	err = k.host.Do(func() error {
		for _, table := range []ruleset.Table{ruleset.NAT, ruleset.Filter} {
			saved, err := k.runner.Save(context.Background(), table)
			if err != nil {
				return err
			}
			text = append(text, saved...)
		}
		return nil
	})
	return text, err
}

// cleanUp removes every rule of ours.
func (k realKernel) cleanUp(ctx context.Context) error {
	return k.host.Do(func() error {
		return k.runner.Cleanup(ctx, func(id ruleset.ChainID) bool { return render.Owns(id) || render.Shares(id) })
	})
}

// TestKernelsHoldTheCases runs an agent through every golden case on the real kernel,
// with both backends. What iptables-save then prints is, chain by chain, what the
// simulated kernel holds, of which TestPacketEquivalence says that it is right.
func TestKernelsHoldTheCases(t *testing.T) {
	labtest.Require(t)
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	l := labtest.New(t)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		for _, family := range model.Families {
			host, err := l.Host(fmt.Sprintf("%s%d", backend, family))
			if err != nil {
				t.Fatal(err)
			}
			real := newRealKernel(t, host, family, backend)
			for _, name := range names {
				c, err := golden.Load(name)
				if err != nil {
					t.Fatal(err)
				}
				for form, change := range forms {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", backend, family, form, name), func(t *testing.T) {
						mustHoldTheSame(t, newAgent(t, c, family, change, real), newAgent(t, c, family, change, newSimulated(family)), c)
						if err := real.cleanUp(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
	}
}

// mustHoldTheSame takes two agents through a case.
func mustHoldTheSame(t *testing.T, real, simulated *agent, c golden.Case) {
	t.Helper()
	for i, step := range c.Steps {
		for _, a := range []*agent{real, simulated} {
			if step.Config != nil {
				a.start(step.Config)
			}
			a.follow(step.Objects)
		}
		for _, diff := range ruleset.Diff(real.rules(), simulated.rules()) {
			t.Errorf("step %d: %v", i+1, diff)
		}
	}
}
