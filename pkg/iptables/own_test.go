package iptables

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func natIDs(names ...string) []ruleset.ChainID {
	var ids []ruleset.ChainID
	for _, name := range names {
		ids = append(ids, ruleset.ChainID{Table: ruleset.NAT, Name: name})
	}
	return ids
}

func natEdits(names ...string) []ChainEdit {
	var edits []ChainEdit
	for _, id := range natIDs(names...) {
		edits = append(edits, ChainEdit{ChainID: id})
	}
	return edits
}

func TestOwnWrites(t *testing.T) {
	const input = "*filter\n:F - [0:0]\nCOMMIT\n*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\nCOMMIT\n"
	const process = "iptables-nft-re"
	tests := []struct {
		name string
		edit Edit
		want bool
	}{
		{"all of one table", Edit{Process: process, Chains: natEdits("A", "B")}, true},
		{"a part of it", Edit{Process: process, Chains: natEdits("B")}, true},
		{"more than it", Edit{Process: process, Chains: natEdits("A", "C")}, false},
		{"both tables at once", Edit{Process: process, Chains: append(natEdits("A"), ChainEdit{ChainID: ruleset.ChainID{Table: ruleset.Filter, Name: "F"}})}, false},
		{"another table", Edit{Process: process, Chains: []ChainEdit{{ChainID: ruleset.ChainID{Table: ruleset.Filter, Name: "A"}}}}, false},
		{"another program", Edit{Process: "nft", Chains: natEdits("A")}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, when := range []string{"while it runs", "just after its end", "later"} {
					var own ownWrites
					end := own.begin("/usr/sbin/iptables-nft-restore", touchedBy([]byte(input)))
					time.Sleep(time.Hour)
					if when != "while it runs" {
						end(true)
					}
					if when == "later" {
						time.Sleep(keepOwn)
					}
					if got, want := own.isOurs(tt.edit), tt.want && when != "later"; got != want {
						t.Errorf("%s: ours = %v, want %v", when, got, want)
					}
					if own.isOurs(tt.edit) {
						t.Errorf("%s: the second one is ours too", when)
					}
					if when == "later" && len(own.writes) > 0 {
						t.Errorf("%d writes are still remembered", len(own.writes))
					}
				}
			})
		})
	}
}

// statusError is the failure of a program.
type statusError int

func (e statusError) Error() string   { return fmt.Sprintf("exit status %d", int(e)) }
func (e statusError) ExitStatus() int { return int(e) }

// oneWrite has NewChain and Insert end in one way.
type oneWrite struct {
	Chains
	err error
}

func (c oneWrite) NewChain(string, string) error               { return c.err }
func (c oneWrite) Insert(string, string, int, ...string) error { return c.err }

// TestFailedWriteHidesNothing: the chain that the agent asked for and that was there
// already may be changed by somebody else at once.
func TestFailedWriteHidesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"written", nil, true},
		{"refused", statusError(1), false},
		{"killed", errors.New("signal: killed"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for verb, do := range map[string]func(notedChains) error{
				"NewChain": func(c notedChains) error { return c.NewChain("nat", "A") },
				"Insert":   func(c notedChains) error { return c.Insert("nat", "A", 1, "-j", "B") },
			} {
				var own ownWrites
				if err := do(notedChains{Chains: oneWrite{err: tt.err}, own: &own, program: "/usr/sbin/iptables-nft"}); !errors.Is(err, tt.err) {
					t.Fatal(err)
				}
				if got := own.isOurs(Edit{Process: "iptables-nft", Chains: natEdits("A")}); got != tt.want {
					t.Errorf("%s: ours = %v, want %v", verb, got, tt.want)
				}
			}
		})
	}
}

func TestTouchedBy(t *testing.T) {
	const input = "# a comment\n*filter\n:F - [0:0]\n-A F -j ACCEPT\n-X F\nCOMMIT\n\n*nat\n:N - [0:0]\n-I PREROUTING 1 -j N\n-D OUTPUT -j N\nCOMMIT\n"
	want := map[ruleset.ChainID]bool{{Table: ruleset.Filter, Name: "F"}: true}
	for _, id := range natIDs("N", "PREROUTING", "OUTPUT") {
		want[id] = true
	}
	if got := touchedBy([]byte(input)); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
