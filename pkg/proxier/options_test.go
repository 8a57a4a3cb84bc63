package proxier

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// The host has an uplink with two addresses, a pod bridge, and loopback.
var hostAddresses = addrs("127.0.0.1", "::1", "10.0.0.1", "192.0.2.1", "10.244.1.1", "fd00::1", "fd00:244:1::1")

// node returns what is known of n1 in one family.
func node(family model.Family) model.NodeFacts {
	n := model.NodeFacts{Name: "n1", Known: true, Addresses: addrs("10.0.0.1"), PodCIDRs: prefixes("10.244.1.0/24")}
	if family == model.IPv6 {
		n.Addresses, n.PodCIDRs = addrs("fd00::1"), prefixes("fd00:244:1::/64")
	}
	return n
}

// optionsOf is Options for n1 with a configuration that is changed from the default.
func optionsOf(family model.Family, change func(*config.Config)) render.Options {
	c := &config.Config{
		BindAddress:        netip.IPv4Unspecified(),
		MasqueradeMark:     0x4000,
		LocalhostNodePorts: true,
		NodePortAddresses:  config.NodePortAddresses{All: true},
		LocalDetector:      config.LocalDetector{Mode: config.LocalModeClusterCIDR},
	}
	change(c)
	return Options(c, family, node(family), Host{Addresses: hostAddresses})
}

