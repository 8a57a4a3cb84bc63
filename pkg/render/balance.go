package render

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// balance gives every endpoint the same share: the first rule takes one packet in
// n, the next one in n-1 of the rest, and so on; the last takes what is left.
func (b *unitBuilder) balance(endpoints []model.Endpoint) []ruleset.Rule {
	rules := make([]ruleset.Rule, 0, len(endpoints))
	for i, ep := range endpoints {
		rules = append(rules, take(1, len(endpoints)-i, b.arrow(ep), endpointChain(b.port.Name, ep.Addr)))
	}
	return rules
}

// take sends part of whole to a chain; all of it needs no chance.
func take(part, whole int, comment, chain string) ruleset.Rule {
	rule := ruleset.Rule{Comment: comment, Action: ruleset.Jump{Chain: chain}}
	if part < whole {
		rule.Matches = []ruleset.Match{ruleset.Share(part, whole)}
	}
	return rule
}

// arrow is the comment of a rule that chooses an endpoint.
func (b *unitBuilder) arrow(ep model.Endpoint) string {
	return b.comment + " -> " + ep.Addr.String()
}

// balanceGroups gives every endpoint the same share in two steps: first a group, by
// its size, then an endpoint of the group. With 1,000 endpoints a packet meets about
// 30 rules instead of 500.
func (b *unitBuilder) balanceGroups(chain string, endpoints []model.Endpoint) []ruleset.Rule {
	var rules []ruleset.Rule
	left := len(endpoints)
	for i, group := range b.group(endpoints) {
		switch len(group) {
		case 0:
			continue
		case len(endpoints):
			return b.balance(endpoints)
		case 1:
			rules = append(rules, take(1, left, b.arrow(group[0]), endpointChain(b.port.Name, group[0].Addr)))
		default:
			name := groupChain(chain, i)
			b.addChain(name, b.balance(group))
			rules = append(rules, take(len(group), left, fmt.Sprintf("%s -> %d endpoints", b.comment, len(group)), name))
		}
		left -= len(group)
	}
	return rules
}

// group divides endpoints into about as many groups as each has members. An
// endpoint's group depends on its own name and on the number of groups only, so that
// one that comes or goes changes one group and the shares of all.
func (b *unitBuilder) group(endpoints []model.Endpoint) [][]model.Endpoint {
	n := bits.Len(uint(len(endpoints))) / 2
	groups := make([][]model.Endpoint, 1<<n)
	for _, ep := range endpoints {
		i := nameBits(endpointChain(b.port.Name, ep.Addr)) >> (nameBitsLen - n)
		groups[i] = append(groups[i], ep)
	}
	return groups
}

// nameBitsLen is how many bits of an endpoint's name are used: two characters of
// base32.
const nameBitsLen = 10

func nameBits(chain string) int {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	first, second := chain[len(endpointPrefix)], chain[len(endpointPrefix)+1]
	return strings.IndexByte(alphabet, first)<<5 | strings.IndexByte(alphabet, second)
}

// groupChain is the name of the chain of one group of a policy's chain.
func groupChain(chain string, group int) string {
	return clusterPrefix + hash(fmt.Sprintf("%s group %d", chain, group))
}
