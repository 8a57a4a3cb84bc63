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

// What a lock that is held has kept from being removed is removed by the next sync.
func TestSweepIsRepeated(t *testing.T) {
	h := newHost(t)
	h.write(`*nat
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
COMMIT
`)
	h.fill(1)
	h.afterRestore = func() {
		if strings.Contains(h.inputs[len(h.inputs)-1], ":KUBE-SEP-AAAAAAAAAAAAAAAA") {
			h.afterRestore = nil
			h.kernel.FailNext(4, lockHeld) // the removal, once the chain is empty
		}
	}
	if err := h.proxier.Sync(h.context()); err == nil || !h.holds("KUBE-SEP-AAAAAAAAAAAAAAAA") {
		t.Fatalf("the sync returned %v; want that the chain could not be removed:\n%s", err, h.kernel.Save())
	}
	h.sync()
	if h.holds("KUBE-SEP-AAAAAAAAAAAAAAAA") {
		t.Errorf("the chain is left:\n%s", h.kernel.Save())
	}
}
