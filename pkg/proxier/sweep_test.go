package proxier

import (
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// What came from a former agent or a kube-proxy goes, what is somebody else's stays.
func TestSweep(t *testing.T) {
	h := newHost(t)
	const foreign = `*nat
:DOCKER - [0:0]
:KUBE-HP-ABCDEFGHIJKLMNOP - [0:0]
:KUBE-MARK-DROP - [0:0]
-A DOCKER -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A PREROUTING -j DOCKER
COMMIT
*filter
:KUBE-SEP-NOTOURSINFILTER - [0:0]
:cali-FORWARD - [0:0]
-A FORWARD -j cali-FORWARD
COMMIT
`
	h.write(foreign)
	before := h.rules()
	h.write(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SVL-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-EXT-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-FW-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SVC-10.96.0.0/20 - [0:0]
-A KUBE-FW-AAAAAAAAAAAAAAAA -j KUBE-XLB-AAAAAAAAAAAAAAAA
-A KUBE-XLB-AAAAAAAAAAAAAAAA -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-EXT-AAAAAAAAAAAAAAAA -j KUBE-SVL-AAAAAAAAAAAAAAAA
-A KUBE-SVL-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -j KUBE-MARK-MASQ
-A KUBE-SVC-10.96.0.0/20 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d 10.96.0.99/32 -j KUBE-SVC-10.96.0.0/20
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-SVC-S10.96.0.0/20 - [0:0]
-A KUBE-SVC-S10.96.0.0/20 -j DROP
-A KUBE-SERVICES -d 10.96.0.0/20 -j KUBE-SVC-S10.96.0.0/20
COMMIT
`)
	h.proxier.settings.Chunk = 2
	h.fill(3)
	h.sync()
	after := h.rules()
	for id, chain := range before {
		for _, rule := range chain.Rules {
			if after[id] == nil || !slices.ContainsFunc(after[id].Rules, func(r ruleset.Rule) bool { return r.String() == rule.String() }) {
				t.Errorf("the foreign rule %s in %s is gone", rule, id)
			}
		}
		if after[id] == nil {
			t.Errorf("the foreign chain %s is gone", id)
		}
	}
	if h.holds("AAAAAAAA") || h.holds("/20") {
		t.Errorf("stale chains are left:\n%s", h.kernel.Save())
	}
}

// A stale chain that somebody else uses cannot be removed, and does not keep the
// agent from its work, nor from removing the others.
func TestSweepOfChainInUse(t *testing.T) {
	h := newHost(t)
	h.write(`*nat
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
:KUBE-SEP-CCCCCCCCCCCCCCCC - [0:0]
:DOCKER - [0:0]
-A DOCKER -j KUBE-SEP-AAAAAAAAAAAAAAAA
COMMIT
`)
	h.fill(1)
	if err := h.proxier.Sync(h.context()); err != nil {
		t.Fatal(err)
	}
	if !h.holds("-A DOCKER -j KUBE-SEP-AAAAAAAAAAAAAAAA") || !h.holds("s0:http cluster IP") ||
		h.holds("KUBE-SEP-BBBBBBBBBBBBBBBB") || h.holds("KUBE-SEP-CCCCCCCCCCCCCCCC") {
		t.Errorf("rules:\n%s", h.kernel.Save())
	}
}

// What a lock that is held has kept from being removed is removed later, and nothing else
// is written again for that.
func TestSweepIsRepeated(t *testing.T) {
	h := newHost(t)
	const stale = "KUBE-SEP-AAAAAAAAAAAAAAAA"
	h.write("*nat\n:" + stale + " - [0:0]\nCOMMIT\n")
	h.fill(1)
	times := 3
	h.afterRestore = func() {
		if times > 0 && strings.HasPrefix(h.inputs[len(h.inputs)-1], "*nat\n:"+stale+" - [0:0]\nCOMMIT") {
			times--
			h.kernel.FailNext(4, lockHeld) // the removal, which follows
		}
	}
	for times > 0 {
		if h.mustSync(); !h.holds(stale) {
			t.Fatal("the chain is gone, although the lock was held")
		}
	}
	h.takeInputs()
	h.sync()
	if h.holds(stale) || h.last.Full {
		t.Errorf("the chain is left, or everything was written for it (%v):\n%s", h.last.Full, h.kernel.Save())
	}
	for _, input := range h.takeInputs() {
		if strings.Contains(input, "-A ") {
			t.Errorf("rules were written:\n%s", input)
		}
	}
	if h.sync(); len(h.takeInputs()) > 0 {
		t.Error("there is still something to be removed")
	}
}
