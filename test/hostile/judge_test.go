package hostile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// options are those of a plain node.
func options(family model.Family) render.Options {
	opts := render.Options{
		Family:         family,
		MasqueradeMark: 0x4000,
		RandomFully:    true,
		Local:          render.LocalTraffic{Range: netip.MustParsePrefix("10.244.0.0/16")},
		NodePorts:      render.NodePortAddresses{All: true, Loopback: true},
		DropInvalid:    true,
	}
	if family == model.IPv6 {
		opts.Local.Range = netip.MustParsePrefix("fd00:244::/32")
		opts.NodePorts.Loopback = false
	}
	return opts
}

// node is what is known of the node, and hostAddresses are those it has.
func node(family model.Family) model.NodeFacts {
	facts := model.NodeFacts{
		Name: "n1", Known: true, Zone: "zone-a",
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	}
	if family == model.IPv6 {
		facts.Addresses[0], facts.PodCIDRs[0] = netip.MustParseAddr("fd00::1"), netip.MustParsePrefix("fd00:244:1::/64")
	}
	return facts
}

var hostAddresses = []netip.Addr{
	netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"),
	netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:244:1::1"),
}

// track tells a tracker of objects and returns what it makes of them.
func track(family model.Family, services []*corev1.Service, endpoints []*discoveryv1.EndpointSlice) model.Snapshot {
	t := tracker.New(family, "n1")
	for _, svc := range services {
		t.ServiceChanged(nil, svc)
	}
	for _, slice := range endpoints {
		t.EndpointSliceChanged(nil, slice)
	}
	snapshot, _ := t.Take()
	return snapshot
}

// rules renders a snapshot. It is an error when two chains have one name, or when
// something is wrong with the rules.
func rules(snapshot model.Snapshot, opts render.Options) (ruleset.Ruleset, error) {
	chains, conflicts := render.Snapshot(snapshot, opts)
	rs := ruleset.Ruleset{}
	for i := range chains {
		if rs[chains[i].ChainID] != nil {
			return nil, fmt.Errorf("%s is there twice", chains[i].ChainID)
		}
		rs[chains[i].ChainID] = &chains[i]
	}
	return rs, judge(rs, len(conflicts) > 0)
}

// judge says what is wrong with rules: what the kernel would refuse, and what is read
// back from their text as something else. Nothing may lead to a chain of a Service that
// is contested: another one has the address.
func judge(rs ruleset.Ruleset, contested bool) error {
	text := rs.Append(nil)
	back, err := ruleset.Decode(text)
	if err != nil {
		return fmt.Errorf("%w in\n%s", err, text)
	}
	if diffs := ruleset.Diff(back, rs); len(diffs) > 0 {
		return fmt.Errorf("the text says something else: %v\n%s", diffs, text)
	}
	if contested {
		dropUncalled(back)
	}
	if err := ruleset.Check(back); err != nil {
		return fmt.Errorf("%w in\n%s", err, text)
	}
	want := 0
	for _, c := range rs {
		want += 1 + len(c.Rules)
	}
	if got := strings.Count(string(text), "\n") - 2*len(rs.Tables()); got != want {
		return fmt.Errorf("%d lines for %d chains and rules:\n%s", got, want, text)
	}
	return nil
}

// dropUncalled removes chains of Services that nothing leads to.
func dropUncalled(rs ruleset.Ruleset) {
	for removed := true; removed; {
		called := map[ruleset.ChainID]bool{}
		for id, chain := range rs {
			for _, r := range chain.Rules {
				called[ruleset.ChainID{Table: id.Table, Name: r.Target()}] = true
			}
		}
		before := len(rs)
		maps.DeleteFunc(rs, func(id ruleset.ChainID, _ *ruleset.Chain) bool { return render.IsPerService(id) && !called[id] })
		removed = len(rs) < before
	}
}

// leftAlone says where the rules with a hostile object differ for others from those
// without it. Chains of a Service are the same; in those that all share there may only
// be more rules.
func leftAlone(without, with ruleset.Ruleset) error {
	for id, chain := range without {
		other := with[id]
		if other == nil {
			return fmt.Errorf("%s is gone", id)
		}
		if render.IsPerService(id) && len(other.Rules) != len(chain.Rules) {
			return fmt.Errorf("%s has other rules: %v instead of %v", id, other.Rules, chain.Rules)
		}
		rest := other.Rules
		for _, r := range chain.Rules {
			at := slices.IndexFunc(rest, func(o ruleset.Rule) bool { return o.String() == r.String() })
			if at < 0 {
				return fmt.Errorf("%s has lost, or has in another order, %v: it has %v", id, r, other.Rules)
			}
			rest = rest[at+1:]
		}
	}
	return nil
}
