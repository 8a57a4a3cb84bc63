package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	k8smetrics "k8s.io/component-base/metrics"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// driftOf returns a drift that stands alone, and what it tells of the node.
func driftOf() (*drift, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(100)
	a := &agent{
		metrics: metrics.New(k8smetrics.NewKubeRegistry()),
		report:  &reporter{recorder: recorder, node: &corev1.ObjectReference{Kind: "Node", Name: "n1"}},
	}
	return &drift{family: &familyAgent{agent: a, family: model.IPv4}, told: map[string]time.Time{}}, recorder
}

// heard are the events so far.
func heard(recorder *events.FakeRecorder) (all []string) {
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func TestFightIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, recorder := driftOf()
		for range 30 { // one a minute
			d.reportFight(canary.Fight{By: "firewall (pid 7)", Repairs: 20, Wait: time.Minute})
			time.Sleep(time.Minute)
		}
		got := heard(recorder)
		if len(got) != 3 || !strings.Contains(got[0], reasonFight) || !strings.Contains(got[0], "firewall (pid 7)") {
			t.Errorf("in half an hour the events were %q, want three with the culprit's name", got)
		}
	})
}

func TestSecondProxyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, recorder := driftOf()
		for edits := 1; edits < enoughOfRival; edits++ {
			d.reportRival(t.Context(), "iptables-nft-re (pid 7)")
		}
		if got := heard(recorder); len(got) > 0 {
			t.Errorf("too soon: %q", got)
		}
		d.reportRival(t.Context(), "iptables-nft-re (pid 7)")
		d.reportRival(t.Context(), "iptables-nft-re (pid 8)")
		if got := heard(recorder); len(got) != 1 || !strings.Contains(got[0], reasonRival) {
			t.Errorf("the events were %q, want one", got)
		}
		for range 2 * enoughOfRival { // now and then a proxy is replaced by this one
			time.Sleep(forgetRival + time.Second)
			d.reportRival(t.Context(), "iptables-nft-re (pid 9)")
		}
		if got := heard(recorder); len(got) > 0 {
			t.Errorf("edits hours apart: %q", got)
		}
	})
}

func TestSortOut(t *testing.T) {
	nat := func(name string) iptables.ChainEdit {
		return iptables.ChainEdit{ChainID: ruleset.ChainID{Table: ruleset.NAT, Name: name}, Added: 2, Removed: 1, Balance: 5}
	}
	tests := []struct {
		name            string
		edit            iptables.Edit
		chains          int
		jumps, canaries bool
		proxy           bool
	}{
		{"a chain of ours", iptables.Edit{Process: "iptables", Chains: []iptables.ChainEdit{nat("KUBE-SERVICES")}}, 1, false, false, false},
		{"the same by a restore", iptables.Edit{Process: "iptables-nft-re", Chains: []iptables.ChainEdit{nat("KUBE-SERVICES")}}, 1, false, false, true},
		{"of the other family", iptables.Edit{Process: "ip6tables-nft-r", Chains: []iptables.ChainEdit{nat("KUBE-SVC-X")}}, 1, false, false, true},
		{"a restore that only takes away", iptables.Edit{Process: "iptables-nft-re", Chains: []iptables.ChainEdit{
			{ChainID: ruleset.ChainID{Table: ruleset.NAT, Name: "KUBE-SERVICES"}, Removed: 9}}}, 1, false, false, false},
		{"a restore elsewhere", iptables.Edit{Process: "iptables-nft-re", Chains: []iptables.ChainEdit{nat("OTHER")}}, 0, false, false, false},
		{"where the jumps are", iptables.Edit{Process: "nft", Chains: []iptables.ChainEdit{nat("PREROUTING")}}, 0, true, false, false},
		{"where no jump is", iptables.Edit{Process: "nft", Chains: []iptables.ChainEdit{nat("INPUT")}}, 0, false, false, false},
		{"a canary", iptables.Edit{Process: "nft", Chains: []iptables.ChainEdit{nat("KUBE-PROXY-CANARY")}}, 0, false, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.edit.PID = 7
			found, canaries := sortOut(tt.edit)
			if len(found.Chains) != tt.chains || found.Jumps != tt.jumps || canaries != tt.canaries {
				t.Errorf("got %+v, canaries %t", found, canaries)
			}
			if want := tt.edit.Process + " (pid 7)"; found.By != want {
				t.Errorf("by %q, want %q", found.By, want)
			}
			if got := isProxy(tt.edit); got != tt.proxy {
				t.Errorf("another proxy: got %t", got)
			}
		})
	}
}
