package ruleset

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	hostMask4 = netip.MustParseAddr("255.255.255.255")
	hostMask6 = netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
)

func source(s string) Source           { return Source{Prefix: netip.MustParsePrefix(s)} }
func destination(s string) Destination { return Destination{Prefix: netip.MustParsePrefix(s)} }

// spelling is a rule and how iptables-save prints it.
type spelling struct {
	name string
	rule Rule
	want string
	// table is where a kernel takes the rule; "" for nat.
	table Table
	// ipv6 says that the rule has addresses of that family.
	ipv6 bool
	// any says that both families take the rule.
	any bool
}

var spellings = []spelling{
	{name: "nothing", any: true},
	{name: "source", rule: Rule{Matches: []Match{source("10.0.0.1/32")}}, want: "-s 10.0.0.1/32"},
	{name: "not source", rule: Rule{Matches: []Match{Source{netip.MustParsePrefix("10.244.0.0/16"), true}}}, want: "! -s 10.244.0.0/16"},
	{name: "destination", rule: Rule{Matches: []Match{destination("10.0.0.0/8")}}, want: "-d 10.0.0.0/8"},
	{name: "IPv6 addresses", ipv6: true,
		rule: Rule{Matches: []Match{source("fd00::1/128"), destination("fd00:0:0:1::/64")}, Action: Return{}},
		want: "-s fd00::1/128 -d fd00:0:0:1::/64 -j RETURN"},
	{name: "interfaces", any: true,
		rule: Rule{Matches: []Match{InInterface{"eth+", true}, OutInterface{"cni0", false}}, Action: Return{}},
		want: "! -i eth+ -o cni0 -j RETURN"},
	{name: "protocol", any: true, rule: Rule{Matches: []Match{Protocol{"tcp", false}}}, want: "-p tcp"},
	{name: "not protocol", any: true, rule: Rule{Matches: []Match{Protocol{"udp", true}}}, want: "! -p udp"},
	{name: "icmp", rule: Rule{Matches: []Match{Protocol{"icmp", false}}}, want: "-p icmp"},
	{name: "icmp of IPv6", ipv6: true, rule: Rule{Matches: []Match{Protocol{"ipv6-icmp", false}}}, want: "-p ipv6-icmp"},
	{name: "Service port",
		rule: Rule{
			Matches: []Match{Source{netip.MustParsePrefix("10.244.0.0/16"), true}, destination("10.96.0.80/32"), Protocol{"tcp", false}, DestinationPort{"tcp", 80, 80, false}},
			Comment: "ns1/s:http cluster IP",
			Action:  Jump{"TARGET"},
		},
		want: `! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m comment --comment "ns1/s:http cluster IP" -m tcp --dport 80 -j TARGET`},
	{name: "both ports", any: true,
		rule: Rule{Matches: []Match{Protocol{"sctp", false}, SourcePort{"sctp", 1, 5, false}, DestinationPort{"sctp", 80, 80, true}}},
		want: "-p sctp -m sctp --sport 1:5 ! --dport 80"},
	{name: "source port", any: true,
		rule: Rule{Matches: []Match{Protocol{"udp", false}, SourcePort{"udp", 1024, 65535, true}}},
		want: "-p udp -m udp ! --sport 1024:65535"},
	{name: "local destination", any: true, rule: Rule{Matches: []Match{AddrType{Destination: "LOCAL"}}}, want: "-m addrtype --dst-type LOCAL"},
	{name: "address types", any: true,
		rule: Rule{Matches: []Match{AddrType{Source: "UNICAST", Destination: "LOCAL", NotDestination: true}}},
		want: "-m addrtype --src-type UNICAST ! --dst-type LOCAL"},
	{name: "state", any: true, rule: Rule{Matches: []Match{Conntrack{States: New}}}, want: "-m conntrack --ctstate NEW"},
	{name: "all states", any: true,
		rule: Rule{Matches: []Match{Conntrack{States: Invalid | New | Related | Established | Untracked | SNATed | DNATed, Not: true}}},
		want: "-m conntrack ! --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,SNAT,DNAT"},
	{name: "mark bit", any: true, rule: Rule{Matches: []Match{Mark{0x4000, 0x4000, true}}}, want: "-m mark ! --mark 0x4000/0x4000"},
	{name: "whole mark", any: true, rule: Rule{Matches: []Match{Mark{1, allBits, false}}}, want: "-m mark --mark 0x1"},
	{name: "one in three", any: true, rule: Rule{Matches: []Match{Chance(3)}}, want: "-m statistic --mode random --probability 0.33333333349"},
	{name: "one in one", any: true, rule: Rule{Matches: []Match{Chance(1)}}, want: "-m statistic --mode random --probability 1.00000000000"},
	{name: "two in five", any: true, rule: Rule{Matches: []Match{Share(2, 5)}}, want: "-m statistic --mode random --probability 0.39999999991"},
	{name: "one in 5000", any: true, rule: Rule{Matches: []Match{Chance(5000)}}, want: "-m statistic --mode random --probability 0.00020000013"},
	{name: "recent check",
		rule: Rule{Matches: []Match{RecentCheck{"KUBE-SEP-A", 10800, true, hostMask4}}, Action: Jump{"TARGET"}},
		want: "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j TARGET"},
	{name: "recent check of any age",
		rule: Rule{Matches: []Match{RecentCheck{"L", 0, false, hostMask4}}},
		want: "-m recent --rcheck --name L --mask 255.255.255.255 --rsource"},
	{name: "recent set", ipv6: true,
		rule: Rule{Matches: []Match{Protocol{"tcp", false}, RecentSet{"L", hostMask6}}, Action: DNAT{netip.MustParseAddrPort("[fd00::1]:8080")}},
		want: "-p tcp -m recent --set --name L --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j DNAT --to-destination [fd00::1]:8080"},
	{name: "unknown match", any: true, rule: Rule{Matches: []Match{UnknownMatch{"-m length --length 0:100"}}}, want: "-m length --length 0:100"},
	{name: "jump", any: true, rule: Rule{Action: Jump{"TARGET"}}, want: "-j TARGET"},
	{name: "goto", any: true, rule: Rule{Action: Goto{"TARGET"}}, want: "-g TARGET"},
	{name: "accept", any: true, rule: Rule{Action: Accept{}}, want: "-j ACCEPT"},
	{name: "drop", any: true, table: Filter, rule: Rule{Action: Drop{}}, want: "-j DROP"},
	{name: "return", any: true, rule: Rule{Action: Return{}}, want: "-j RETURN"},
	{name: "reject", table: Filter, rule: Rule{Action: Reject{"icmp-port-unreachable"}}, want: "-j REJECT --reject-with icmp-port-unreachable"},
	{name: "reject of IPv6", ipv6: true, table: Filter, rule: Rule{Action: Reject{"icmp6-port-unreachable"}}, want: "-j REJECT --reject-with icmp6-port-unreachable"},
	{name: "reset", any: true, table: Filter,
		rule: Rule{Matches: []Match{Protocol{"tcp", false}}, Action: Reject{"tcp-reset"}}, want: "-p tcp -j REJECT --reject-with tcp-reset"},
	{name: "DNAT", rule: Rule{Matches: []Match{Protocol{"tcp", false}}, Action: DNAT{netip.MustParseAddrPort("10.0.0.1:80")}},
		want: "-p tcp -j DNAT --to-destination 10.0.0.1:80"},
	{name: "DNAT to an address", rule: Rule{Action: DNAT{netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 0)}}, want: "-j DNAT --to-destination 10.0.0.1"},
	{name: "masquerade", any: true, rule: Rule{Action: Masquerade{}}, want: "-j MASQUERADE"},
	{name: "masquerade fully", any: true, rule: Rule{Action: Masquerade{true}}, want: "-j MASQUERADE --random-fully"},
	{name: "set mark", any: true, rule: Rule{Action: SetMark{0x4000, 0x4000}}, want: "-j MARK --set-xmark 0x4000/0x4000"},
	{name: "flip mark", any: true, rule: Rule{Action: SetMark{0x4000, 0}}, want: "-j MARK --set-xmark 0x4000/0x0"},
	{name: "unknown action", any: true, table: Filter, rule: Rule{Action: UnknownAction{`-j NFLOG --nflog-prefix "-j x"`}}, want: `-j NFLOG --nflog-prefix "-j x"`},
	{name: "plain comment", any: true, rule: Rule{Comment: "plain-word_1"}, want: "-m comment --comment plain-word_1"},
	{name: "comment with quotes", any: true, rule: Rule{Comment: `it's "q" \ back $x; é -j DROP`},
		want: `-m comment --comment "it\'s \"q\" \\ back $x; é -j DROP"`},
	{name: "comment between", any: true,
		rule: Rule{Matches: []Match{OutInterface{"eth0", false}, Conntrack{States: New}}, Comment: "a b", Action: Jump{"TARGET"}},
		want: `-o eth0 -m comment --comment "a b" -m conntrack --ctstate NEW -j TARGET`},
}