func TestLocalTraffic(t *testing.T) {
	detect := func(d config.LocalDetector) func(*config.Config) {
		return func(c *config.Config) { c.LocalDetector = d }
	}
	tests := []struct {
		name   string
		family model.Family
		config func(*config.Config)
		want   render.LocalTraffic
	}{
		{"B-02 no range", model.IPv4, detect(config.LocalDetector{Mode: config.LocalModeClusterCIDR}), render.LocalTraffic{}},
		{"cluster range", model.IPv4, detect(config.LocalDetector{Mode: config.LocalModeClusterCIDR, ClusterCIDRs: prefixes("fd00:244::/32", "10.244.0.0/16")}),
			render.LocalTraffic{Range: prefixes("10.244.0.0/16")[0]}},
		{"cluster range of IPv6", model.IPv6, detect(config.LocalDetector{Mode: config.LocalModeClusterCIDR, ClusterCIDRs: prefixes("10.244.0.0/16", "fd00:244::/32")}),
			render.LocalTraffic{Range: prefixes("fd00:244::/32")[0]}},
		{"cluster range of the other family only", model.IPv6, detect(config.LocalDetector{Mode: config.LocalModeClusterCIDR, ClusterCIDRs: prefixes("10.244.0.0/16")}),
			render.LocalTraffic{}},
		{"cluster range that holds everybody", model.IPv4, detect(config.LocalDetector{Mode: config.LocalModeClusterCIDR, ClusterCIDRs: prefixes("0.0.0.0/0")}),
			render.LocalTraffic{}},
		{"the node's range", model.IPv4, detect(config.LocalDetector{Mode: config.LocalModeNodeCIDR, ClusterCIDRs: prefixes("10.244.0.0/16")}),
			render.LocalTraffic{Range: prefixes("10.244.1.0/24")[0]}},
		{"bridge", model.IPv4, detect(config.LocalDetector{Mode: config.LocalModeBridgeInterface, Interface: "cni0"}),
			render.LocalTraffic{Interface: "cni0"}},
		{"interface prefix", model.IPv6, detect(config.LocalDetector{Mode: config.LocalModeInterfaceNamePrefix, Interface: "veth"}),
			render.LocalTraffic{Interface: "veth+"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := optionsOf(test.family, test.config).Local; got != test.want {
				t.Errorf("pods are known by %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestNodePortAddresses(t *testing.T) {
	type addresses = config.NodePortAddresses
	on := func(a addresses) func(*config.Config) { return func(c *config.Config) { c.NodePortAddresses = a } }
	off := func(a addresses) func(*config.Config) {
		return func(c *config.Config) { c.NodePortAddresses, c.LocalhostNodePorts = a, false }
	}
	everywhere := render.NodePortAddresses{All: true, Loopback: true}
	tests := []struct {
		name   string
		family model.Family
		config func(*config.Config)
		want   render.NodePortAddresses
	}{
		{"all", model.IPv4, on(addresses{All: true}), everywhere},
		{"nothing said", model.IPv4, on(addresses{}), everywhere},
		{"all, without localhost", model.IPv4, off(addresses{All: true}), render.NodePortAddresses{All: true}},
		{"all, IPv6", model.IPv6, on(addresses{All: true}), render.NodePortAddresses{All: true}},
		{"a range of everything", model.IPv4, on(addresses{CIDRs: prefixes("0.0.0.0/0")}), everywhere},
		{"a range", model.IPv4, on(addresses{CIDRs: prefixes("10.0.0.0/8")}), render.NodePortAddresses{Addresses: addrs("10.0.0.1", "10.244.1.1")}},
		{"two ranges that overlap", model.IPv4, on(addresses{CIDRs: prefixes("10.0.0.0/8", "10.0.0.0/24")}), render.NodePortAddresses{Addresses: addrs("10.0.0.1", "10.244.1.1")}},
		{"item 5 a loopback range is 127.0.0.1 only", model.IPv4, on(addresses{CIDRs: prefixes("127.0.0.0/8")}),
			render.NodePortAddresses{Loopback: true, Addresses: addrs("127.0.0.1")}},
		{"item 5 a range that matches nothing", model.IPv4, on(addresses{CIDRs: prefixes("172.16.0.0/12")}), render.NodePortAddresses{}},
		{"a range of the other family only", model.IPv6, on(addresses{CIDRs: prefixes("10.0.0.0/8")}), render.NodePortAddresses{All: true}},
		{"B-12 localhost", model.IPv4, on(addresses{Localhost: true}), render.NodePortAddresses{Loopback: true, Addresses: addrs("127.0.0.1")}},
		{"B-12 localhost, switched off", model.IPv4, off(addresses{Localhost: true}), render.NodePortAddresses{Addresses: addrs("127.0.0.1")}},
		{"B-12 no loopback range, no loopback", model.IPv4, on(addresses{CIDRs: prefixes("10.0.0.0/24")}), render.NodePortAddresses{Addresses: addrs("10.0.0.1")}},
		{"localhost, IPv6", model.IPv6, on(addresses{Localhost: true}), render.NodePortAddresses{Addresses: addrs("::1")}},
		{"primary", model.IPv4, on(addresses{Primary: true}), render.NodePortAddresses{Addresses: addrs("10.0.0.1")}},
		{"primary, IPv6", model.IPv6, on(addresses{Primary: true}), render.NodePortAddresses{Addresses: addrs("fd00::1")}},
		{"primary and a range", model.IPv4, on(addresses{Primary: true, CIDRs: prefixes("192.0.2.0/24")}), render.NodePortAddresses{Addresses: addrs("10.0.0.1", "192.0.2.1")}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := optionsOf(test.family, test.config).NodePorts; !reflect.DeepEqual(got, test.want) {
				t.Errorf("node ports on %+v, want %+v", got, test.want)
			}
		})
	}
}

// A node without a Node object, or without an address of the family, has no primary
// address; node ports are then nowhere.
func TestPrimaryWithoutAddress(t *testing.T) {
	c := &config.Config{NodePortAddresses: config.NodePortAddresses{Primary: true}, BindAddress: netip.IPv4Unspecified()}
	got := Options(c, model.IPv4, model.NodeFacts{Name: "n1"}, Host{Addresses: hostAddresses})
	if got.NodePorts.All || len(got.NodePorts.Addresses) != 0 {
		t.Errorf("node ports on %+v, want nowhere", got.NodePorts)
	}
}

func TestBindAddress(t *testing.T) {
	tests := []struct {
		name   string
		bind   string
		family model.Family
		want   string
	}{
		{"unspecified", "0.0.0.0", model.IPv4, "10.0.0.1"},
		{"unspecified IPv6", "::", model.IPv6, "fd00::1"},
		{"given", "192.0.2.1", model.IPv4, "192.0.2.1"},
		{"given for the other family", "192.0.2.1", model.IPv6, "fd00::1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			facts := node(test.family)
			c := &config.Config{BindAddress: netip.MustParseAddr(test.bind)}
			got := Options(c, test.family, facts, Host{}).Node.Primary()
			if got != netip.MustParseAddr(test.want) {
				t.Errorf("primary address %s, want %s", got, test.want)
			}
			if !facts.Equal(node(test.family)) {
				t.Errorf("the node's facts were changed to %+v", facts)
			}
		})
	}
}

func TestHostOptions(t *testing.T) {
	host := Host{Addresses: hostAddresses, RandomFully: true, InvalidAccount: "invalid", LocalhostAccount: "localhost"}
	c := &config.Config{MasqueradeMark: 0x8000, MasqueradeAll: true, LocalhostNodePorts: true, NodePortAddresses: config.NodePortAddresses{All: true}}
	got := Options(c, model.IPv4, node(model.IPv4), host)
	if !got.RandomFully || !got.DropInvalid || got.MasqueradeMark != 0x8000 || !got.MasqueradeAll ||
		got.InvalidAccount != "invalid" || got.LocalhostAccount != "localhost" || got.Family != model.IPv4 {
		t.Errorf("got %+v", got)
	}
	host.TCPBeLiberal = true
	if got := Options(c, model.IPv4, node(model.IPv4), host); got.DropInvalid {
		t.Error("B-49 INVALID packets are dropped although conntrack is liberal")
	}
	if got := Options(c, model.IPv6, node(model.IPv6), host); got.LocalhostAccount != "" {
		t.Error("node ports on localhost are counted in IPv6, where there are none")
	}
}
