package trace_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/trace"
)

func TestPackets(t *testing.T) {
	rs := decode(t, "*nat\n:A - [0:0]\n"+
		"-A PREROUTING ! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j A\n"+
		"-A A -p tcp -j DNAT --to-destination 10.244.1.10:8080\nCOMMIT\n")
	more := trace.Extra{Addrs: addrs("10.9.9.9", "fd00:9::9"), Ports: []uint16{30080}}
	packets := trace.Packets(node, more, rs)
	if again := trace.Packets(node, more, rs); !slices.Equal(again, packets) {
		t.Error("not the same packets the second time")
	}
	sources, destinations, ways := map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[string]bool{}
	ports, protocols := map[uint16]bool{}, map[string]bool{}
	seen := map[trace.Packet]bool{}
	for _, p := range packets {
		if seen[p] {
			t.Fatalf("%s comes twice", p)
		}
		seen[p] = true
		if !p.Source.Is4() || !p.Destination.Is4() {
			t.Fatalf("%s is of the other family", p)
		}
		sources[p.Source], destinations[p.Destination], ways[p.In] = true, true, true
		ports[p.DestinationPort], protocols[p.Protocol] = true, true
	}
	for _, a := range addrs("10.9.9.9", "10.244.0.0", "10.244.255.255", "10.243.255.255", "10.245.0.0", "10.96.0.80", "10.244.1.10", "10.0.0.1", "127.0.0.1") {
		if !sources[a] || !destinations[a] {
			t.Errorf("%s is a source: %v, a destination: %v", a, sources[a], destinations[a])
		}
	}
	for _, in := range []string{"", "eth0", "cni0", "veth1"} {
		if !ways[in] {
			t.Errorf("nothing enters by %q", in)
		}
	}
	for _, p := range []uint16{80, 8080, 30080} {
		if !ports[p] {
			t.Errorf("nothing goes to port %d", p)
		}
	}
	for _, p := range []string{"tcp", "udp", "sctp", "icmp"} {
		if !protocols[p] {
			t.Errorf("no packet of %s", p)
		}
	}
}

func TestCompareShowsBothWays(t *testing.T) {
	have := decode(t, "*filter\n-A FORWARD -d 10.0.0.2/32 -m comment --comment have -j REJECT\nCOMMIT\n")
	want := decode(t, "*filter\n-A FORWARD -d 10.0.0.2/32 -m comment --comment want -j DROP\nCOMMIT\n")
	differences, err := trace.Compare(newTracer(t, have, node), newTracer(t, want, node), []trace.Packet{packet(t, "eth0 10.9.9.9 10.0.0.2:80"), packet(t, "eth0 10.9.9.9 10.0.0.3:80")})
	if err != nil || len(differences) != 1 {
		t.Fatalf("differences %v, error %v, want one", differences, err)
	}
	const text = `eth0: tcp 10.9.9.9:1234 -> 10.0.0.2:80
  have 1.0000000 REJECT
       filter/FORWARD[0] -d 10.0.0.2/32 -m comment --comment have -j REJECT
  want 1.0000000 DROP
       filter/FORWARD[0] -d 10.0.0.2/32 -m comment --comment want -j DROP`
	if got := differences[0].String(); got != text {
		t.Errorf("got:\n%s\nwant:\n%s", got, text)
	}
}
