package proxier

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// nftView looks at the simulated kernel as one can at the nft backend. How often a chain
// was written stands for the handles that the kernel gives its rules.
type nftView struct {
	h       *host
	changes map[ruleset.ChainID]iptables.ChainState
}

func newNFTView(h *host) *nftView {
	return &nftView{h: h, changes: map[ruleset.ChainID]iptables.ChainState{}}
}

// Chain implements ChainReader.
func (v *nftView) Chain(_ context.Context, id ruleset.ChainID) (iptables.ChainState, error) {
	if state, changed := v.changes[id]; changed {
		return state, nil
	}
	chain := v.h.rules()[id]
	if chain == nil {
		return iptables.ChainState{}, nil
	}
	writes := 0
	for _, written := range declared(v.h.inputs) {
		if written == id.String() {
			writes++
		}
	}
	return iptables.ChainState{Exists: true, Rules: len(chain.Rules), InARow: true, Hash: chain.Hash() + uint64(writes)}, nil
}

func (v *nftView) set(id ruleset.ChainID, change func(*iptables.ChainState)) {
	state, _ := v.Chain(context.Background(), id)
	change(&state)
	v.changes[id] = state
}

// inspect is a look that must succeed.
func (v *nftView) inspect() Damage {
	v.h.t.Helper()
	found, _, err := v.h.proxier.InspectChains(v.h.context(), v)
	if err != nil {
		v.h.t.Fatal(err)
	}
	return found
}

func markMasqID() ruleset.ChainID {
	return ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-MARK-MASQ"}
}

func TestInspectChains(t *testing.T) {
	tests := []struct {
		name string
		// first says that nobody has looked at the chain since it was written.
		first  bool
		change func(*iptables.ChainState)
		want   Kind
	}{
		{"nothing, first look", true, func(*iptables.ChainState) {}, ""},
		{"nothing", false, func(*iptables.ChainState) {}, ""},
		{"gone", false, func(s *iptables.ChainState) { *s = iptables.ChainState{} }, Deleted},
		{"flushed", true, func(s *iptables.ChainState) { s.Rules, s.Hash = 0, 7 }, Flushed},
		{"a rule more", true, func(s *iptables.ChainState) { s.Rules, s.Hash = s.Rules+1, 7 }, Inserted},
		{"a rule in the place of another, made later", true, func(s *iptables.ChainState) { s.InARow, s.Hash = false, 7 }, Replaced},
		{"another rule with the same handle", false, func(s *iptables.ChainState) { s.Hash = 7 }, Replaced},
		{"a rule in the place of another", false, func(s *iptables.ChainState) { s.InARow, s.Hash = false, 7 }, Replaced},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.fill(5)
			h.sync()
			view := newNFTView(h)
			if !tt.first {
				if found := view.inspect(); !found.IsNone() {
					t.Fatalf("at first: %+v", found)
				}
			}
			id := markMasqID()
			view.set(id, tt.change)
			found := view.inspect()
			if tt.want == "" {
				if !found.IsNone() {
					t.Errorf("found %+v", found)
				}
				return
			}
			last, _ := h.proxier.ledger.last(id)
			if edit, ok := found.Chains[id]; !ok || len(found.Chains) != 1 || edit.kind(last.rules) != tt.want {
				t.Errorf("found %+v, want one chain %s", found, tt.want)
			}
			// What is written anew is looked at anew.
			h.proxier.Repair(found)
			h.sync()
			delete(view.changes, id)
			if found := view.inspect(); !found.IsNone() {
				t.Errorf("after the repair: %+v", found)
			}
		})
	}
}

