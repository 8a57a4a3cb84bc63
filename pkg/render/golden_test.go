package render

import (
	"bytes"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// text is the rules as restore input, rules in the order in which they are rendered.
func (r rendered) text() []byte {
	b := ruleset.NewBuilder(Tables()...)
	for _, chain := range r.chains {
		b.Write(chain)
	}
	return bytes.Join(b.Take(), nil)
}

func TestGolden(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			got := c.world.render(c.options)
			path := filepath.Join("testdata", c.name+".rules")
			if *update {
				if err := os.WriteFile(path, got.text(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(got.text(), golden) {
				return
			}
			want, err := ruleset.Decode(golden)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			diffs := ruleset.Diff(got.Ruleset, want)
			for _, diff := range diffs {
				t.Error(diff)
			}
			if len(diffs) == 0 {
				t.Errorf("the same rules as in %s, but in another order:\n%s", path, got.text())
			}
		})
	}
}

// TestGoldenFilesHaveCases keeps files of cases that are gone from staying behind.
func TestGoldenFilesHaveCases(t *testing.T) {
	known := map[string]bool{}
	for _, c := range cases() {
		if known[c.name] {
			t.Errorf("two cases are called %s", c.name)
		}
		known[c.name] = true
	}
	files, err := filepath.Glob("testdata/*.rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".rules"); !known[name] {
			t.Errorf("%s belongs to no case", file)
		}
	}
}

// TestInvariants holds every case against what all rules must fulfil, with the hooks
// in place.
func TestInvariants(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			r := c.world.render(c.options)
			if len(r.chains) != len(r.Ruleset) {
				t.Errorf("%d chains, but only %d different ones", len(r.chains), len(r.Ruleset))
			}
			rules := maps.Clone(r.Ruleset)
			dropLosers(t, rules, c, r.conflicts)
			addHooks(rules, c.options.Lacks)
			if err := ruleset.Check(rules); err != nil {
				t.Error(err)
			}
			checkOwned(t, r)
			decoded, err := ruleset.Decode(r.text())
			if err != nil {
				t.Fatal(err)
			}
			if diff := ruleset.Diff(decoded, r.Ruleset); len(diff) > 0 {
				t.Errorf("read back: %v", diff)
			}
		})
	}
}

// addHooks puts the jumps into the built-in chains.
func addHooks(rules ruleset.Ruleset, lacks Lacks) {
	for _, id := range SharedChains() {
		if rules[id] == nil {
			rules[id] = &ruleset.Chain{ChainID: id}
		}
	}
	for _, hook := range lacks.Hooks() {
		if rules[hook.From] == nil {
			rules[hook.From] = &ruleset.Chain{ChainID: hook.From, Policy: "ACCEPT"}
		}
		rules[hook.From].Rules = append(rules[hook.From].Rules, hook.Rule)
	}
}

// dropLosers removes the chains of Services that lost a frontend: some of them are
// ready to take over, and nothing leads there until then.
func dropLosers(t *testing.T, rules ruleset.Ruleset, c testCase, conflicts []Conflict) {
	t.Helper()
	for _, conflict := range conflicts {
		unit := ServicePort(c.world.Services[conflict.Loser], c.world.Endpoints[conflict.Loser], c.options)
		for _, chain := range slices.Backward(unit.Chains) {
			isUsed := slices.ContainsFunc(slices.Collect(maps.Values(rules)), func(from *ruleset.Chain) bool {
				return slices.ContainsFunc(from.Rules, func(r ruleset.Rule) bool { return r.Target() == chain.Name })
			})
			if !isUsed {
				delete(rules, chain.ChainID)
			}
		}
	}
}

// checkOwned checks that a restarted agent would know every chain as its own.
func checkOwned(t *testing.T, r rendered) {
	t.Helper()
	for _, chain := range r.chains {
		if !Owns(chain.ChainID) && !Shares(chain.ChainID) {
			t.Errorf("chain %s is not known as ours by its name", chain.ChainID)
		}
	}
}

// TestSameInputSameBytes renders every case from maps that were filled in other orders.
func TestSameInputSameBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range append(cases(), testCase{"many", options(), many(60)}) {
		want := c.world.render(c.options).text()
		for range 100 {
			names := slices.Collect(maps.Keys(c.world.Services))
			random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			shuffled := newWorld()
			for _, name := range names {
				shuffled.with(c.world.Services[name], c.world.Endpoints[name]...)
			}
			if got := shuffled.render(c.options).text(); !bytes.Equal(got, want) {
				t.Errorf("%s: from another order of Services:\n%s\nwant:\n%s", c.name, got, want)
				break
			}
		}
	}
}

// TestInputIsNotChanged: the snapshot is lent, and its slices are shared.
func TestInputIsNotChanged(t *testing.T) {
	for _, c := range cases() {
		before := newWorld()
		for name, port := range c.world.Services {
			port.ExternalIPs, port.LoadBalancerVIPs = slices.Clone(port.ExternalIPs), slices.Clone(port.LoadBalancerVIPs)
			port.SourceRanges = slices.Clone(port.SourceRanges)
			before.with(port, slices.Clone(c.world.Endpoints[name])...)
		}
		c.world.render(c.options)
		for name, port := range c.world.Services {
			if !port.Equal(before.Services[name]) || !slices.EqualFunc(c.world.Endpoints[name], before.Endpoints[name], model.Endpoint.Equal) {
				t.Errorf("%s: %s was changed", c.name, name)
			}
		}
	}
}
