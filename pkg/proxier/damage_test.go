package proxier

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func TestRepairWritesOnlyWhatWasDamaged(t *testing.T) {
	nat := func(name string, edit Edit) Damage {
		return Damage{Chains: map[ruleset.ChainID]Edit{{Table: ruleset.NAT, Name: name}: edit}}
	}
	tests := []struct {
		name   string
		edit   string
		damage Damage
		want   Kind // of the one chain that is written, if any
		jumps  bool // those in PREROUTING are put back
		outage bool
	}{
		{"KUBE-SERVICES is flushed", "*nat\n-F KUBE-SERVICES\nCOMMIT\n", nat("KUBE-SERVICES", Edit{Removed: 6}), Flushed, false, true},
		{"KUBE-MARK-MASQ is flushed, nobody knows how", "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n", nat("KUBE-MARK-MASQ", Edit{}), Changed, false, true},
		{"a rule is added", "*nat\n-A KUBE-MARK-MASQ -j ACCEPT\nCOMMIT\n", nat("KUBE-MARK-MASQ", Edit{Added: 1}), Inserted, false, true},
		{"a jump is removed", "*nat\n-F PREROUTING\nCOMMIT\n", Damage{Jumps: true}, "", true, true},
		{"a final rule is put before a jump", "*nat\n-I PREROUTING -j ACCEPT\nCOMMIT\n", Damage{Jumps: true}, "", true, true},
		{"a jump is there twice", "*nat\n-A PREROUTING " + render.Hooks()[0].Rule.String() + "\nCOMMIT\n", Damage{Jumps: true}, "", true, false},
		{"a foreign rule is added beside the jumps", "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", Damage{Jumps: true}, "", false, false},
		{"nothing of ours", "*nat\n:OTHER - [0:0]\nCOMMIT\n", nat("OTHER", Edit{Added: 1}), "", false, false},
		{"one that nobody wrote", "*nat\n:KUBE-SVC-OTHER - [0:0]\nCOMMIT\n", nat("KUBE-SVC-OTHER", Edit{Added: 1}), "", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.fill(5)
			h.sync()
			h.takeInputs()
			before := h.ours()
			if err := h.kernel.Write(tt.edit); err != nil {
				t.Fatal(err)
			}
			tt.damage.By, tt.damage.At = "somebody", time.Now()
			h.proxier.Repair(tt.damage)
			var log strings.Builder
			if err := h.proxier.Sync(logTo(h.t.Context(), &log)); err != nil {
				t.Fatal(err)
			}
			if h.last.Full {
				t.Error("everything was written")
			}
			repaired := tt.want != "" || tt.jumps
			if said := strings.Contains(log.String(), `by="somebody"`); said != repaired {
				t.Errorf("the log says who did it: %v, want %v:\n%s", said, repaired, &log)
			}
			if touched := h.last.Trigger == Touched; touched != repaired {
				t.Errorf("the sync is because of %q", h.last.Trigger)
			}
			if put := slices.Equal(h.last.JumpsRepaired, []ruleset.ChainID{render.Hooks()[0].From}); put != tt.jumps {
				t.Errorf("jump rules repaired in %v, want %v", h.last.JumpsRepaired, tt.jumps)
			}
			var want []Repair
			for id := range tt.damage.Chains {
				if tt.want != "" {
					want = append(want, Repair{id, tt.want})
				}
			}
			if got := declared(h.takeInputs()); len(got) != len(want) || !slices.Equal(h.last.Repaired, want) {
				t.Errorf("wrote %v and reported %v, want %v", got, h.last.Repaired, want)
			}
			if h.last.Outage != tt.outage {
				t.Errorf("outage: got %v, want %v", h.last.Outage, tt.outage)
			}
			for id := range before {
				if now, then := chainText(h.rules(), id), chainText(before, id); now != then {
					t.Errorf("%s says\n%swant\n%s", id, now, then)
				}
			}
			for _, hook := range render.Hooks() {
				if !strings.Contains(chainText(h.rules(), hook.From), hook.Rule.String()) {
					t.Errorf("%s has lost its jump %s", hook.From, hook.Rule)
				}
			}
		})
	}
}

// Everything is gone, and it is known: nothing is written that was not lost.
func TestRepairAfterAFlush(t *testing.T) {
	h := newHost(t)
	h.fill(5)
	h.sync()
	lost := map[ruleset.ChainID]Edit{}
	for id := range h.ours() {
		if id.Table == ruleset.NAT {
			lost[id] = Edit{Gone: true}
		}
	}
	h.kernel.Flush(ruleset.NAT)
	h.takeInputs()
	h.proxier.Repair(Damage{Chains: lost, Jumps: true, By: "somebody", At: time.Now()})
	if err := h.proxier.Sync(h.context()); err != nil {
		t.Fatal(err)
	}
	if h.last.Full {
		t.Error("everything was written")
	}
	for _, input := range h.takeInputs() {
		if strings.Contains(input, "*filter") {
			t.Errorf("the filter table was not damaged, and was written:\n%s", input)
		}
	}
	h.mustEqualFresh()
}

func TestEditKind(t *testing.T) {
	tests := []struct {
		name  string
		edits []Edit // of a chain with three rules
		want  Kind
	}{
		{"flushed", []Edit{{Removed: 3, Balance: 7}}, Flushed},
		{"flushed rule by rule", []Edit{{Removed: 1}, {Removed: 2}}, Flushed},
		{"one rule removed", []Edit{{Removed: 1}}, Removed},
		{"two rules inserted", []Edit{{Added: 1}, {Added: 1}}, Inserted},
		{"replaced at once", []Edit{{Added: 1, Removed: 1, Balance: 5}}, Replaced},
		{"moved in two steps", []Edit{{Removed: 1, Balance: ^uint64(8)}, {Added: 1, Balance: 9}}, Reordered},
		{"one removed and another added", []Edit{{Removed: 1, Balance: ^uint64(8)}, {Added: 1, Balance: 8}}, Replaced},
		{"two removed and one added", []Edit{{Removed: 2}, {Added: 1}}, Changed},
		{"flushed and deleted", []Edit{{Removed: 3}, {Gone: true}}, Deleted},
		{"deleted and made again", []Edit{{Removed: 3, Gone: true}, {Added: 3}}, Deleted},
		{"not known", []Edit{{}}, Changed},
		{"as many rules in a later look", []Edit{editOf(3, 3)}, Replaced},
		{"fewer", []Edit{editOf(3, 2)}, Removed},
		{"none", []Edit{editOf(3, 0)}, Flushed},
		{"more", []Edit{editOf(3, 4)}, Inserted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sum Edit
			for _, edit := range tt.edits {
				sum = sum.and(edit)
			}
			if got := sum.kind(3); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
