package iptables

import (
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// realRunner returns a Runner on the real kernel.
func realRunner(t *testing.T, fam model.Family, backend Backend) *Runner {
	t.Helper()
	r, err := New(t.Context(), fam, backend)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantDetected checks the choice, and that looking made no table.
func wantDetected(t *testing.T, want Backend, reason string) {
	t.Helper()
	before := tablesThere(t)
	got, err := Detect(t.Context(), "")
	if err != nil || got.Backend != want || !strings.Contains(got.Reason, reason) {
		t.Errorf("got %+v, %v; want %s because of %q", got, err, want, reason)
	}
	if after := tablesThere(t); after != before {
		t.Errorf("looking made tables: %d, before %d", after, before)
	}
}

// tablesThere counts the tables of both backends and families.
func tablesThere(t *testing.T) int {
	t.Helper()
	n := 0
	for _, fam := range model.Families {
		nft, err := nftDump(t.Context(), fam, nftQuery{object: nftTables, tables: sharedTables})
		if err != nil {
			t.Fatal(err)
		}
		legacy, err := legacyTables(fam)
		if err != nil {
			t.Fatal(err)
		}
		n += len(nft) + len(legacy)
	}
	return n
}

const (
	hint     = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"
	someRule = "*filter\n:SOME - [0:0]\n-A SOME -j RETURN\n-A SOME -j RETURN\nCOMMIT\n"
)

// B-53, on a host that fills up.
func TestDetectOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	needLegacyTables(t)
	wantDetected(t, NFT, "nothing speaks")
	restore(t, realRunner(t, model.IPv6, Legacy), someRule)
	wantDetected(t, Legacy, "(legacy 2, nft 0)")
	restore(t, realRunner(t, model.IPv4, NFT), someRule)
	wantDetected(t, NFT, "nothing speaks")
	restore(t, realRunner(t, model.IPv4, NFT), "*nat\n-A OUTPUT -j ACCEPT\nCOMMIT\n")
	wantDetected(t, NFT, "(nft 3, legacy 2)")
	restore(t, realRunner(t, model.IPv4, Legacy), "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n")
	wantDetected(t, Legacy, "hint")
	restore(t, realRunner(t, model.IPv6, NFT), hint)
	wantDetected(t, NFT, "hint")
}

func TestCountChainsOnKernel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	needLegacyTables(t)
	count := func(b Backend, want int) {
		t.Helper()
		if got, err := CountChains(t.Context(), b, ownsKube); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", b, got, err, want)
		}
	}
	count(NFT, 0)
	count(Legacy, 0)
	if n := tablesThere(t); n > 0 {
		t.Errorf("looking made %d tables", n)
	}
	restore(t, realRunner(t, model.IPv4, NFT), hookTargets)
	restore(t, realRunner(t, model.IPv6, NFT), hint+someRule)
	restore(t, realRunner(t, model.IPv6, Legacy), hookTargets+someRule)
	count(NFT, 5)
	count(Legacy, 4)
}

// Rules for another table of nft are no rules of iptables.
func TestDetectIgnoresOtherTables(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	needLegacyTables(t)
	restore(t, realRunner(t, model.IPv4, Legacy), someRule)
	nft := "add table ip mine; add chain ip mine c; " + strings.Repeat("add rule ip mine c accept; ", 5)
	if _, err := run(t.Context(), nil, "nft", nft); err != nil {
		skip(t, "nft", err)
	}
	wantDetected(t, Legacy, "(legacy 2, nft 0)")
}

// After "nft flush ruleset" not even the tables are there.
func TestHasChainWithoutTables(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	id := ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-PROXY-CANARY"}
	r := realRunner(t, model.IPv4, NFT)
	restore(t, r, "*nat\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n")
	// A native rule in it makes iptables-nft say that the chain is not there.
	if _, err := run(t.Context(), nil, "nft", "add rule ip nat KUBE-PROXY-CANARY ct mark set jhash ip saddr mod 4"); err != nil {
		skip(t, "nft", err)
	}
	if found, err := r.HasChain(t.Context(), id); err != nil || !found {
		t.Errorf("with a native rule: got %t, %v; want true", found, err)
	}
	if created, err := r.EnsureChain(t.Context(), id); err != nil || created {
		t.Errorf("EnsureChain: got %t, %v; want false", created, err)
	}
	if _, err := run(t.Context(), nil, "nft", "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	if found, err := r.HasChain(t.Context(), id); err != nil || found {
		t.Errorf("flushed: got %t, %v; want false", found, err)
	}
}
