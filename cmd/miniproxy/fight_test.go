package main

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	k8smetrics "k8s.io/component-base/metrics"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/metrics"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// drifter hears of syncs as an agent does that does nothing but repair.
type drifter struct {
	*drift
	repairs, full int
}

func (d *drifter) Synced(_ context.Context, r proxier.Result) {
	d.synced(r)
	if len(r.Repaired)+len(r.JumpsRepaired) > 0 {
		d.repairs++
	}
	if r.Full {
		d.full++
	}
}

func (d *drifter) Writing(int, int) {}

// TestFightIsPaced: whoever undoes repairs again and again is made to wait, be it chains
// or jump rules.
func TestFightIsPaced(t *testing.T) {
	for _, tt := range []struct {
		name, edit string
		damage     proxier.Damage
		counted    string
	}{
		{"a chain", "-F KUBE-MARK-MASQ", proxier.Damage{Chains: map[ruleset.ChainID]proxier.Edit{
			{Table: ruleset.NAT, Name: "KUBE-MARK-MASQ"}: {Removed: 1}}}, "flushed"},
		{"jump rules", "-F PREROUTING", proxier.Damage{Jumps: true}, "jumps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry, kernel := k8smetrics.NewKubeRegistry(), fakekernel.New(model.IPv4, iptables.NFT)
				alone, recorder := driftOf()
				d := &drifter{drift: alone}
				d.family.metrics = metrics.New(registry)
				d.family.tracker = tracker.New(model.IPv4, "n1")
				d.family.proxier = proxier.New(model.IPv4, d.family.tracker, kernel.Runner(),
					proxier.Settings{Chunk: proxier.ChunkNFT, JumpPeriod: 30 * time.Second, JumpsAwait: d.jumpsAwait},
					func(node model.NodeFacts) (render.Options, error) {
						return render.Options{Family: model.IPv4, Node: node, MasqueradeMark: 0x4000}, nil
					}, d)
				d.patrol = canary.NewPatrol(nil, time.Second, time.Minute) // never runs
				d.pacer = canary.NewPacer(d.repair, d.reportFight)
				defer d.pacer.Stop()
				sync := func() {
					if err := d.family.proxier.Sync(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				undo := func() {
					if err := kernel.Write("*nat\n" + tt.edit + "\nCOMMIT\n"); err != nil {
						t.Fatal(err)
					}
					tt.damage.By, tt.damage.At = "firewall (pid 7)", time.Now()
					d.damaged(tt.damage)
				}
				sync()
				for range 50 {
					undo()
					sync()
				}
				if d.repairs != 10 {
					t.Errorf("repaired %d times at once, want 10", d.repairs)
				}
				if events := heard(recorder); len(events) != 1 || !strings.Contains(events[0], reasonFight) || !strings.Contains(events[0], "firewall") {
					t.Errorf("got events %q, want one with the culprit", events)
				}
				for range 300 {
					time.Sleep(time.Second)
					synctest.Wait()
					sync()
					undo()
				}
				// After 1, 2, 4, 8, 16 and 32 seconds, and then once a minute.
				if d.repairs != 19 || d.full != 1 {
					t.Errorf("repaired %d times in five minutes, want 19; wrote everything %d times, want once", d.repairs, d.full)
				}
				w := httptest.NewRecorder()
				k8smetrics.HandlerFor(registry, k8smetrics.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
				want := `miniproxy_canary_repairs_total{ip_family="IPv4",reason="` + tt.counted + `",table="nat"} 19`
				if !slices.Contains(strings.Split(w.Body.String(), "\n"), want) {
					t.Errorf("the metrics do not say %s", want)
				}
			})
		})
	}
}
