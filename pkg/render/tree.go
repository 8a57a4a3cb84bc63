package render

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The shape of a dispatch tree: a chain with more entries than leafSize is split by
// the next stride bits of the key. A packet meets 8 rules on average in each of a
// few levels instead of half of all entries. Each level is memory that is seldom in a
// cache: with 10,000 Services on nft, a connection took a tenth longer with 3 bits.
const (
	leafSize = 8
	stride   = 4
)

// key is where packets of a frontend go, as bits from the left: an address, or a
// port. Keys of different spaces have nothing in common.
type key struct {
	space  space
	hi, lo uint64
}

// space is what the bits of a key mean.
type space uint8

const (
	addresses space = iota
	tcpPorts
	udpPorts
	sctpPorts
)

func keyOf(f Frontend) key {
	if !f.Addr.IsValid() {
		return portKey(f)
	}
	var b [16]byte
	copy(b[:], f.Addr.AsSlice())
	return key{addresses, binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// portKey is the key of a frontend among those of one address.
func portKey(f Frontend) key {
	k := key{space: tcpPorts, hi: uint64(f.Port) << 48}
	switch f.Protocol {
	case model.UDP:
		k.space = udpPorts
	case model.SCTP:
		k.space = sctpPorts
	}
	return k
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.space, o.space), cmp.Compare(k.hi, o.hi), cmp.Compare(k.lo, o.lo))
}

// shared is the number of leading bits that two keys of one space have in common.
func (k key) shared(o key) int {
	if k.hi != o.hi {
		return bits.LeadingZeros64(k.hi ^ o.hi)
	}
	return 64 + bits.LeadingZeros64(k.lo^o.lo)
}

// tree makes chains of the sorted items of one index.
//
// Levels are at fixed bit positions, so that what is below a chain depends on
// nothing but the items in the chain's range. Where no item changed, no chain does.
type tree struct {
	index   Index
	table   ruleset.Table
	touched []key // sorted
	lacks   Lacks
	chains  []node
	// address is the one that a tree of ports is for, if it is below an address.
	address netip.Addr
}

// node is a chain of a tree, with the first bits of the keys that it is for.
type node struct {
	ruleset.Chain
	key   key
	depth int
	// ofPorts says that the chain is for ports of one address. It is there or not
	// together with others of the address, and does not depend on what is above.
	ofPorts bool
}

// lead returns the rules of a chain: its entries, or jumps to chains that share
// them. If something on the way changed it also makes those chains.
func (t *tree) lead(items []*item, changed bool) []ruleset.Rule {
	var rules []ruleset.Rule
	length := width(items[0])
	common := min(items[0].key.shared(items[len(items)-1].key), length)
	if len(items) > leafSize && common == length && items[0].key.space == addresses {
		return t.leadByPort(items, changed)
	}
	if len(items) <= leafSize || common == length {
		for _, it := range items {
			rules = append(rules, it.entry.Rules...)
		}
		return rules
	}
	next := levelAt(common) + stride
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[0].key.shared(items[n].key) >= next {
			n++
		}
		rules = append(rules, t.branch(items[:n], changed)...)
		items = items[n:]
	}
	return rules
}

// leadByPort does the same for the items of one address that has many: such as a load
// balancer that shares one among many Services.
func (t *tree) leadByPort(items []*item, changed bool) []ruleset.Rule {
	k, length := items[0].key, width(items[0])
	below := tree{index: t.index, table: t.table, lacks: t.lacks, address: items[0].entry.Frontend.Addr}
	byPort := make([]*item, len(items))
	for i, it := range items {
		byPort[i] = &item{key: portKey(it.entry.Frontend), name: it.name, seq: it.seq, entry: it.entry}
	}
	slices.SortFunc(byPort, compareItems)
	var rules []ruleset.Rule
	for group := range bySpace(byPort) {
		rules = append(rules, below.lead(group, true)...)
	}
	if changed && t.touches(k, length) {
		for _, n := range below.chains {
			t.chains = append(t.chains, node{Chain: n.Chain, key: k, depth: length, ofPorts: true})
		}
	}
	return rules
}

// bySpace divides sorted items by the spaces of their keys.
func bySpace(items []*item) iter.Seq[[]*item] {
	return func(yield func([]*item) bool) {
		for len(items) > 0 {
			n := 1
			for n < len(items) && items[n].key.space == items[0].key.space {
				n++
			}
			if !yield(items[:n]) {
				return
			}
			items = items[n:]
		}
	}
}

