package ruleset

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// decodeRule returns the one rule of a chain.
func decodeRule(t *testing.T, rule string) (Rule, error) {
	t.Helper()
	rs, err := Decode([]byte("*nat\n:A - [0:0]\n:TARGET - [0:0]\n-A A " + rule + "\nCOMMIT\n"))
	if err != nil {
		return Rule{}, err
	}
	rules := rs[ChainID{NAT, "A"}].Rules
	if len(rules) != 1 {
		t.Fatalf("%d rules, want 1", len(rules))
	}
	return rules[0], nil
}

func TestDecodeInvertsString(t *testing.T) {
	for _, tt := range spellings {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeRule(t, tt.want)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.rule) {
				t.Errorf("got  %#v\nwant %#v", got, tt.rule)
			}
		})
	}
}

// TestDecodeSpellings holds what iptables takes against how iptables-save prints it.
func TestDecodeSpellings(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"module before protocol", "-m tcp -p tcp --dport 80 -j TARGET", "-p tcp -m tcp --dport 80 -j TARGET"},
		{"module without options", "-p tcp -m comment --comment x -m tcp -j DNAT --to-destination 10.0.0.1:80", "-p tcp -m comment --comment x -j DNAT --to-destination 10.0.0.1:80"},
		{"port without module", "-p udp -m comment --comment x --dport 53 -j TARGET", "-p udp -m comment --comment x -m udp --dport 53 -j TARGET"},
		{"port behind another module", "-p tcp -m conntrack --ctstate NEW ! --dport 53", "-p tcp -m conntrack --ctstate NEW -m tcp ! --dport 53"},
		{"port behind the target", "-p tcp -j TARGET --dport 53", "-p tcp -m tcp --dport 53 -j TARGET"},
		{"destination port first", "-p tcp -m tcp --dport 80 --sport 1", "-p tcp -m tcp --sport 1 --dport 80"},
		{"long options", "--source 10.0.0.1 --destination 10.0.0.2 --in-interface a --out-interface b --protocol tcp --match mark --mark 1 --jump TARGET",
			"-s 10.0.0.1/32 -d 10.0.0.2/32 -i a -o b -p tcp -m mark --mark 0x1 -j TARGET"},
		{"open port ranges", "-p tcp -m tcp --sport :1023 --dport 1024:", "-p tcp -m tcp --sport 0:1023 --dport 1024:65535"},
		{"host without length", "-d 10.0.0.1", "-d 10.0.0.1/32"},
		{"mask", "-s 10.1.2.3/255.255.255.0 -d ::1/ffff::", "-s 10.1.2.0/24 -d ::/16"},
		{"every address", "-s 0.0.0.0/0 -d ::/0", ""},
		{"every interface", "-i + -o + -p all", ""},
		{"mask with holes", "-s 10.0.0.1/255.0.0.255", "-s 10.0.0.1/255.0.0.255"},
		{"list of addresses", "! -s 10.0.0.1,10.0.0.2", "! -s 10.0.0.1,10.0.0.2"},
		{"protocol numbers", "-p 6 -m tcp --dport 1", "-p tcp -m tcp --dport 1"},
		{"icmp of IPv6", "-p ICMPv6", "-p ipv6-icmp"},
		{"old negation", "-s ! 10.0.0.1 -p ! tcp -i ! eth0", "! -s 10.0.0.1/32 ! -i eth0 ! -p tcp"},
		{"old negation of options", "-p tcp -m tcp --dport ! 80 -m conntrack --ctstate ! NEW", "-p tcp -m tcp ! --dport 80 -m conntrack ! --ctstate NEW"},
		{"states in any order", "-m conntrack --ctstate dnat,NEW,invalid", "-m conntrack --ctstate INVALID,NEW,DNAT"},
		{"state", "-m state --state NEW", "-m conntrack --ctstate NEW"},
		{"decimal mark", "-m mark ! --mark 16/255", "-m mark ! --mark 0x10/0xff"},
		{"set mark", "-j MARK --set-mark 0x4000", "-j MARK --set-xmark 0x4000/0xffffffff"},
		{"set mark with mask", "-j MARK --set-mark 0x4000/0x1", "-j MARK --set-xmark 0x4000/0x4001"},
		{"or mark", "-j MARK --or-mark 0x4000", "-j MARK --set-xmark 0x4000/0x4000"},
		{"xor mark", "-j MARK --xor-mark 0x4000", "-j MARK --set-xmark 0x4000/0x0"},
		{"and mark", "-j MARK --and-mark 0x4000", "-j MARK --set-xmark 0x0/0xffffbfff"},
		{"rough probability", "-m statistic --mode random --probability 0.3333333333", "-m statistic --mode random --probability 0.33333333349"},
		{"recent in any order", "-m recent --name X --rcheck --reap --seconds 5 --rsource", "-m recent --rcheck --seconds 5 --reap --name X --rsource"},
		{"two spaces of nfacct", "-m nfacct --nfacct-name  x", "-m nfacct --nfacct-name x"},
		{"counters", "-c 1 2 -j ACCEPT", "-j ACCEPT"},
		{"DNAT of IPv6 without port", "-j DNAT --to-destination [fd00::1]", "-j DNAT --to-destination fd00::1"},
		{"comment that looks like a flag", "-m comment --comment -j -j ACCEPT", `-m comment --comment "-j" -j ACCEPT`},
		{"two comments", "-m comment --comment a -m comment --comment b", "-m comment --comment a -m comment --comment b"},
		{"quoted without need", `-m comment --comment "x" -j "TARGET"`, "-m comment --comment x -j TARGET"},
		{"chain not declared here", "-j ELSEWHERE", "-j ELSEWHERE"},
		// What has no type stays as it was.
		{"unknown match", `-p tcp -m string --string "a  b" --algo bm -s 10.0.0.1 -j TARGET`, `-s 10.0.0.1/32 -p tcp -m string --string "a  b" --algo bm -j TARGET`},
		{"unknown match, negated flag next", "-m length --length 5 ! -s 10.0.0.1", "! -s 10.0.0.1/32 -m length --length 5"},
		{"unknown option of a known match", "-m statistic --mode nth --every 3 --packet 0", "-m statistic --mode nth --every 3 --packet 0"},
		{"negated recent", "-m recent ! --rcheck --name X --rsource", "-m recent ! --rcheck --name X --rsource"},
		{"recent update", "-m recent --update --seconds 5 --name X --rsource", "-m recent --update --seconds 5 --name X --rsource"},
		{"service name", "-p tcp -m tcp --dport http", "-p tcp -m tcp --dport http"},
		{"implicit icmp", "-p icmp --icmp-type 8", "-p icmp -m icmp --icmp-type 8"},
		{"fragments", "-f -j ACCEPT", "-f -j ACCEPT"},
		{"unknown target", `-j LOG --log-prefix "-j x " -m mark --mark 1`, `-m mark --mark 0x1 -j LOG --log-prefix "-j x "`},
		{"unknown target without options", "-j NOTRACK", "-j NOTRACK"},
		{"range of DNAT", "-j DNAT --to-destination 10.0.0.1-10.0.0.5", "-j DNAT --to-destination 10.0.0.1-10.0.0.5"},
		{"ports of MASQUERADE", "-p tcp -j MASQUERADE --to-ports 1-5", "-p tcp -j MASQUERADE --to-ports 1-5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := decodeRule(t, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.String(); got != tt.want {
				t.Fatalf("got  %s\nwant %s", got, tt.want)
			}
			again, err := decodeRule(t, r.String())
			if err != nil || !reflect.DeepEqual(again, r) {
				t.Errorf("decoded again: %#v, error %v\nwant %#v", again, err, r)
			}
		})
	}
}

