package iptables

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const watched = `*filter
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A KUBE-FORWARD -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A KUBE-SVC-A -j RETURN
-A KUBE-SVC-A -j ACCEPT
-A KUBE-SERVICES -j KUBE-SVC-A
COMMIT
`

// asOther runs a program as somebody else would.
func asOther(t *testing.T, program string, args ...string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, output)
	}
}

// TestWatch makes changes as the agent does and as others do, on the real kernel. A
// change of somebody else is the sign that all before it has been heard of.
func TestWatch(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, fam := range model.Families {
		t.Run(fam.String(), func(t *testing.T) {
			r, err := New(t.Context(), fam, NFT)
			if err != nil {
				t.Fatal(err)
			}
			program := map[model.Family]string{model.IPv4: "iptables-nft", model.IPv6: "ip6tables-nft"}[fam]
			other := map[model.Family]string{model.IPv4: "ip6tables-nft", model.IPv6: "iptables-nft"}[fam]
			edits := make(chan Edit, 100)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Watch(ctx, func(e Edit) { edits <- e }) }()
			expect := func(what, process string, chains ...string) {
				t.Helper()
				select {
				case e := <-edits:
					var got []string
					for _, c := range e.Chains {
						got = append(got, describe(c))
					}
					if e.Process != process || e.PID <= 0 || !slices.Equal(got, chains) {
						t.Errorf("%s: got %+v, want %s and %v", what, e, process, chains)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s was not noticed", what)
				}
			}
			if first := <-edits; !first.Missed {
				t.Errorf("the first edit is %+v, want one that says that nothing is known of what went before", first)
			}
			if err := r.Restore(t.Context(), []byte(watched)); err != nil {
				t.Fatal(err)
			}
			ensureJumps(t, r)
			if _, err := r.EnsureChain(t.Context(), ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-NEW"}); err != nil {
				t.Fatal(err)
			}
			asOther(t, program, "-t", "nat", "-D", "KUBE-SVC-A", "1")
			expect("the removal of one rule", program, "nat/KUBE-SVC-A +0 -1")
			asOther(t, program, "-t", "nat", "-I", "KUBE-SVC-A", "-j", "RETURN")
			expect("the insertion of one rule", program, "nat/KUBE-SVC-A +1 -0")
			asOther(t, program, "-t", "nat", "-R", "KUBE-SVC-A", "1", "-j", "ACCEPT")
			expect("the replacement of one rule", program, "nat/KUBE-SVC-A +1 -1")
			asOther(t, program, "-t", "nat", "-A", "KUBE-SVC-A", "-c", "5", "100", "-j", "RETURN")
			expect("one more rule, with counters", program, "nat/KUBE-SVC-A +1 -0")
			// These say nothing new and are not heard of.
			asOther(t, program, "-t", "nat", "-R", "KUBE-SVC-A", "1", "-j", "ACCEPT")
			asOther(t, program, "-t", "nat", "-Z", "KUBE-SVC-A")
			asOther(t, program, "-t", "nat", "-Z")
			expect("the zeroing of a table", program, "nat/PREROUTING +0 -0") // of its policy's counters
			asOther(t, program, "-t", "nat", "-F", "KUBE-SERVICES")
			expect("the flush of one chain", program, "nat/KUBE-SERVICES +0 -1")
			asOther(t, other, "-t", "nat", "-N", "OF-THE-OTHER-FAMILY")
			asOther(t, program, "-t", "nat", "-X", "KUBE-NEW")
			expect("the removal of a chain", program, "nat/KUBE-NEW +0 -0 gone")
			asOther(t, "nft", "flush", "chain", nftFamily(fam), "filter", "KUBE-FORWARD")
			expect("a change by nft itself", "nft", "filter/KUBE-FORWARD +0 -1")
			asOther(t, program, "-t", "nat", "-F")
			expect("the flush of a table", program, "nat/KUBE-SVC-A +0 -3", "nat/PREROUTING +0 -1")

			stop()
			if err := <-ended; err != nil {
				t.Errorf("Watch ended with %v", err)
			}
		})
	}
}

func nftFamily(fam model.Family) string {
	if fam == model.IPv6 {
		return "ip6"
	}
	return "ip"
}

// describe returns such as "nat/KUBE-SVC-A +1 -1 same".
func describe(c ChainEdit) string {
	text := fmt.Sprintf("%s +%d -%d", c.ChainID, c.Added, c.Removed)
	if c.Added > 0 && c.Balance == 0 {
		text += " same"
	}
	if c.Gone {
		text += " gone"
	}
	return text
}

// TestWatchTellsOfWhatItMissed reads slower than the kernel tells.
func TestWatchTellsOfWhatItMissed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	r, err := New(t.Context(), model.IPv4, NFT)
	if err != nil {
		t.Fatal(err)
	}
	r.notices = 4096
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	begun, more, missed := make(chan bool), make(chan bool), make(chan bool)
	ended := make(chan error, 1)
	go func() {
		told := 0
		ended <- r.Watch(ctx, func(e Edit) {
			if told++; told == 1 {
				begun <- true
				<-more // than fits
			} else if e.Missed {
				stop()
				close(missed)
			}
		})
	}()
	<-begun
	for range 100 {
		asOther(t, "iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "RETURN")
	}
	more <- true
	select {
	case <-missed:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was told")
	}
	if err := <-ended; err != nil {
		t.Errorf("Watch ended with %v", err)
	}
}

func TestLegacyHasNoWatch(t *testing.T) {
	if err := NewWith(model.IPv4, Legacy, Seams{}).Watch(t.Context(), nil); err != nil {
		t.Errorf("Watch on the legacy backend: %v", err)
	}
}
