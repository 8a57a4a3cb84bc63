package render

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// hostAddresses are those of n1 in both families, as the host lists them.
var hostAddresses = []netip.Addr{addr("127.0.0.1"), addr("10.0.0.1"), addr("::1"), addr("fd00::1"), addr("10.0.0.1")}

// lacking is options for a kernel without something.
func lacking(l Lacks, changes ...func(*Options)) Options {
	return options(changes...).Without(l, hostAddresses)
}

// lackTests are kernels that lack one thing each, with the words that no rule may
// have there.
var lackTests = []struct {
	name  string
	lacks Lacks
	words []string
}{
	{"nothing", Lacks{}, nil},
	{"comment", Lacks{Comment: true}, []string{"-m comment"}},
	{"conntrack", Lacks{Conntrack: true}, []string{"-m conntrack"}},
	{"masquerade", Lacks{Masquerade: true}, []string{"-m mark", "-j MARK", "-j MASQUERADE"}},
	{"recent", Lacks{Recent: true}, []string{"-m recent"}},
	{"statistic", Lacks{Statistic: true}, []string{"-m statistic"}},
	{"addrtype", Lacks{AddrType: true}, []string{"-m addrtype"}},
	{"reject", Lacks{Reject: true}, []string{"-j REJECT"}},
	{"sctp", Lacks{SCTP: true}, []string{"sctp"}},
	{"everything", Lacks{true, true, true, true, true, true, true, true},
		[]string{"-m comment", "-m conntrack", "-m mark", "-j MARK", "-j MASQUERADE", "-m recent", "-m statistic", "-m addrtype", "-j REJECT", "sctp"}},
}

// What is missing is in no rule of any case, the ruleset is a sound one, and what
// does not need it is all there.
func TestLacks(t *testing.T) {
	for _, test := range lackTests {
		t.Run(test.name, func(t *testing.T) {
			for _, c := range cases() {
				c.options = c.options.Without(test.lacks, hostAddresses)
				r := c.world.render(c.options)
				rules := maps.Clone(r.Ruleset)
				dropLosers(t, rules, c, r.conflicts)
				addHooks(rules, test.lacks)
				if err := ruleset.Check(rules); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				for _, chain := range rules {
					for _, rule := range chain.Rules {
						for _, word := range test.words {
							if text := rule.String(); strings.Contains(text, word) {
								t.Errorf("%s: %s has %q: %s", c.name, chain.ChainID, word, text)
							}
						}
					}
				}
			}
		})
	}
}

// One thing that is missing leaves the rules that do not need it as they are.
func TestLacksNothingElse(t *testing.T) {
	for _, test := range lackTests {
		if test.lacks.Comment || test.lacks.Statistic {
			continue // each rule has the one, and each endpoint but one needs the other
		}
		t.Run(test.name, func(t *testing.T) {
			for _, c := range cases() {
				if test.lacks.Conntrack { // node ports on loopback addresses need it
					c.options.NodePorts.Loopback, c.options.LocalhostAccount = false, ""
				}
				full := c.world.render(c.options)
				c.options = c.options.Without(test.lacks, hostAddresses)
				got := c.world.render(c.options)
				for id, chain := range full.Ruleset {
					for _, rule := range chain.Rules {
						text := rule.String()
						needs := slices.ContainsFunc(test.words, func(word string) bool { return strings.Contains(text, word) })
						if needs || test.lacks.SCTP && strings.Contains(c.name, "protocols") {
							continue
						}
						if !got.holds(id, text) {
							t.Errorf("%s: %s has lost %s", c.name, id, text)
						}
					}
				}
			}
		})
	}
}

func (r rendered) holds(id ruleset.ChainID, text string) bool {
	chain := r.Ruleset[id]
	return chain != nil && slices.ContainsFunc(chain.Rules, func(rule ruleset.Rule) bool { return rule.String() == text })
}

