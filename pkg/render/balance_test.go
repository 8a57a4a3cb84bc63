package render

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// shares returns how much of the traffic that enters a chain each endpoint gets.
func (r rendered) shares(id ruleset.ChainID, part float64, into map[string]float64) {
	left := part
	for _, rule := range r.Ruleset[id].Rules {
		target := rule.Target()
		if !strings.HasPrefix(target, endpointPrefix) && !strings.HasPrefix(target, clusterPrefix) {
			continue
		}
		taken := left
		for _, m := range rule.Matches {
			switch m := m.(type) {
			case ruleset.Random:
				taken = left * float64(m.Steps) / (1 << 31)
			case ruleset.RecentCheck:
				taken = 0 // a new client is on no list
			}
		}
		left -= taken
		if strings.HasPrefix(target, endpointPrefix) {
			into[target] += taken
		} else {
			r.shares(ruleset.ChainID{Table: id.Table, Name: target}, taken, into)
		}
	}
}

// TestEqualShares is B-59: every endpoint gets the same, however many there are.
func TestEqualShares(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 32, 33, 64, 100, 320, 1000, 5000} {
		for _, form := range []string{"flat", "groups"} {
			t.Run(fmt.Sprintf("B-59 %d endpoints, %s", n, form), func(t *testing.T) {
				limit := n
				if form == "groups" {
					limit = 1
				}
				var endpoints []model.Endpoint
				for i := range n {
					endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.%d:8080", i/250, i%250)))
				}
				r := one(options(func(o *Options) { o.FlatBalance = limit }), service("s", affinity), endpoints...)
				got := map[string]float64{}
				r.shares(natChain(clusterPrefix+serviceHash(service("s").Name)), 1, got)
				if len(got) != n {
					t.Errorf("%d endpoints get traffic, want %d", len(got), n)
				}
				want := 1 / float64(n)
				for chain, share := range got {
					// A probability is a multiple of 2^-31, so a share can be off by as much.
					if math.Abs(share-want) > 1e-8 {
						t.Errorf("%s gets %.10f, want %.10f", chain, share, want)
					}
				}
			})
		}
	}
}

// TestBalanceCost: with groups a packet meets about as many rules as the square root
// of the number of endpoints, twice.
func TestBalanceCost(t *testing.T) {
	var endpoints []model.Endpoint
	for i := range 1000 {
		endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.%d:8080", i/250, i%250)))
	}
	r := one(options(), service("s"), endpoints...)
	root := r.Ruleset[natChain(clusterPrefix+serviceHash(service("s").Name))]
	longest := 0
	for _, rule := range root.Rules {
		if chain := r.Ruleset[natChain(rule.Target())]; chain != nil && strings.HasPrefix(chain.Name, clusterPrefix) {
			longest = max(longest, len(chain.Rules))
		}
	}
	if met := len(root.Rules) + longest; met > 120 {
		t.Errorf("a packet meets up to %d rules, want 120 at most", met)
	}
}

// TestBalanceGroupsAreStable: one endpoint more changes its group and the shares, not
// the other groups.
func TestBalanceGroupsAreStable(t *testing.T) {
	var endpoints []model.Endpoint
	for i := range 201 {
		endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.2.%d:8080", i)))
	}
	before := one(options(), service("s"), endpoints[:200]...)
	after := one(options(), service("s"), endpoints...)
	diff := ruleset.Diff(before.Ruleset, after.Ruleset)
	// The endpoint's own chain, its group's, and the one that chooses a group.
	if len(diff) != 3 {
		t.Errorf("%d chains differ, want 3: %v", len(diff), diff)
	}
}