// TestDecodeKnowsWhatItDoesNotKnow makes sure that text which is kept is marked as such.
func TestDecodeKnowsWhatItDoesNotKnow(t *testing.T) {
	for _, text := range []string{
		"-m statistic --mode nth --every 3", "-m recent --update --name X", "-m recent --set --rdest --name X", "-m tcp --tcp-flags SYN SYN",
		"-m conntrack --ctstate NEW --ctproto 6", "-m addrtype --dst-type LOCAL --limit-iface-in", "-m mark --mark 0b1", "-m recent --rcheck --seconds 1 --hitcount 5 --name X",
		"-s 10.0.0.1,10.0.0.2", "-m statistic ! --mode random --probability 0.5", "-m statistic --mode random ! --probability 0.5", "-m nosuch",
	} {
		r, err := decodeRule(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if len(r.Matches) != 1 || reflect.TypeOf(r.Matches[0]) != reflect.TypeOf(UnknownMatch{}) {
			t.Errorf("%s: got %#v, want an UnknownMatch", text, r.Matches)
		}
	}
	for _, text := range []string{
		"-j NOTRACK", "-j SNAT --to-source 10.0.0.1", "-j DNAT --to-destination 10.0.0.1:80 --random", "-j MASQUERADE --random", "-j LOG",
		"-j MARK --set-mark nonsense", "-j REDIRECT --to-ports 80",
	} {
		r, err := decodeRule(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _, ok := r.Action.(UnknownAction); !ok {
			t.Errorf("%s: got %#v, want an UnknownAction", text, r.Action)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"outside of a table", "-A X", "line 1: "},
		{"no COMMIT", "*nat\n:A - [0:0]\n", "line 2: table nat ends without COMMIT"},
		{"table in a table", "*nat\n*filter\n", "line 2: table filter begins before COMMIT"},
		{"missing chain", "# x\n*nat\n-A X -j ACCEPT\nCOMMIT\n", "line 3: chain nat/X does not exist"},
		{"long chain name", "*nat\n:" + strings.Repeat("X", 29) + " - [0:0]\n", "line 2: chain name"},
		{"chain name of an option", "*nat\n:-j - [0:0]\n", "line 2: chain name"},
		{"no policy", "*nat\n:X\n", "line 2: chain X: want a policy"},
		{"policy counters", "*nat\n:X - [0;0]\n", `line 2: counters "[0;0]"`},
		{"rule counters", "*nat\n[a:0] -A PREROUTING\n", `line 2: counters "[a:0]"`},
		{"open quote", "*nat\n-A PREROUTING -m comment --comment \"x\n", "line 2: a quote is not closed"},
		{"escaped last quote", "*nat\n-A PREROUTING -m comment --comment \"x\\\"\n", "line 2: a quote is not closed"},
		{"control character", "*nat\n-A PREROUTING -i a\x01b\n", "line 2: a control character"},
		{"address", "*nat\n-A PREROUTING -s 10.0.0.300\n", "line 2: -s: "},
		{"length", "*nat\n-A PREROUTING -s 10.0.0.0/33\n", "line 2: -s: "},
		{"address twice", "*nat\n-A PREROUTING -s 10.0.0.1 -s 10.0.0.2\n", "line 2: -s: given twice"},
		{"no value", "*nat\n-A PREROUTING -s\n", "line 2: -s: a word is missing"},
		{"lone negation", "*nat\n-A PREROUTING !\n", "line 2: a ! that negates nothing"},
		{"negated jump", "*nat\n-A PREROUTING ! -j ACCEPT\n", "line 2: -j cannot be negated"},
		{"two targets", "*nat\n-A PREROUTING -j ACCEPT -j ACCEPT\n", "line 2: a second target"},
		{"option of nothing", "*nat\n-A PREROUTING --dport 80\n", "line 2: option --dport belongs to no match"},
		{"ports of a protocol without", "*nat\n-A PREROUTING -p icmp ! --dport 80\n", "line 2: option --dport does not belong to protocol icmp"},
		{"words after a jump", "*nat\n:A - [0:0]\n-A PREROUTING -j A --x\n", "line 3: unexpected \"--x\""},
		{"no comment", "*nat\n-A PREROUTING -m comment\n", "line 2: match comment"},
		{"unknown command", "*nat\n-D PREROUTING 1\n", "line 2: unknown command \"-D\""},
		{"removed with rules", "*nat\n:A - [0:0]\n-A A\n-X A\n", "line 4: chain nat/A is built in or not empty"},
		{"place", "*nat\n:A - [0:0]\n-I A 2 -j ACCEPT\n", "line 3: chain nat/A has no place 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rs, err := Decode([]byte(tt.text))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || rs != nil {
				t.Errorf("got %v, error %v, want error %s…", rs, err, tt.want)
			}
		})
	}
}