// branch returns the rules that lead to some items, and makes their chain.
func (t *tree) branch(items []*item, changed bool) []ruleset.Rule {
	if len(items) == 1 {
		return items[0].entry.Rules
	}
	length := width(items[0])
	depth := levelAt(min(items[0].key.shared(items[len(items)-1].key), length))
	r := t.rangeOf(items[0], depth)
	name := t.name(r)
	if changed {
		rules := t.lead(items, t.touches(items[0].key, depth))
		chain := ruleset.Chain{ChainID: ruleset.ChainID{Table: t.table, Name: name}, Rules: rules}
		t.chains = append(t.chains, node{Chain: chain, key: items[0].key, depth: depth})
	}
	jump := ruleset.Rule{Matches: r.matches(), Action: ruleset.Jump{Chain: name}}
	// The name says the range, unless it had to be a hash: a comment would be one more piece
	// of memory in the way of each connection.
	if text := r.String(); !strings.HasSuffix(name, text) {
		jump.Comment = "services in " + text
	}
	return t.lacks.uncomment([]ruleset.Rule{jump})
}

// has reports whether a tree of these items has the chain of a node. It has one for
// each level at which items part, but for the first, whose rules stand in the root,
// and for those below a chain that is small enough for all its entries.
func has(items []*item, n node) bool {
	group := within(items, n.key, n.depth)
	if len(group) < 2 {
		return false
	}
	length := width(group[0])
	if levelAt(min(group[0].key.shared(group[len(group)-1].key), length)) != n.depth {
		return false
	}
	for level := n.depth; level > 0; {
		level -= stride
		if above := within(items, n.key, level); len(above) > len(group) {
			return len(above) > leafSize
		}
	}
	return false
}

// within returns the items whose keys begin with the first depth bits of a key.
func within(items []*item, k key, depth int) []*item {
	at, _ := slices.BinarySearchFunc(items, k, func(it *item, k key) int { return it.key.compare(k) })
	belongs := func(it *item) bool { return it.key.space == k.space && it.key.shared(k) >= depth }
	from := sort.Search(at, func(i int) bool { return belongs(items[i]) })
	to := at + sort.Search(len(items)-at, func(i int) bool { return !belongs(items[at+i]) })
	return items[from:to]
}

// touches reports whether a key that changed begins with the first depth bits of k.
func (t *tree) touches(k key, depth int) bool {
	if t.address.IsValid() {
		return true // the address itself was touched, or nobody asks for the chains
	}
	at, _ := slices.BinarySearchFunc(t.touched, k, key.compare)
	// The nearest touched keys on both sides share the most bits with k.
	for _, i := range []int{at - 1, at} {
		if i >= 0 && i < len(t.touched) && t.touched[i].space == k.space && t.touched[i].shared(k) >= depth {
			return true
		}
	}
	return false
}

// width is the number of bits that keys of the item's space have.
func width(it *item) int {
	if it.key.space == addresses {
		return it.entry.Frontend.Addr.BitLen()
	}
	return 16
}

// levelAt is the deepest level at or above a bit position. Levels are multiples of stride,
// which divides every key's width.
func levelAt(position int) int { return position - position%stride }

// keyRange is what a chain of a tree is for: the addresses of a prefix, the ports from
// first to last of a protocol, or these ports of one address.
type keyRange struct {
	prefix      netip.Prefix
	protocol    string
	first, last uint16
}

// rangeOf is the range of the given depth that an item is in.
func (t *tree) rangeOf(it *item, depth int) keyRange {
	f := it.entry.Frontend
	if it.key.space == addresses {
		return keyRange{prefix: netip.PrefixFrom(f.Addr, depth).Masked()}
	}
	span := uint16(1)<<(16-depth) - 1
	r := keyRange{protocol: f.Protocol.Lower(), first: f.Port &^ span, last: f.Port | span}
	if t.address.IsValid() {
		r.prefix = single(t.address)
	}
	return r
}

func (r keyRange) String() string {
	ports := fmt.Sprintf("%s:%d-%d", r.protocol, r.first, r.last)
	switch {
	case !r.prefix.IsValid():
		return ports
	case r.protocol == "":
		return r.prefix.String()
	}
	return r.prefix.Addr().String() + ":" + ports
}

func (r keyRange) matches() []ruleset.Match {
	var matches []ruleset.Match
	if r.prefix.IsValid() {
		matches = append(matches, ruleset.Destination{Prefix: r.prefix})
	}
	if r.protocol != "" {
		matches = append(matches,
			ruleset.Protocol{Name: r.protocol},
			ruleset.DestinationPort{Protocol: r.protocol, First: r.first, Last: r.last})
	}
	return matches
}

// name is the name of a range's chain. It begins with KUBE-SVC- because kube-proxy,
// when it takes a node back, removes unknown chains with that prefix, and would fail
// on others that still refer to its own. The trees in the filter table need a letter
// to be told apart.
func (t *tree) name(r keyRange) string {
	letter := [indexCount]string{FilterServices: "S", FilterExternal: "E", FilterFirewall: "F", FilterNodePorts: "H"}[t.index]
	text := r.String()
	if name := clusterPrefix + letter + text; len(name) <= ruleset.MaxChainName {
		return name
	}
	// An IPv6 prefix can be longer than a chain's name.
	return clusterPrefix + letter + hash(text)
}
