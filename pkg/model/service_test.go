package model

import (
	"net/netip"
	"testing"
	"time"
)

func TestServicePortNameString(t *testing.T) {
	tests := []struct {
		name ServicePortName
		want string
	}{
		{ServicePortName{ServiceName{"ns1", "s"}, "http", TCP}, "ns1/s:http"},
		{ServicePortName{ServiceName{"ns1", "s"}, "", TCP}, "ns1/s"},
		{ServicePortName{ServiceName{"ns1", "s"}, "http", UDP}, "ns1/s:http"},
	}
	for _, test := range tests {
		if got := test.name.String(); got != test.want {
			t.Errorf("%#v.String() = %q, want %q", test.name, got, test.want)
		}
	}
}

func TestServicePortNameCompare(t *testing.T) {
	// In order, each differing from its neighbours in one field only where it can.
	ordered := []ServicePortName{
		{ServiceName{"a", "z"}, "z", UDP},
		{ServiceName{"b", "a"}, "z", UDP},
		{ServiceName{"b", "b"}, "", UDP},
		{ServiceName{"b", "b"}, "a", SCTP},
		{ServiceName{"b", "b"}, "a", TCP},
		{ServiceName{"b", "b"}, "a", UDP},
		{ServiceName{"b", "b"}, "b", SCTP},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := sign(a.Compare(b)); got != sign(i-j) {
				t.Errorf("%v %s Compare %v %s = %d, want %d", a, a.Protocol, b, b.Protocol, got, sign(i-j))
			}
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func TestProtocolLower(t *testing.T) {
	for protocol, want := range map[Protocol]string{TCP: "tcp", UDP: "udp", SCTP: "sctp", "DCCP": "dccp"} {
		if got := protocol.Lower(); got != want {
			t.Errorf("%s.Lower() = %q, want %q", protocol, got, want)
		}
	}
}

func TestServicePortEqual(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	base := func() ServicePort {
		return ServicePort{
			Name:                ServicePortName{ServiceName{"ns1", "s"}, "http", TCP},
			ClusterIP:           netip.MustParseAddr("10.96.0.80"),
			Port:                80,
			NodePort:            30080,
			ExternalIPs:         []netip.Addr{netip.MustParseAddr("10.60.0.10")},
			LoadBalancerVIPs:    []netip.Addr{netip.MustParseAddr("10.50.0.10")},
			SourceRanges:        []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
			HealthCheckNodePort: 32000,
			InternalLocal:       true,
			ExternalLocal:       true,
			AffinityTimeout:     time.Hour,
			Created:             created,
		}
	}
	changes := map[string]func(*ServicePort){
		"Name":                func(p *ServicePort) { p.Name.Port = "web" },
		"ClusterIP":           func(p *ServicePort) { p.ClusterIP = netip.MustParseAddr("10.96.0.81") },
		"Port":                func(p *ServicePort) { p.Port++ },
		"NodePort":            func(p *ServicePort) { p.NodePort = 0 },
		"ExternalIPs":         func(p *ServicePort) { p.ExternalIPs = nil },
		"LoadBalancerVIPs":    func(p *ServicePort) { p.LoadBalancerVIPs = append(p.LoadBalancerVIPs, p.ClusterIP) },
		"B-09 SourceRanges":   func(p *ServicePort) { p.SourceRanges[0] = netip.MustParsePrefix("10.8.0.0/16") },
		"HealthCheckNodePort": func(p *ServicePort) { p.HealthCheckNodePort++ },
		"InternalLocal":       func(p *ServicePort) { p.InternalLocal = false },
		"ExternalLocal":       func(p *ServicePort) { p.ExternalLocal = false },
		"AffinityTimeout":     func(p *ServicePort) { p.AffinityTimeout = time.Minute },
		"Created":             func(p *ServicePort) { p.Created = created.Add(time.Second) },
	}
	same := base()
	same.Created = created.In(time.FixedZone("elsewhere", 3600))
	if !base().Equal(same) {
		t.Error("the same moment in another time zone is taken for a change")
	}
	for field, change := range changes {
		changed := base()
		change(&changed)
		if base().Equal(changed) || changed.Equal(base()) {
			t.Errorf("a change of %s is not seen", field)
		}
	}
}

func TestFamilyOf(t *testing.T) {
	tests := []struct {
		addr string
		want Family
	}{
		{"10.0.0.1", IPv4},
		{"::ffff:10.0.0.1", IPv4},
		{"fd00::1", IPv6},
		{"::", IPv6},
		{"", 0},
	}
	for _, test := range tests {
		var addr netip.Addr
		if test.addr != "" {
			addr = netip.MustParseAddr(test.addr)
		}
		if got := FamilyOf(addr); got != test.want {
			t.Errorf("FamilyOf(%q) = %v, want %v", test.addr, got, test.want)
		}
	}
}

func TestFamily(t *testing.T) {
	tests := []struct {
		family   Family
		name     string
		bits     int
		loopback string
	}{
		{IPv4, "IPv4", 32, "127.0.0.0/8"},
		{IPv6, "IPv6", 128, "::1/128"},
	}
	for _, test := range tests {
		f := test.family
		if f.String() != test.name || f.Bits() != test.bits || f.Loopback().String() != test.loopback {
			t.Errorf("got %s, %d bits, loopback %s; want %+v", f, f.Bits(), f.Loopback(), test)
		}
		if !f.Has(f.Loopback().Addr()) {
			t.Errorf("%v has not its own loopback address", f)
		}
	}
}

func TestNodeFacts(t *testing.T) {
	facts := func() NodeFacts {
		return NodeFacts{
			Name: "n1", Known: true, Zone: "zone-a",
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		}
	}
	if got := facts().Primary(); got != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("Primary() = %s, want the first address", got)
	}
	if got := (NodeFacts{}).Primary(); got.IsValid() {
		t.Errorf("Primary() of a node without addresses = %s", got)
	}
	if !facts().Equal(facts()) {
		t.Error("facts are not equal to their copy")
	}
	for field, change := range map[string]func(*NodeFacts){
		"Name":      func(n *NodeFacts) { n.Name = "n2" },
		"Known":     func(n *NodeFacts) { n.Known = false },
		"Zone":      func(n *NodeFacts) { n.Zone = "" },
		"Addresses": func(n *NodeFacts) { n.Addresses[0], n.Addresses[1] = n.Addresses[1], n.Addresses[0] },
		"PodCIDRs":  func(n *NodeFacts) { n.PodCIDRs = nil },
	} {
		changed := facts()
		change(&changed)
		if facts().Equal(changed) {
			t.Errorf("a change of %s is not seen", field)
		}
	}
}
