package trace_test

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// node is the host of the hand-written tests.
var node = trace.Host{
	Interfaces: []trace.Interface{
		{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")}},
		{Name: "cni0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24")}},
	},
	Routes: []trace.Route{{To: netip.MustParsePrefix("10.244.1.64/26"), Dev: "veth1"}},
}

func TestHost(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "lo", "127.0.0.1": "lo", "127.1.2.3": "lo", "::1": "lo", "fd00::1": "lo", "10.244.1.1": "lo",
		"10.244.1.10": "cni0", "10.244.1.70": "veth1", "10.0.0.2": "eth0", "203.0.113.5": "eth0", "2001:db8::1": "eth0",
	} {
		addr := netip.MustParseAddr(text)
		if got := node.Out(addr); got != want {
			t.Errorf("packets to %s leave by %s, want %s", addr, got, want)
		}
		if got := node.Owns(addr); got != (want == "lo") {
			t.Errorf("owns %s: %v", addr, got)
		}
	}
}

// packet reads "IN SOURCE DESTINATION:PORT" of a TCP packet; IN is "host" for one
// that the host makes.
func packet(t *testing.T, text string) trace.Packet {
	t.Helper()
	fields := strings.Fields(text)
	to := netip.MustParseAddrPort(fields[2])
	p := trace.Packet{In: fields[0], Source: netip.MustParseAddr(fields[1]), Destination: to.Addr(), DestinationPort: to.Port(), Protocol: "tcp", SourcePort: 1234}
	if p.In == "host" {
		p.In = ""
	}
	return p
}