func TestDecodeCommands(t *testing.T) {
	text := `# of a save with counters
*filter
:FORWARD DROP [12:3456]
:A - [0:0]
:GONE - [0:0]
[1:60] -A FORWARD -j A
-A A -j RETURN
-I A -j ACCEPT
-I A 2 -j DROP
-N B
-A B -j DROP
-F B
-X GONE
COMMIT

*nat
-A PREROUTING -j ACCEPT
COMMIT
*filter
-A B -j RETURN
COMMIT
`
	want := `*nat
:PREROUTING - [0:0]
-A PREROUTING -j ACCEPT
COMMIT
*filter
:FORWARD DROP [0:0]
:A - [0:0]
:B - [0:0]
-A FORWARD -j A
-A A -j ACCEPT
-A A -j DROP
-A A -j RETURN
-A B -j RETURN
COMMIT
`
	rs, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(rs.Append(nil)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// saves returns the stored output of iptables-save by file name.
func saves(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/save/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, error %v", files, err)
	}
	texts := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(f)] = text
	}
	return texts
}

// TestDecodeSaves reads what kube-proxy's rules look like in iptables-save: nothing
// in it may be unknown, and written again it is the same but for the place of
// comments, "-m tcp" without options, and the second space of nfacct.
func TestDecodeSaves(t *testing.T) {
	for name, text := range saves(t) {
		t.Run(name, func(t *testing.T) {
			rs, err := Decode(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := Check(rs); err != nil {
				t.Error(err)
			}
			for id, c := range rs {
				for _, r := range c.Rules {
					if strings.Contains(strings.Join(typeNames(r), " "), "Unknown") {
						t.Errorf("chain %s: %s has unknown parts", id, r)
					}
				}
			}
			got, want := sameWords(string(rs.Append(nil))), sameWords(string(text))
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func typeNames(r Rule) []string {
	var names []string
	for _, m := range r.Matches {
		names = append(names, reflect.TypeOf(m).Name())
	}
	if r.Action != nil {
		names = append(names, reflect.TypeOf(r.Action).Name())
	}
	return names
}

// sameWords puts comments first and removes empty modules, by plain means.
func sameWords(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.ReplaceAll(line, "  ", " "))
		for _, p := range []string{"tcp", "udp", "sctp"} {
			line = strings.ReplaceAll(line, " -m "+p+" -j ", " -j ")
		}
		comment := ""
		if before, after, ok := strings.Cut(line, ` -m comment --comment "`); ok {
			text, rest, _ := strings.Cut(after, `"`)
			comment, line = text, before+rest
		}
		out = append(out, line+" # "+comment)
	}
	return strings.Join(out, "\n")
}

func FuzzDecode(f *testing.F) {
	for _, text := range saves(f) {
		f.Add(text)
	}
	for _, s := range spellings {
		f.Add([]byte("*nat\n:A - [0:0]\n-A A " + s.want + "\nCOMMIT\n"))
	}
	f.Add([]byte("*nat\n:A - [0:0]\n[1:2] -A A ! -p tcp -m length ! --length 5 ! -s 1.2.3.4 -j LOG \"-j\"\n-I A 1 --dport 5\n-X A\nCOMMIT\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rs, err := Decode(text)
		if (err == nil) == (rs == nil) {
			t.Fatalf("ruleset %v and error %v", rs, err)
		}
		if err != nil {
			return
		}
		once := rs.Append(nil)
		again, err := Decode(once)
		if err != nil {
			t.Fatalf("%v in its own text:\n%s", err, once)
		}
		if !reflect.DeepEqual(again, rs) {
			t.Fatalf("decoded again it differs:\n%s", once)
		}
		if twice := again.Append(nil); string(twice) != string(once) {
			t.Fatalf("once:\n%s\ntwice:\n%s", once, twice)
		}
	})
}
