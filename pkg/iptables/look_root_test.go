package iptables

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const looked = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-EMPTY - [0:0]
-A KUBE-SVC-A -m comment --comment "one -> two" -m statistic --mode random --probability 0.50000000000 -j RETURN
-A KUBE-SVC-A -m mark --mark 0x1/0x1 -j KUBE-SVC-EMPTY
-A KUBE-SVC-A -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -p tcp -m tcp --dport 80 -j KUBE-SVC-A
COMMIT
`

// runnerIn returns a Runner of the real kernel that has written what is looked at.
func runnerIn(t *testing.T, fam model.Family, backend Backend) *Runner {
	t.Helper()
	r, err := New(t.Context(), fam, backend)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Restore(t.Context(), []byte(looked)); err != nil {
		t.Fatal(err)
	}
	return r
}

// edits are what somebody else can do to one chain, as arguments of iptables.
var edits = []struct {
	name string
	args string
	// silent says that a legacy table's fingerprint does not move.
	silent bool
}{
	{"append a rule", "-A KUBE-SVC-A -j RETURN", false},
	{"insert a rule", "-I KUBE-SVC-A -j RETURN", false},
	{"delete a rule", "-D KUBE-SVC-A 1", false},
	{"replace a rule by one of the same size", "-R KUBE-SVC-A 2 -m mark --mark 0x1/0x1 -j RETURN", true},
	{"flush the chain", "-F KUBE-SVC-A", false},
}

func TestNFTLook(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, fam := range model.Families {
		r := runnerIn(t, fam, NFT)
		look, err := r.LookNFT()
		if err != nil {
			t.Fatal(err)
		}
		defer look.Close()
		state := func(table ruleset.Table, name string) ChainState {
			t.Helper()
			got, err := look.Chain(t.Context(), ruleset.ChainID{Table: table, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		generation := func() uint32 {
			t.Helper()
			got, err := look.Generation()
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := state(ruleset.NAT, "KUBE-SVC-EMPTY"); !got.Exists || got.Rules > 0 {
			t.Errorf("%v, an empty chain: got %+v", fam, got)
		}
		if got := state(ruleset.NAT, "KUBE-SVC-NONE"); got.Exists {
			t.Errorf("%v, a chain that does not exist: got %+v", fam, got)
		}
		if got := state("none", "none"); got.Exists {
			t.Errorf("%v, a table that does not exist: got %+v", fam, got)
		}
		asOther(t, "ip", "link", "set", "lo", "up")
		asOther(t, r.seams.Tables, "-t", "nat", "-A", "OUTPUT", "-j", "KUBE-SVC-A")
		for _, edit := range edits {
			if err := r.Restore(t.Context(), []byte(looked)); err != nil {
				t.Fatal(err)
			}
			before, then := state(ruleset.NAT, "KUBE-SVC-A"), generation()
			if before.Rules != 3 || !before.InARow {
				t.Errorf("%v: one transaction wrote %+v, want three rules in a row", fam, before)
			}
			sendPacket(t, fam)
			if look, err = r.LookNFT(); err != nil {
				t.Fatal(err)
			}
			defer look.Close()
			if again := state(ruleset.NAT, "KUBE-SVC-A"); again != before || generation() != then {
				t.Errorf("%v: by a packet and another look %+v became %+v", fam, before, again)
			}
			asOther(t, r.seams.Tables, append([]string{"-t", "nat"}, strings.Fields(edit.args)...)...)
			if after := state(ruleset.NAT, "KUBE-SVC-A"); after.Hash == before.Hash {
				t.Errorf("%v, %s: still %+v", fam, edit.name, after)
			}
			if generation() == then {
				t.Errorf("%v, %s: the generation did not move", fam, edit.name)
			}
		}
	}
}

// sendPacket makes the counters of the rules move.
func sendPacket(t *testing.T, fam model.Family) {
	t.Helper()
	conn, err := net.Dial("udp", map[model.Family]string{model.IPv4: "127.0.0.1:9", model.IPv6: "[::1]:9"}[fam])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestFingerprint(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, fam := range model.Families {
		r := runnerIn(t, fam, Legacy)
		read := func() Fingerprint {
			t.Helper()
			got, err := r.Fingerprint(ruleset.NAT)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		for _, edit := range edits {
			if err := r.Restore(t.Context(), []byte(looked)); err != nil {
				t.Fatal(err)
			}
			before := read()
			if again := read(); again != before {
				t.Errorf("%v: the fingerprint moved by itself, from %+v to %+v", fam, before, again)
			}
			asOther(t, r.seams.Tables, append([]string{"-w", "-t", "nat"}, strings.Fields(edit.args)...)...)
			if moved := read() != before; moved == edit.silent {
				t.Errorf("%v, %s: the fingerprint moved: %t", fam, edit.name, moved)
			}
		}
	}
}

// TestReadChains reads what was written, on both backends, and finds it the same.
func TestReadChains(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	want, err := ruleset.Decode([]byte(looked))
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range backends {
		for _, fam := range model.Families {
			r := runnerIn(t, fam, backend)
			asOther(t, r.seams.Tables, "-t", "nat", "-N", "OTHER")
			if r.seams.Stream == nil {
				t.Errorf("%s %v: a table of any size is kept as text", backend, fam)
			}
			for _, piped := range []bool{true, false} {
				if !piped {
					r.seams.Stream = nil
				}
				got := ruleset.Ruleset{}
				ours := func(id ruleset.ChainID) bool { return want[id] != nil }
				err := r.ReadChains(t.Context(), ruleset.NAT, ours, func(saved SavedChain) error {
					c := saved.Decode()
					if saved.Rules != len(c.Rules) {
						t.Errorf("%s %v: %d rules are counted of %+v", backend, fam, saved.Rules, c)
					}
					if !saved.Says(want[c.ChainID].Hash()) || saved.Says(1) {
						t.Errorf("%s %v: %+v is not known by its hash", backend, fam, c)
					}
					if got[c.ChainID] != nil {
						t.Errorf("%s %v: chain %s comes twice", backend, fam, c.ChainID)
					}
					got[c.ChainID] = &c
					return nil
				})
				if err != nil || len(got) != len(want) {
					t.Errorf("%s %v: got %d chains, %v; want %d", backend, fam, len(got), err, len(want))
				}
				for id, chain := range want {
					if got[id] == nil || got[id].Hash() != chain.Hash() {
						t.Errorf("%s %v: got %+v, want %+v", backend, fam, got[id], chain)
					}
				}
			}
		}
	}
}

func TestReadChainsReportsFailure(t *testing.T) {
	r := NewWith(model.IPv4, Legacy, Seams{Run: run, Stream: stream, Save: "false"})
	none := func(SavedChain) error { return nil }
	if err := r.ReadChains(t.Context(), ruleset.NAT, func(ruleset.ChainID) bool { return true }, none); err == nil {
		t.Error("a program that failed was taken for an empty table")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.ReadChains(ctx, ruleset.NAT, func(ruleset.ChainID) bool { return true }, none); err == nil {
		t.Error("a program that was not run was taken for an empty table")
	}
}