func TestString(t *testing.T) {
	for _, tt := range spellings {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.rule.String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	t.Run("nfacct", func(t *testing.T) { // not in the table: a kernel takes it only if the object exists
		r := Rule{Matches: []Match{NFAcct{"dropped"}}, Action: Drop{}}
		if got, want := r.String(), "-m nfacct --nfacct-name dropped -j DROP"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestStringNormalises(t *testing.T) {
	tests := []struct {
		name string
		rule Rule
		want string
	}{
		{"order of addresses", Rule{Matches: []Match{Protocol{"tcp", false}, destination("10.0.0.1/32"), Conntrack{States: New}, source("10.0.0.2/32")}},
			"-s 10.0.0.2/32 -d 10.0.0.1/32 -p tcp -m conntrack --ctstate NEW"},
		{"host bits", Rule{Matches: []Match{source("10.1.2.3/24")}}, "-s 10.1.2.0/24"},
		{"every address", Rule{Matches: []Match{source("0.0.0.0/0"), destination("::/0")}, Action: Accept{}}, "-j ACCEPT"},
		{"every interface", Rule{Matches: []Match{InInterface{"+", false}}}, ""},
		{"every address negated", Rule{Matches: []Match{Source{netip.MustParsePrefix("0.0.0.0/0"), true}}}, "! -s 0.0.0.0/0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.rule.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestProbabilityIsPrintfs(t *testing.T) {
	// Digits of printf("%.11f", steps / 2147483648.0), ties and ends of the range included.
	for steps, want := range map[uint32]string{
		0: "0.00000000000", 1: "0.00000000047", 1 << 20: "0.00048828125", 1 << 19: "0.00024414062",
		3 << 19: "0.00073242188", 1<<31 - 1: "0.99999999953", 1 << 31: "1.00000000000", 1 << 30: "0.50000000000",
	} {
		if got := string(appendProbability(nil, steps)); got != want {
			t.Errorf("%d steps: got %s, want %s", steps, got, want)
		}
	}
}

func TestArgs(t *testing.T) {
	r := Rule{
		Matches: []Match{Source{netip.MustParsePrefix("10.0.0.0/8"), true}, Conntrack{States: New}},
		Comment: `it's "q" \`,
		Action:  Jump{"KUBE-SERVICES"},
	}
	want := []string{"!", "-s", "10.0.0.0/8", "-m", "comment", "--comment", `it's "q" \`, "-m", "conntrack", "--ctstate", "NEW", "-j", "KUBE-SERVICES"}
	if got := r.Args(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNothingBreaksOut(t *testing.T) {
	evil := []string{
		"", "!", "a\nCOMMIT\n", "x\" -j ACCEPT", "\r\n-A X", "a\x00b", "a b", "\t", "\\", "\\\"", "é\xff\n", strings.Repeat("é\n", 300), "-t", "\u0085", "'",
	}
	for _, s := range evil {
		rule := Rule{
			Matches: []Match{
				InInterface{s, false}, Protocol{s, false}, SourcePort{s, 1, 1, false}, AddrType{Source: s, Destination: s},
				RecentCheck{Name: s}, RecentSet{Name: s}, NFAcct{s}, UnknownMatch{"-m " + strings.ReplaceAll(s, `"`, "")},
			},
			Comment: s,
			Action:  Jump{s},
		}
		id := ChainID{Table(s), s}
		b := NewBuilder(id.Table)
		b.Write(Chain{ChainID: id, Policy: s, Rules: []Rule{rule}})
		b.Delete(id)
		text := bytes.Join(b.Take(), nil)
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		if len(lines) != 6 {
			t.Fatalf("%q makes %d lines of 6:\n%s", s, len(lines), text)
		}
		words, err := tokenize(lines[2], nil)
		if err != nil {
			t.Fatalf("%q: %v in %s", s, err, lines[2])
		}
		if got := words[len(words)-2].raw; got != "-j" {
			t.Errorf("%q: the jump is not the last thing in %s", s, lines[2])
		}
		for _, line := range []string{lines[1], lines[3], lines[4]} {
			if words, err := tokenize(line, nil); err != nil || len(words) > 3 {
				t.Errorf("%q: words %v, error %v in %s", s, words, err, line)
			}
		}
	}
}

func TestCleanComment(t *testing.T) {
	tests := []struct{ name, comment, want string }{
		{"empty", "", ""},
		{"newline", "a\nb", "a b"},
		{"next line of Unicode", "a\u0085b", "a b"},
		{"broken UTF-8", "a\xffb", "a?b"},
		{"longest", strings.Repeat("x", 255), strings.Repeat("x", 255)},
		{"too long", strings.Repeat("x", 256), strings.Repeat("x", 255)},
		{"cut before a rune of two bytes", strings.Repeat("é", 200), strings.Repeat("é", 127)},
		{"cut before a rune of four bytes", "abc" + strings.Repeat("😀", 100), "abc" + strings.Repeat("😀", 63)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := cleanComment(tt.comment)
			if got != tt.want || len(got) > MaxComment || !utf8.ValidString(got) {
				t.Errorf("got %q (%d bytes), want %q", got, len(got), tt.want)
			}
		})
	}
}

func TestHash(t *testing.T) {
	a := Chain{ChainID: ChainID{NAT, "A"}, Rules: []Rule{{Action: Accept{}}, {Comment: "x"}}}
	const want = 0x2495d5201c6b6c1c // of printf " -j ACCEPT\n -m comment --comment x\n" | sha256sum
	if got := a.Hash(); got != want {
		t.Errorf("got %#x, want %#x: it must not change between versions without a reason", got, want)
	}
	others := map[string]Chain{
		"other order": {Rules: []Rule{a.Rules[1], a.Rules[0]}},
		"fewer":       {Rules: a.Rules[:1]},
		"none":        {},
		"joined":      {Rules: []Rule{{Comment: "x", Action: Accept{}}}},
	}
	for name, o := range others {
		if o.Hash() == a.Hash() {
			t.Errorf("%s: same hash", name)
		}
	}
	if b := (Chain{ChainID: ChainID{Filter, "B"}, Rules: a.Rules}); b.Hash() != a.Hash() {
		t.Error("the name changes the hash")
	}
}
