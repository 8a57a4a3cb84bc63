package render

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Options is everything but Services and endpoints that decides what the rules of
// one family say. A change of any of it concerns every Service.
type Options struct {
	Family model.Family
	// Node is what is known of the node.
	Node model.NodeFacts
	// MasqueradeMark is the packet mark bit that asks for masquerading.
	MasqueradeMark uint32
	// MasqueradeAll masquerades everything sent to a cluster IP.
	MasqueradeAll bool
	// RandomFully lets masquerading choose source ports at random, which keeps two
	// connections from racing for one (needs iptables 1.6.2).
	RandomFully bool
	// Lacks is what rules cannot use here.
	Lacks Lacks
	// Local tells the traffic of pods from other traffic.
	Local LocalTraffic
	// NodePorts says on which of the node's addresses node ports answer.
	NodePorts NodePortAddresses
	// DropInvalid drops forwarded packets that conntrack cannot place. They would pass
	// with their addresses untranslated, and the client would answer with a reset.
	DropInvalid bool
	// InvalidAccount and LocalhostAccount name the nfacct objects that count dropped
	// INVALID packets and packets to node ports on 127.0.0.0/8; empty for none.
	InvalidAccount   string
	LocalhostAccount string
	// FlatDispatch is the number of entries up to which a dispatch chain is flat, as
	// every textbook shows it; above, it is a tree. 0 means DefaultFlatDispatch.
	FlatDispatch int
	// FlatBalance is the number of endpoints up to which a Service port's chain is
	// flat; above, the endpoints are in groups. 0 means DefaultFlatBalance.
	FlatBalance int
	// CommentLimit is the number of endpoints, of all Services, up to which the rules in
	// Service ports' chains have comments; 0 for no limit. The legacy kernel copies the whole
	// table at each change, and comments are two thirds of it. The nft kernel visits all
	// rules at each change, and a packet those in its way: a comment is a piece of memory
	// more for each of them.
	CommentLimit int
	// Bare says that there are more endpoints than that; For sets it.
	Bare bool
}

// The sizes up to which chains are flat. From here on a tree is measurably faster
// for the packets, and nobody reads the flat form to its end.
const (
	DefaultFlatDispatch = 100
	DefaultFlatBalance  = 32
)

func (o Options) flatDispatch() int { return cmp.Or(o.FlatDispatch, DefaultFlatDispatch) }
func (o Options) flatBalance() int  { return cmp.Or(o.FlatBalance, DefaultFlatBalance) }

// Equal reports whether two options give the same rules for every snapshot.
func (o Options) Equal(p Options) bool {
	return o.Family == p.Family && o.MasqueradeMark == p.MasqueradeMark && o.MasqueradeAll == p.MasqueradeAll &&
		o.RandomFully == p.RandomFully && o.Lacks == p.Lacks && o.Local == p.Local && o.NodePorts.Equal(p.NodePorts) &&
		o.DropInvalid == p.DropInvalid && o.InvalidAccount == p.InvalidAccount && o.LocalhostAccount == p.LocalhostAccount &&
		o.flatDispatch() == p.flatDispatch() && o.flatBalance() == p.flatBalance() && o.CommentLimit == p.CommentLimit && o.Bare == p.Bare &&
		o.Node.Name == p.Node.Name && o.Node.Zone == p.Node.Zone && o.Node.Primary() == p.Node.Primary()
}

// LocalTraffic is how traffic of pods is recognised: by source range or by the
// interface it comes in by. The zero value is for when there is no way to tell.
type LocalTraffic struct {
	// Range is what pods have their addresses from.
	Range netip.Prefix
	// Interface is the interface, or with a trailing + the interfaces, that pods are
	// behind.
	Interface string
}

// match is the condition that a packet is a pod's, or with not that it is none. The
// second result is false when there is no way to tell.
func (l LocalTraffic) match(not bool) (ruleset.Match, bool) {
	switch {
	case l.Range.IsValid():
		return ruleset.Source{Prefix: l.Range, Not: not}, true
	case l.Interface != "":
		return ruleset.InInterface{Pattern: l.Interface, Not: not}, true
	}
	return nil, false
}

// NodePortAddresses is where node ports answer: on every address of the host, or
// on those listed.
type NodePortAddresses struct {
	All bool
	// Loopback says that node ports answer on loopback addresses too, which needs the
	// sysctl route_localnet and exists in IPv4 only. All without Loopback is every
	// address but those.
	Loopback bool
	// Addresses are the addresses, sorted, when they are not All.
	Addresses []netip.Addr
}

// Equal reports whether both mean the same addresses.
func (a NodePortAddresses) Equal(b NodePortAddresses) bool {
	return a.All == b.All && a.Loopback == b.Loopback && slices.Equal(a.Addresses, b.Addresses)
}