// A renamed chain takes the rules that lead to it along, and no notice says so: those that
// nobody had looked at are written again with it, and no others.
func TestInspectChainsDoubtsWhatLedToARenamedChain(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	view := newNFTView(h)
	var sep ruleset.ChainID
	for id := range h.ours() {
		if strings.HasPrefix(id.Name, "KUBE-SEP-") {
			sep = id
		}
	}
	leadsTo := func(name string) (ids []ruleset.ChainID) {
		for id, chain := range h.rules() {
			if slices.ContainsFunc(chain.Rules, func(r ruleset.Rule) bool { return r.Target() == name }) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	before := leadsTo(sep.Name)
	if len(before) != 1 {
		t.Fatalf("%v lead to %s, want one", before, sep)
	}
	view.set(sep, func(s *iptables.ChainState) { *s = iptables.ChainState{} })
	found := view.inspect()
	for _, id := range []ruleset.ChainID{sep, before[0]} {
		if _, doubted := found.Chains[id]; !doubted {
			t.Errorf("%s is taken to be as it was", id)
		}
	}
	h.proxier.Repair(found)
	written := len(h.inputs)
	h.sync()
	if written := declared(h.inputs[written:]); !slices.Contains(written, before[0].String()) {
		t.Errorf("%s was not written again, but %v", before[0], written)
	}
	clear(view.changes)
	if found := view.inspect(); !found.IsNone() {
		t.Errorf("after the repair: %+v", found)
	}
	view.set(sep, func(s *iptables.ChainState) { *s = iptables.ChainState{} })
	if found := view.inspect(); len(found.Chains) != 1 {
		t.Errorf("found %v, want only what is gone: the others have been seen before", found.Chains)
	}
}

// A kernel that does not number rules as those that were tried must not have the agent
// repair all of them for ever.
func TestScatteredRulesCanBeNormal(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	view := newNFTView(h)
	for id := range h.ours() {
		view.set(id, func(s *iptables.ChainState) { s.InARow = false })
	}
	if found := view.inspect(); !found.IsNone() {
		t.Errorf("found %+v", found)
	}
}

func TestInspectTable(t *testing.T) {
	tests := []struct {
		name  string
		edit  string
		want  Kind
		jumps bool
	}{
		{"nothing", "*nat", "", false},
		{"a foreign chain", "*nat\n:OTHER - [0:0]\n-A OTHER -j RETURN\n-A PREROUTING -j OTHER", "", false},
		{"flushed", "*nat\n-F KUBE-MARK-MASQ", Flushed, false},
		{"a rule more", "*nat\n-A KUBE-MARK-MASQ -j RETURN", Inserted, false},
		{"another rule", "*nat\n-F KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ -j RETURN", Replaced, false},
		{"a jump is lost", "*nat\n-F PREROUTING", "", true},
		{"a jump is lost in table filter", "*filter\n-F FORWARD", "", true},
		{"a jump is out of reach", "*nat\n-I PREROUTING 1 -j ACCEPT", "", true},
	}
	kernels := map[string]render.Lacks{
		"":                       {},
		" without xt_comment":    {Comment: true},
		" without xt_conntrack":  {Conntrack: true},
		" without both of these": {Comment: true, Conntrack: true},
	}
	for _, tt := range tests {
		for without, lacks := range kernels {
			t.Run(tt.name+without, func(t *testing.T) {
				h := newHost(t)
				h.options = h.options.Without(lacks, nil)
				h.fill(5)
				h.sync()
				if found := h.inspectTables(); !found.IsNone() {
					t.Fatalf("at first: %+v", found)
				}
				h.write(tt.edit + "\nCOMMIT\n")
				found := h.inspectTables()
				if found.Jumps != tt.jumps {
					t.Errorf("jumps damaged: %t, want %t", found.Jumps, tt.jumps)
				}
				kinds := map[ruleset.ChainID]Kind{}
				for id, edit := range found.Chains {
					last, _ := h.proxier.ledger.last(id)
					kinds[id] = edit.kind(last.rules)
				}
				want := map[ruleset.ChainID]Kind{}
				if tt.want != "" {
					want[markMasqID()] = tt.want
				}
				if !maps.Equal(kinds, want) {
					t.Errorf("found %v, want %v", kinds, want)
				}
				h.proxier.Repair(found)
				if err := h.proxier.Sync(h.context()); err != nil {
					t.Fatal(err)
				}
				if found := h.inspectTables(); !found.IsNone() {
					t.Errorf("after the repair: %+v", found)
				}
			})
		}
	}
}

// inspectTables is a look at both tables that must succeed.
func (h *host) inspectTables() Damage {
	h.t.Helper()
	var sum Damage
	for _, table := range render.Tables() {
		found, err := h.proxier.InspectTable(h.context(), h.runner, table)
		if err != nil {
			h.t.Fatal(err)
		}
		sum.Add(found)
	}
	return sum
}

func TestInspectTableFindsWhatIsGone(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	h.kernel.Flush(ruleset.NAT)
	found, err := h.proxier.InspectTable(h.context(), h.runner, ruleset.NAT)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(h.proxier.ledger.chains[ruleset.NAT]); len(found.Chains) != want || !found.Jumps {
		t.Errorf("found %d chains of %d and jumps %t", len(found.Chains), want, found.Jumps)
	}
}

// writingReader has a sync write while the table is read.
type writingReader struct {
	*iptables.Runner
	meanwhile func()
}

func (r writingReader) ReadChains(ctx context.Context, table ruleset.Table, wanted func(ruleset.ChainID) bool, each func(iptables.SavedChain) error) error {
	r.meanwhile()
	return r.Runner.ReadChains(ctx, table, wanted, each)
}

func TestInspectionOfWhatIsBeingWrittenIsNone(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	_, err := h.proxier.InspectTable(h.context(), writingReader{h.runner, func() {
		h.fill(6)
		h.sync()
	}}, ruleset.NAT)
	if !errors.Is(err, ErrUnsettled) {
		t.Errorf("a sync wrote meanwhile: got %v", err)
	}
	h.proxier.ForceFull("a test")
	view := newNFTView(h)
	if _, _, err := h.proxier.InspectChains(h.context(), view); !errors.Is(err, ErrUnsettled) {
		t.Errorf("everything is about to be written: got %v", err)
	}
	if _, _, settled := h.proxier.Written(ruleset.NAT); settled {
		t.Error("everything is about to be written, and what is written is known")
	}
}

// Written counts as the legacy backend does: what the kernel holds beside it must not
// change with anything that the agent writes.
func TestWrittenIsWhatTheKernelCounts(t *testing.T) {
	h := newHost(t)
	rest := func() int {
		t.Helper()
		ours, _, settled := h.proxier.Written(ruleset.NAT)
		if !settled {
			t.Fatal("not settled")
		}
		entries := 0
		for id, chain := range h.rules() {
			if id.Table == ruleset.NAT && !id.IsBuiltin() {
				entries += 2 + len(chain.Rules)
			}
		}
		return entries - ours
	}
	h.fill(3)
	h.sync()
	want := rest()
	h.fill(7)
	h.sync()
	if got := rest(); got != want {
		t.Errorf("%d entries are not the agent's, and %d were before it wrote more", got, want)
	}
	h.write("*nat\n-A KUBE-MARK-MASQ -j RETURN\nCOMMIT\n")
	if got := rest(); got != want+1 {
		t.Errorf("%d entries are not the agent's, want one more than %d", got, want)
	}
}
