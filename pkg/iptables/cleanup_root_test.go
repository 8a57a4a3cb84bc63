package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ownsKube takes all chains of kube-proxy's names for ours, but not kubelet's.
func ownsKube(id ruleset.ChainID) bool {
	return strings.HasPrefix(id.Name, "KUBE-") && id.Name != "KUBE-FIREWALL"
}

// saveAll returns the tables as text, without the lines that differ in any case.
func saveAll(t *testing.T, r *Runner) string {
	t.Helper()
	var b strings.Builder
	for _, table := range []ruleset.Table{ruleset.Mangle, ruleset.NAT, ruleset.Filter} {
		saved, err := r.Save(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(saved)) {
			if line[0] != '#' {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// foreign is what must outlive a cleanup.
const foreign = `*mangle
:FOREIGN - [0:0]
-A PREROUTING -j FOREIGN
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [0:0]
:KUBE-FIREWALL - [0:0]
:MYKUBE-CHAIN - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "not for KUBE-SERVICES" -j MYKUBE-CHAIN
-A KUBE-FIREWALL -j DROP
COMMIT
`

const populated = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -j KUBE-SVC-A
-A KUBE-SVC-A -j KUBE-SEP-A
-A KUBE-SEP-A -j KUBE-MARK-MASQ
-A PREROUTING -j KUBE-SERVICES
-I OUTPUT -m comment --comment "an old one" -j KUBE-SERVICES
-A OUTPUT -g KUBE-SERVICES
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
-I FORWARD -j KUBE-SERVICES
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -j ACCEPT
COMMIT
`

func TestCleanupOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		if r.Backend() == Legacy {
			needLegacyTables(t)
		}
		// On a clean host nothing is made.
		if err := r.Cleanup(t.Context(), ownsKube); err != nil {
			t.Errorf("clean host: %v", err)
		}
		for _, table := range []ruleset.Table{ruleset.Mangle, ruleset.NAT, ruleset.Filter} {
			if names, err := r.ChainNames(t.Context(), table); err != nil || len(names) > 0 {
				t.Errorf("cleanup of a clean host made %v: %v, %v", table, names, err)
			}
		}

		restore(t, r, foreign)
		before := saveAll(t, r)
		restore(t, r, populated)
		for range 2 {
			if err := r.Cleanup(t.Context(), ownsKube); err != nil {
				t.Errorf("Cleanup: %v", err)
			}
			if got := saveAll(t, r); got != before {
				t.Errorf("got\n%s\nwant what was before:\n%s", got, before)
			}
		}
	})
}

// B-57: a chain that somebody else refers to is left empty and named.
func TestCleanupOfChainsInUse(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		restore(t, r, populated)
		restore(t, r, "*nat\n:CNI-HOSTPORT - [0:0]\n-A CNI-HOSTPORT -j KUBE-MARK-MASQ\n-A CNI-HOSTPORT -j KUBE-SEP-A\nCOMMIT\n")
		restore(t, r, "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n")
		for range 2 {
			inUse, ok := errors.AsType[*InUseError](r.Cleanup(t.Context(), ownsKube))
			if !ok {
				t.Fatal("want an InUseError")
			}
			want := []ruleset.ChainID{{Table: ruleset.NAT, Name: "KUBE-MARK-MASQ"}, {Table: ruleset.NAT, Name: "KUBE-SEP-A"}}
			if !slices.Equal(inUse.Chains, want) {
				t.Errorf("in use: got %v, want %v", inUse.Chains, want)
			}
			names, err := r.ChainNames(t.Context(), ruleset.NAT)
			if err != nil {
				t.Fatal(err)
			}
			names = slices.DeleteFunc(names, func(name string) bool { return !ownsKube(ruleset.ChainID{Table: ruleset.NAT, Name: name}) })
			if !slices.Equal(names, []string{"KUBE-MARK-MASQ", "KUBE-SEP-A"}) {
				t.Errorf("left: %v", names)
			}
			for _, id := range want {
				wantRules(t, r, id)
			}
			wantRules(t, r, ruleset.ChainID{Table: ruleset.NAT, Name: "CNI-HOSTPORT"}, "-j KUBE-MARK-MASQ", "-j KUBE-SEP-A")
		}
	})
}

// More chains than go into one transaction, one of them in use.
func TestCleanupInChunks(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const chains = 2*nftChunk + 1
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			r, err := New(t.Context(), model.IPv4, backend)
			if err != nil {
				t.Fatal(err)
			}
			// In pieces, since the kernel takes no long message from a user namespace.
			for piece := range slices.Chunk(numbers(chains), 200) {
				var declared, rules strings.Builder
				for _, i := range piece {
					fmt.Fprintf(&declared, ":KUBE-%05d - [0:0]\n", i)
					if i > 0 {
						fmt.Fprintf(&rules, "-A KUBE-%05d -j KUBE-%05d\n", i, i-1)
					}
				}
				restore(t, r, "*nat\n"+declared.String()+rules.String()+"COMMIT\n")
			}
			restore(t, r, "*nat\n:FOREIGN - [0:0]\n-A FOREIGN -j KUBE-01234\nCOMMIT\n")
			inUse, ok := errors.AsType[*InUseError](r.Cleanup(t.Context(), ownsKube))
			if want := []ruleset.ChainID{{Table: ruleset.NAT, Name: "KUBE-01234"}}; !ok || !slices.Equal(inUse.Chains, want) {
				t.Fatalf("in use: got %v, want %v", inUse, want)
			}
		})
	}
}

// numbers are the numbers from 0 to n-1.
func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