func decode(t *testing.T, text string) ruleset.Ruleset {
	t.Helper()
	rs, err := ruleset.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestWalk(t *testing.T) {
	const dnat = "*nat\n:SVC - [0:0]\n:SEP - [0:0]\n" +
		"-A PREROUTING -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j SVC\n" +
		"-A OUTPUT -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j SVC\n" +
		"-A SVC -j SEP\n-A SEP -p tcp -j DNAT --to-destination 10.244.1.10:8080\n" +
		"-A POSTROUTING ! -s 10.244.0.0/16 -d 10.244.1.10/32 -j MASQUERADE\nCOMMIT\n"
	tests := []struct {
		name   string
		rules  string
		packet string
		state  ruleset.ConntrackState
		want   string
		out    string
	}{
		{name: "no rules", packet: "eth0 10.9.9.9 10.244.1.10:80", want: "pass", out: "cni0"},
		{name: "no rules, to the host", packet: "eth0 10.9.9.9 10.0.0.1:80", want: "pass"},
		{name: "DNAT from outside", rules: dnat, packet: "eth0 10.9.9.9 10.96.0.80:80", want: "DNAT 10.244.1.10:8080 masquerade", out: "cni0"},
		{name: "DNAT from a pod", rules: dnat, packet: "cni0 10.244.1.11 10.96.0.80:80", want: "DNAT 10.244.1.10:8080", out: "cni0"},
		{name: "DNAT of the host's own", rules: dnat, packet: "host 10.0.0.1 10.96.0.80:80", want: "DNAT 10.244.1.10:8080 masquerade", out: "cni0"},
		{name: "other port", rules: dnat, packet: "eth0 10.9.9.9 10.96.0.80:81", want: "pass", out: "eth0"},
		{name: "established skips nat", rules: dnat, packet: "eth0 10.9.9.9 10.96.0.80:80", state: ruleset.Established, want: "pass", out: "eth0"},
		{name: "invalid skips nat", rules: dnat, packet: "eth0 10.9.9.9 10.96.0.80:80", state: ruleset.Invalid, want: "pass", out: "eth0"},
		{name: "DNAT to where it goes", rules: "*nat\n-A PREROUTING -p tcp -j DNAT --to-destination 10.244.1.10:80\nCOMMIT\n*filter\n-A FORWARD -m conntrack --ctstate DNAT -j DROP\nCOMMIT\n",
			packet: "eth0 10.9.9.9 10.244.1.10:80", want: "pass", out: "cni0"},
		{name: "DNAT keeps the port", rules: "*nat\n-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1\nCOMMIT\n", packet: "eth0 10.9.9.9 10.96.0.80:80", want: "DNAT 10.0.0.1:80"},
		{name: "state DNAT", rules: dnat + "*filter\n-A FORWARD -m conntrack --ctstate DNAT -j REJECT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.96.0.80:80", want: "REJECT"},
		{name: "nat in INPUT", rules: "*nat\n-A INPUT -j ACCEPT\n-A INPUT -j LOG\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.1:80", want: "pass"},
		{name: "to itself", rules: "*filter\n-A INPUT -i lo -j DROP\nCOMMIT\n", packet: "host 127.0.0.1 10.0.0.1:80", want: "DROP"},
		{name: "to itself, nat is not asked twice", rules: "*nat\n-A PREROUTING -j LOG\n-A INPUT -j LOG\nCOMMIT\n", packet: "host 10.0.0.1 10.0.0.1:80", want: "pass"},
		{name: "to itself, masqueraded to the same address", rules: "*nat\n-A POSTROUTING -o lo -j MASQUERADE\nCOMMIT\n*filter\n-A INPUT -m conntrack --ctstate SNAT -j REJECT\nCOMMIT\n",
			packet: "host 10.0.0.1 10.0.0.1:80", want: "pass masquerade"},
		{name: "to itself, masqueraded with another port", rules: "*nat\n-A POSTROUTING -o lo -j MASQUERADE --random-fully\nCOMMIT\n*filter\n-A INPUT -m conntrack --ctstate SNAT -j REJECT\nCOMMIT\n",
			packet: "host 10.0.0.1 10.0.0.1:80", want: "REJECT"},
		{name: "to itself, masqueraded", rules: "*nat\n-A POSTROUTING -o lo -j MASQUERADE\nCOMMIT\n*filter\n-A INPUT -s 10.0.0.1/32 -m conntrack --ctstate SNAT -j REJECT\nCOMMIT\n",
			packet: "host 127.0.0.1 10.244.1.1:80", want: "REJECT"},
		{name: "OUTPUT sees the first route", rules: dnat + "*filter\n-A OUTPUT ! -o eth0 -j DROP\nCOMMIT\n", packet: "host 10.0.0.1 10.96.0.80:80", want: "DNAT 10.244.1.10:8080 masquerade", out: "cni0"},
		{name: "no interface in OUTPUT", rules: "*filter\n-A OUTPUT ! -i eth0 -j DROP\nCOMMIT\n", packet: "host 10.0.0.1 10.0.0.2:80", want: "DROP"},
		{name: "policy", rules: "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -s 10.9.9.9/32 -j ACCEPT\nCOMMIT\n", packet: "eth0 10.9.9.8 10.0.0.2:80", want: "DROP"},
		{name: "accepted against the policy", rules: "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -s 10.9.9.9/32 -j ACCEPT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass accept", out: "eth0"},
		{name: "accepted by nat is not accepted by filter", rules: "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass", out: "eth0"},
		{name: "return from a built-in chain", rules: "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j RETURN\n-A FORWARD -j ACCEPT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "DROP"},
		{name: "return comes back", rules: "*filter\n:A - [0:0]\n-A FORWARD -j A\n-A FORWARD -j DROP\n-A A -j RETURN\n-A A -j ACCEPT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "DROP"},
		{name: "goto does not come back", rules: "*filter\n:A - [0:0]\n:B - [0:0]\n-A FORWARD -j A\n-A FORWARD -j REJECT\n-A A -g B\n-A A -j DROP\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "REJECT"},
		{name: "goto from a built-in chain", rules: "*filter\n:B - [0:0]\n-A FORWARD -g B\n-A FORWARD -j REJECT\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass", out: "eth0"},
		{name: "mark leaves", rules: "*mangle\n-A PREROUTING -j MARK --set-xmark 0x5/0x5\n-A FORWARD -m mark --mark 0x4/0x4 -j MARK --set-xmark 0x4/0x0\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass mark 0x1", out: "eth0"},
		{name: "mark stays", rules: "*mangle\n-A PREROUTING -j MARK --set-xmark 0x5/0x5\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.1:80", want: "pass"},
		{name: "interface pattern", rules: "*filter\n-A FORWARD -i eth+ ! -o eth+ -j DROP\nCOMMIT\n", packet: "eth0 10.9.9.9 10.244.1.70:80", want: "DROP"},
		{name: "local source", rules: "*filter\n-A FORWARD -m addrtype --src-type LOCAL ! --dst-type LOCAL -j DROP\nCOMMIT\n", packet: "eth0 10.0.0.1 10.0.0.2:80", want: "DROP"},
		{name: "ports", rules: "*filter\n-A FORWARD -p tcp -m tcp --sport 1000:2000 ! --dport 81:90 -j DROP\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "DROP"},
		{name: "counting only", rules: "*filter\n-A FORWARD -m nfacct --nfacct-name x\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass", out: "eth0"},
		{name: "unknown rule out of the way", rules: "*filter\n-A FORWARD -s 10.9.9.8/32 -m string --string x --algo bm -j DROP\nCOMMIT\n", packet: "eth0 10.9.9.9 10.0.0.2:80", want: "pass", out: "eth0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := packet(t, tt.packet)
			p.State = tt.state
			branches, err := trace.Walk(decode(t, tt.rules), node, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(branches) != 1 || branches[0].Probability != 1 {
				t.Fatalf("branches %v, want one", branches)
			}
			if b := branches[0]; b.Outcome.String() != tt.want || b.Out != tt.out {
				t.Errorf("got %q by %q, want %q by %q; rules %v", b.Outcome, b.Out, tt.want, tt.out, b.Steps())
			}
		})
	}
}

func TestWalkErrors(t *testing.T) {
	tests := []struct {
		name, rules, packet, want string
		unknown                   bool
	}{
		{name: "unknown match", rules: "*filter\n-A FORWARD -m string --string x --algo bm -j DROP\nCOMMIT\n", want: "chain filter/FORWARD", unknown: true},
		{name: "unknown target", rules: "*filter\n-A FORWARD -j LOG\nCOMMIT\n", want: "-j LOG", unknown: true},
		{name: "address type", rules: "*filter\n-A FORWARD -m addrtype --dst-type BROADCAST\nCOMMIT\n", want: "BROADCAST", unknown: true},
		{name: "random port", rules: "*nat\n-A POSTROUTING -j MASQUERADE --random-fully\nCOMMIT\n*filter\n-A INPUT -p tcp -m tcp --sport 1234 -j DROP\nCOMMIT\n", packet: "host 127.0.0.1 10.0.0.1:80", want: "at random", unknown: true},
		{name: "missing chain", rules: "*filter\n-A FORWARD -j NONE\nCOMMIT\n", want: "jumps to NONE"},
		{name: "other table", rules: "*raw\n-A PREROUTING -j ACCEPT\nCOMMIT\n", want: "table raw is not walked"},
		{name: "loop", rules: "*filter\n:A - [0:0]\n-A FORWARD -j A\n-A A -g A\nCOMMIT\n", want: "jumps back to A"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := packet(t, cmp.Or(tt.packet, "eth0 10.9.9.9 10.0.0.2:80"))
			branches, err := trace.Walk(decode(t, tt.rules), node, p, nil)
			if err == nil || branches != nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, trace.ErrUnknown) != tt.unknown {
				t.Errorf("branches %v, error %v, want one with %q", branches, err, tt.want)
			}
		})
	}
	mixed := trace.Packet{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("fd00::1")}
	if _, err := trace.Walk(nil, node, mixed, nil); err == nil {
		t.Error("no error for a packet of two families")
	}
}

// TestWalkSplits checks shares, the order of branches and merging.
func TestWalkSplits(t *testing.T) {
	rules := "*nat\n:A - [0:0]\n:B - [0:0]\n:C - [0:0]\n" +
		"-A PREROUTING -m statistic --mode random --probability 0.25 -j A\n" +
		"-A PREROUTING -m statistic --mode random --probability 0.5 -j B\n" +
		"-A PREROUTING -m statistic --mode random --probability 0 -j DROP\n" +
		"-A PREROUTING -m statistic --mode random --probability 1 -j C\n" +
		"-A PREROUTING -j LOG\n" +
		"-A A -p tcp -j DNAT --to-destination 10.244.1.10:80\n" +
		"-A B -p tcp -j DNAT --to-destination 10.244.1.11:80\n" +
		"-A C -p tcp -j DNAT --to-destination 10.244.1.10:80\nCOMMIT\n"
	branches, err := trace.Walk(decode(t, rules), node, packet(t, "eth0 10.9.9.9 10.0.0.2:80"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(branches) != 2 || branches[0].Outcome.To.String() != "10.244.1.10:80" || branches[0].Probability != 0.625 ||
		branches[1].Outcome.To.String() != "10.244.1.11:80" || branches[1].Probability != 0.375 {
		t.Errorf("got %v", branches)
	}
	var chains []string
	for _, s := range branches[0].Steps() {
		chains = append(chains, s.Chain.Name)
	}
	if got, want := strings.Join(chains, " "), "PREROUTING A"; got != want {
		t.Errorf("rules of %s matched, want of %s", got, want)
	}
}

func TestWalkManyEndpoints(t *testing.T) {
	const n = 5000
	rs := ruleset.Ruleset{}
	svc := &ruleset.Chain{ChainID: ruleset.ChainID{Table: ruleset.NAT, Name: "PREROUTING"}}
	for i := range n {
		svc.Rules = append(svc.Rules, ruleset.Rule{
			Matches: []ruleset.Match{ruleset.Protocol{Name: "tcp"}, ruleset.Chance(n - i)},
			Action:  ruleset.DNAT{To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80)},
		})
	}
	rs[svc.ChainID] = svc
	branches, err := trace.Walk(rs, node, packet(t, "eth0 10.9.9.9 10.0.0.2:80"), nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, b := range branches {
		sum += b.Probability
		if math.Abs(b.Probability-1.0/n) > 1e-6 {
			t.Fatalf("%s has %v, want 1/%d", b.Outcome, b.Probability, n)
		}
	}
	if len(branches) != n || math.Abs(sum-1) > 1e-12 {
		t.Errorf("%d branches with sum %v, want %d and 1", len(branches), sum, n)
	}
}

func TestWalkRecent(t *testing.T) {
	rules := decode(t, "*nat\n:A - [0:0]\n:B - [0:0]\n"+
		"-A PREROUTING -m recent --rcheck --seconds 10 --reap --name A --mask 255.255.255.255 --rsource -j A\n"+
		"-A PREROUTING -m statistic --mode random --probability 0.5 -j A\n"+
		"-A PREROUTING -j B\n"+
		"-A A -p tcp -m recent --set --name A --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.10:80\n"+
		"-A B -p tcp -j DNAT --to-destination 10.244.1.11:80\nCOMMIT\n")
	p := packet(t, "eth0 10.9.9.9 10.0.0.2:80")
	first, err := trace.Walk(rules, node, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 2 || len(first[0].Lists["A"]) != 1 || len(first[1].Lists) != 0 {
		t.Fatalf("got %v, want a way through A that is remembered and one through B that is not", first)
	}
	other := packet(t, "eth0 10.9.9.8 10.0.0.2:80")
	tests := []struct {
		name   string
		packet trace.Packet
		age    time.Duration
		want   int
	}{
		{"at once", p, 0, 1},
		{"in the last moment", p, 10 * time.Second, 1},
		{"too late", p, 10*time.Second + time.Millisecond, 2},
		{"another client", other, 0, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			branches, err := trace.Walk(rules, node, tt.packet, first[0].Lists.Older(tt.age))
			if err != nil || len(branches) != tt.want {
				t.Fatalf("branches %v, error %v, want %d", branches, err, tt.want)
			}
			if age := branches[0].Lists["A"][tt.packet.Source]; age != 0 {
				t.Errorf("the entry is %v old after the packet, want it renewed", age)
			}
		})
	}
	if age := first[0].Lists["A"][p.Source]; age != 0 {
		t.Errorf("walks changed the lists that they were given: %v", first[0].Lists)
	}
}

func TestRecentReapsAndMasks(t *testing.T) {
	rules := decode(t, "*filter\n"+
		"-A FORWARD -m recent --set --name N --mask 255.255.255.0 --rsource\n"+
		"-A FORWARD -m recent --rcheck --seconds 10 --reap --name N --mask 255.255.255.0 --rsource\nCOMMIT\n")
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	lists := trace.Lists{"N": {a("10.1.1.0"): 11 * time.Second, a("10.1.2.0"): 12 * time.Second, a("10.1.3.0"): time.Second}}
	branches, err := trace.Walk(rules, node, packet(t, "eth0 10.9.9.9 10.0.0.2:80"), lists)
	if err != nil || len(branches) != 1 {
		t.Fatalf("branches %v, error %v", branches, err)
	}
	got := branches[0].Lists["N"]
	if _, kept := got[a("10.1.2.0")]; kept || len(got) != 3 || got[a("10.9.9.0")] != 0 {
		t.Errorf("got %v, want the oldest entry replaced by 10.9.9.0", got)
	}
}