func TestLacksSpelled(t *testing.T) {
	t.Run("no recent, no affinity", func(t *testing.T) {
		r := one(lacking(Lacks{Recent: true}), service("s", affinity), A, B)
		same := one(options(), service("s"), A, B)
		if got, want := string(r.text()), string(same.text()); got != want {
			t.Errorf("got:\n%s\nwant that of a Service without affinity:\n%s", got, want)
		}
	})
	t.Run("no statistic, the first endpoint of each policy", func(t *testing.T) {
		r := one(lacking(Lacks{Statistic: true}), service("s", nodePort, externalLocal, affinity), B, A)
		r.mustHave(t, "nat KUBE-SVC", `
			! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
			-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-B --mask 255.255.255.255 --rsource -j KUBE-SEP-B
			-j KUBE-SEP-B`)
		r.mustHave(t, "nat KUBE-SVL", `
			-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j KUBE-SEP-A
			-j KUBE-SEP-A`)
	})
	t.Run("no REJECT, DROP", func(t *testing.T) {
		one(lacking(Lacks{Reject: true}), service("s")).mustHave(t, "filter KUBE-SERVICES", "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j DROP")
	})
	t.Run("no masquerading, empty chains", func(t *testing.T) {
		r := one(lacking(Lacks{Masquerade: true}), service("s"), A)
		r.mustHave(t, "nat KUBE-MARK-MASQ", "")
		r.mustHave(t, "nat KUBE-POSTROUTING", "")
		r.mustHave(t, "filter KUBE-FORWARD", `
			-m conntrack --ctstate INVALID -j DROP
			-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`)
	})
	t.Run("no conntrack, no node ports on loopback", func(t *testing.T) {
		r := newWorld().render(lacking(Lacks{Conntrack: true}, func(o *Options) { o.LocalhostAccount = "localhost" }))
		r.mustHave(t, "filter KUBE-FORWARD", "-m mark --mark 0x4000/0x4000 -j ACCEPT")
		r.mustHave(t, "filter KUBE-FIREWALL", "(no chain)")
		r.mustHave(t, "nat KUBE-SERVICES", "! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
	})
	t.Run("no addrtype, the addresses that are there", func(t *testing.T) {
		newWorld().render(lacking(Lacks{AddrType: true})).mustHave(t, "nat KUBE-SERVICES", `
			-d 10.0.0.1/32 -j KUBE-NODEPORTS
			-d 127.0.0.1/32 -j KUBE-NODEPORTS`)
		newWorld().render(lacking(Lacks{AddrType: true}, ipv6)).mustHave(t, "nat KUBE-SERVICES", "-d fd00::1/128 -j KUBE-NODEPORTS")
	})
	t.Run("no SCTP, no SCTP ports", func(t *testing.T) {
		r := newWorld().with(service("s", nodePort), A).with(service("u", at("10.96.0.82"), nodePort, sctp), B).render(lacking(Lacks{SCTP: true}))
		same := newWorld().with(service("s", nodePort), A).render(options())
		if got, want := string(r.text()), string(same.text()); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// What a kernel lacks is part of the options: when it is found out, everything is
// rendered again.
func TestLacksAreSeen(t *testing.T) {
	for _, test := range lackTests[1:] {
		if options().Equal(lacking(test.lacks)) {
			t.Errorf("%s is not seen", test.name)
		}
	}
	if o := lacking(Lacks{AddrType: true}); o.Equal(options().Without(Lacks{AddrType: true}, hostAddresses[:1])) {
		t.Error("other addresses of the host are not seen")
	}
}

// Trees of dispatch chains and groups of endpoints have comments of their own.
func TestLacksCommentInTrees(t *testing.T) {
	trees := func(o *Options) { o.FlatDispatch, o.FlatBalance = 1, 1 }
	for _, w := range []world{many(40), newWorld().with(service("s", affinity), pods(30)...)} {
		if text := string(w.render(lacking(Lacks{Comment: true}, trees)).text()); strings.Contains(text, "comment") {
			t.Errorf("comments in\n%s", text)
		}
	}
}

func TestHooksOfLacks(t *testing.T) {
	full := Hooks()
	for _, test := range lackTests {
		for i, h := range test.lacks.Hooks() {
			want := full[i]
			if test.lacks.Comment {
				want.Rule.Comment = ""
			}
			if test.lacks.Conntrack {
				want.Rule.Matches = slices.DeleteFunc(slices.Clone(want.Rule.Matches), func(m ruleset.Match) bool {
					_, asks := m.(ruleset.Conntrack)
					return asks
				})
			}
			if got := h.Rule.String(); got != want.Rule.String() || h.From != want.From {
				t.Errorf("%s: got %s %s, want %s %s", test.name, h.From, got, want.From, want.Rule)
			}
		}
	}
}
