package proxier

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/test/seed"
)

// TestRandomRefusals is the second invariant: while the kernel refuses what some
// Services need, every other one follows its changes; when it refuses no more, nothing
// is left of it.
func TestRandomRefusals(t *testing.T) {
	steps := 600
	if testing.Short() {
		steps = 100
	}
	random := seed.Rand(t) // in the bubble it is always the same moment
	synctest.Test(t, func(t *testing.T) {
		k := newPickyHost(t, false)
		c := newCluster(k.host, random)
		for step := range steps {
			for range 1 + c.IntN(3) {
				c.change()
			}
			switch c.IntN(6) {
			case 0:
				k.refuses = fmt.Sprintf("--to-destination 10.244.%d.%d:", 1+c.IntN(2), c.IntN(20))
			case 1:
				k.refuses = ""
			case 2:
				c.proxier.ForceFull("a test")
			}
			k.namesLine = c.IntN(2) == 0
			c.proxier.settings.Chunk, c.proxier.settings.Parallel = 1+c.IntN(20), 1+c.IntN(3)
			time.Sleep(time.Duration(c.IntN(10)) * time.Second)
			if c.IntN(10) == 0 {
				c.kernel.SetLocked(true)
				_ = c.proxier.Sync(c.context()) // fails if there is anything to write
				c.kernel.SetLocked(false)
				c.change()
			}
			c.mustSync()
			c.mustServeOthers(k.refuses)
			if k.refuses == "" && c.IntN(3) == 0 {
				time.Sleep(2 * lastRetry)
				c.mustSync()
				c.mustEqualFresh()
				c.mustEqualFreshStart()
			}
			if t.Failed() {
				t.Fatalf("in step %d; refused are rules with %q", step, k.refuses)
			}
		}
	})
}

func (c *cluster) mustSync() {
	c.t.Helper()
	if err := c.proxier.Sync(c.context()); err != nil {
		c.t.Errorf("sync: %v", err)
	}
}

// mustServeOthers checks the Service ports that are not in quarantine: their chains
// are in the kernel, and their cluster IPs lead there.
func (c *cluster) mustServeOthers(refuses string) {
	c.t.Helper()
	aside := map[model.ServicePortName]bool{}
	for _, r := range c.last.Refusals {
		aside[r.Name] = true
	}
	claims := map[netip.AddrPort]int{}
	for name := range aside {
		// The rules that it had may be for another protocol of its cluster IP.
		if held := c.proxier.units.byName[name]; held != nil {
			for _, e := range held.Entries {
				if !e.Former {
					claims[netip.AddrPortFrom(e.Frontend.Addr, e.Frontend.Port)]++
				}
			}
		}
	}
	for name, port := range c.last.Snapshot.Services {
		claims[netip.AddrPortFrom(port.ClusterIP, port.Port)]++
		isBad := refuses != "" && slices.ContainsFunc(c.unit(name).Chains, func(chain ruleset.Chain) bool {
			return slices.ContainsFunc(chain.Rules, func(r ruleset.Rule) bool { return strings.Contains(r.String(), refuses) })
		})
		if isBad && !aside[name] && !c.holds(refuses) {
			c.t.Errorf("%s is refused, and nobody says so", name)
		}
	}
	have := c.rules()
	for name, port := range c.last.Snapshot.Services {
		if aside[name] {
			continue
		}
		unit := c.unit(name)
		for _, chain := range unit.Chains {
			if got, want := chainText(have, chain.ChainID), chainText(ruleset.Ruleset{chain.ChainID: &chain}, chain.ChainID); got != want {
				c.t.Errorf("chain %s of %s says\n%s\nwant:\n%s", chain.Name, name, got, want)
			}
		}
		if claims[netip.AddrPortFrom(port.ClusterIP, port.Port)] > 1 || len(unit.Chains) == 0 {
			continue
		}
		if !c.leadsSomewhere(have, port) && !isRefusedHere(unit) {
			c.t.Errorf("nothing leads from %s:%d to %s", port.ClusterIP, port.Port, name)
		}
	}
}

// unit is what a Service port should have.
func (c *cluster) unit(name model.ServicePortName) render.Unit {
	return render.ServicePort(c.last.Snapshot.Services[name], c.last.Snapshot.Endpoints[name], c.last.Options)
}

// leadsSomewhere reports whether some rule in nat is for a cluster IP and its port.
func (c *cluster) leadsSomewhere(rules ruleset.Ruleset, port model.ServicePort) bool {
	want := fmt.Sprintf("-d %s/32 -p %s -m comment --comment \"%s cluster IP\"", port.ClusterIP, port.Name.Protocol.Lower(), port.Name)
	for id := range reach(rules) {
		if id.Table == ruleset.NAT && strings.Contains(chainText(rules, id), want) {
			return true
		}
	}
	return false
}

// isRefusedHere reports whether a Service port's cluster IP has no endpoint on this
// node.
func isRefusedHere(unit render.Unit) bool {
	for _, e := range unit.Entries {
		if e.Index == render.FilterServices {
			return true
		}
	}
	return false
}
