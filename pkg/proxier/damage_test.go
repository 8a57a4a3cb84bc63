package proxier

import (
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// written are the chains that restore inputs declare.
func written(inputs []string) []string {
	var chains []string
	for _, input := range inputs {
		for line := range strings.Lines(input) {
			if name, isChain := strings.CutPrefix(line, ":"); isChain {
				name, _, _ = strings.Cut(name, " ")
				chains = append(chains, name)
			}
		}
	}
	return chains
}

func TestRepairWritesOnlyWhatWasDamaged(t *testing.T) {
	nat := func(name string) ruleset.ChainID { return ruleset.ChainID{Table: ruleset.NAT, Name: name} }
	tests := []struct {
		name   string
		edit   string
		damage Damage
		want   int // chains written
		outage bool
	}{
		{"a rule is removed from KUBE-SERVICES", "*nat\n-F KUBE-SERVICES\nCOMMIT\n", Damage{Chains: []ruleset.ChainID{nat("KUBE-SERVICES")}}, 1, true},
		{"KUBE-MARK-MASQ is emptied", "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n", Damage{Chains: []ruleset.ChainID{nat("KUBE-MARK-MASQ")}}, 1, true},
		{"a jump is removed", "*nat\n-F PREROUTING\nCOMMIT\n", Damage{Jumps: true}, 0, true},
		{"a foreign rule is added beside the jumps", "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", Damage{Jumps: true}, 0, false},
		{"nothing of ours", "*nat\n:OTHER - [0:0]\nCOMMIT\n", Damage{Chains: []ruleset.ChainID{nat("OTHER")}}, 0, false},
		{"one that nobody wrote", "*nat\n:KUBE-SVC-OTHER - [0:0]\nCOMMIT\n", Damage{Chains: []ruleset.ChainID{nat("KUBE-SVC-OTHER")}}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.fill(5)
			h.sync()
			h.takeInputs()
			want := h.ours()
			if err := h.kernel.Write(tt.edit); err != nil {
				t.Fatal(err)
			}
			tt.damage.By, tt.damage.At = "somebody", time.Now()
			h.proxier.Repair(tt.damage)
			if err := h.proxier.Sync(h.context()); err != nil {
				t.Fatal(err)
			}
			if h.last.Full {
				t.Error("everything was written")
			}
			if got := written(h.takeInputs()); len(got) != tt.want || len(h.last.Repaired) != tt.want {
				t.Errorf("wrote %v and reported %v, want %d chains", got, h.last.Repaired, tt.want)
			}
			if h.last.Outage != tt.outage {
				t.Errorf("outage: got %v, want %v", h.last.Outage, tt.outage)
			}
			for id := range want {
				if now, then := chainText(h.rules(), id), chainText(want, id); now != then {
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
	var lost []ruleset.ChainID
	for id := range h.ours() {
		if id.Table == ruleset.NAT {
			lost = append(lost, id)
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
