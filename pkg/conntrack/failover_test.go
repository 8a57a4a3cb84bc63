package conntrack

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// ns1/web is ns1/dns in TCP.
var web = model.ServicePortName{ServiceName: model.ServiceName{Namespace: "ns1", Name: "web"}, Port: "web", Protocol: model.TCP}

// endpointC is one more pod of the tests of TCP.
var endpointC = netip.MustParseAddrPort("10.244.1.12:5353")

// webSnapshot has ns1/web with these endpoints, and changes to the Service.
func webSnapshot(eps []model.Endpoint, changes ...func(*model.ServicePort)) model.Snapshot {
	port := dnsPort()
	port.Name = web
	for _, change := range changes {
		change(&port)
	}
	return model.Snapshot{
		Node:      model.NodeFacts{Name: "n1", Zone: "zone-a"},
		Services:  map[model.ServicePortName]model.ServicePort{web: port},
		Endpoints: map[model.ServicePortName][]model.Endpoint{web: eps},
	}
}

func internalLocal(p *model.ServicePort) { p.InternalLocal = true }
func externalLocal(p *model.ServicePort) { p.ExternalLocal = true }

// syn is an entry of a connection that waits for an answer, established one of a
// connection that has got it.
func syn(frontend, leadsTo netip.AddrPort) Entry {
	e := established(frontend, leadsTo)
	e.Waiting = true
	return e
}

func established(frontend, leadsTo netip.AddrPort) Entry {
	e := flow(frontend, leadsTo)
	e.Protocol = unix.IPPROTO_TCP
	return e
}

func newFailover(table Table, rec FailoverRecorder, dropEstablished bool) *Failover {
	f := NewFailover(model.IPv4, table, rec, dropEstablished)
	f.host = testHost
	return f
}

// is returns endpoint A in some condition; B is ready.
func is(a model.Endpoint) []model.Endpoint {
	a.Addr = endpointA
	return append([]model.Endpoint{a}, serving(endpointB)...)
}

// TestFailover holds which entries go when ns1/web changes, by what they are and lead
// to. Before the change A and B are ready.
func TestFailover(t *testing.T) {
	onlyB := webSnapshot(serving(endpointB))
	viaService, viaNodePort := to(clusterIP, servicePort), to(nodeIP, nodePort)
	draining := is(model.Endpoint{Serving: true, Terminating: true})
	localA := is(model.Endpoint{Ready: true, Serving: true, Local: true})
	inZone := syn(viaService, endpointA)
	inZone.Zone = 7
	udp := flow(viaService, endpointA)

	besideUDP := webSnapshot(serving(endpointB))
	besideUDP.Services[dns], besideUDP.Endpoints[dns] = dnsPort(), serving(endpointA)

	for _, tc := range []struct {
		name  string
		now   model.Snapshot
		entry Entry
		freed bool
	}{
		{"cluster IP to a removed endpoint", onlyB, syn(viaService, endpointA), true},
		{"VIP to a removed endpoint", onlyB, syn(to(vip, servicePort), endpointA), true},
		{"external IP to a removed endpoint", onlyB, syn(to(externalIP, servicePort), endpointA), true},
		{"node port to a removed endpoint", onlyB, syn(viaNodePort, endpointA), true},
		{"node port on loopback to a removed endpoint", onlyB, syn(to(netip.MustParseAddr("127.0.0.5"), nodePort), endpointA), true},
		{"an endpoint that is ready", onlyB, syn(viaService, endpointB), false},
		{"an endpoint that is not ready any more", webSnapshot(is(model.Endpoint{})), syn(viaService, endpointA), true},
		{"an endpoint that is terminating, others ready", webSnapshot(draining), syn(viaService, endpointA), true},
		{"the last endpoint is terminating", webSnapshot(draining[:1]), syn(viaService, endpointA), false},
		{"terminating and dead", webSnapshot(is(model.Endpoint{Terminating: true})), syn(viaService, endpointA), true},
		{"an endpoint that a UDP Service still has", besideUDP, syn(viaService, endpointA), true},
		{"an endpoint that never was one", onlyB, syn(viaService, to(endpointA.Addr(), 9)), true},

		{"no endpoint left", webSnapshot(nil), syn(viaService, endpointA), true},
		{"Service gone", model.Snapshot{}, syn(viaService, endpointA), true},
		{"Service gone, node port", model.Snapshot{}, syn(viaNodePort, endpointA), true},
		{"external IP gone", webSnapshot(serving(endpointA, endpointB), func(p *model.ServicePort) { p.ExternalIPs = nil }), syn(to(externalIP, servicePort), endpointA), true},
		{"node port gone", webSnapshot(serving(endpointA, endpointB), func(p *model.ServicePort) { p.NodePort = 0 }), syn(viaNodePort, endpointA), true},

		{"internal policy became Local, A elsewhere", webSnapshot(serving(endpointA, endpointB), internalLocal), syn(viaService, endpointA), true},
		{"internal policy became Local, A here", webSnapshot(localA, internalLocal), syn(viaService, endpointA), false},
		{"internal policy became Local, other frontend", webSnapshot(localA, internalLocal), syn(to(vip, servicePort), endpointB), false},
		{"external policy became Local: pods still go everywhere", webSnapshot(localA, externalLocal), syn(to(vip, servicePort), endpointB), false},

		{"established (B-26)", onlyB, established(viaService, endpointA), false},
		{"UDP", onlyB, udp, false},
		{"not translated", onlyB, syn(viaService, viaService), false},
		{"other conntrack zone", onlyB, inZone, false},
		{"other cluster IP, port as the node port (B-27)", onlyB, syn(to(otherIP, nodePort), endpointA), false},
		{"other port of the VIP (B-27)", onlyB, syn(to(vip, 54), endpointA), false},
		{"straight to the pod", onlyB, syn(endpointA, endpointA), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, rec := &fakeTable{}, &record{}
				f := newFailover(table, rec, false)
				for _, snap := range []model.Snapshot{webSnapshot(serving(endpointA, endpointB)), tc.now} {
					table.entries = []Entry{tc.entry}
					if err := f.Clean(t.Context(), snap, []model.ServicePortName{web}, allNodePorts); err != nil {
						t.Fatal(err)
					}
				}
				if got := len(table.entries) == 0; got != tc.freed {
					t.Errorf("freed is %v, want %v", got, tc.freed)
				}
				// The first call, with A and B ready, may have freed it, too.
				if got := rec.freed > 0; got != tc.freed {
					t.Errorf("recorded %d, want some: %v", rec.freed, tc.freed)
				}
			})
		})
	}
}

// TestFailoverLooks holds that only a loss is worth a look at the table, and that the
// look is at connections without an answer.
func TestFailoverLooks(t *testing.T) {
	ready := model.Endpoint{Ready: true, Serving: true}
	zoned := func(zone string) model.Snapshot {
		a, b := ready, ready
		a.Addr, a.ZoneHints = endpointA, []string{"zone-a"}
		b.Addr, b.ZoneHints = endpointB, []string{"zone-b"}
		snap := webSnapshot([]model.Endpoint{a, b})
		snap.Node.Zone = zone
		return snap
	}
	withUDP := func(snap model.Snapshot, eps ...netip.AddrPort) model.Snapshot {
		snap.Services[dns], snap.Endpoints[dns] = dnsPort(), serving(eps...)
		return snap
	}
	aHere := is(model.Endpoint{Ready: true, Serving: true, Local: true})
	changed := []model.ServicePortName{dns, web}
	table := &fakeTable{}
	f := newFailover(table, &record{}, false)
	for _, step := range []struct {
		name    string
		snap    model.Snapshot
		changed []model.ServicePortName
		looks   bool
	}{
		{"first", webSnapshot(serving(endpointA)), nil, true},
		{"nothing changed", webSnapshot(serving(endpointA)), nil, false},
		{"endpoint added", webSnapshot(serving(endpointA, endpointB)), changed, false},
		{"endpoint removed", webSnapshot(serving(endpointB)), changed, true},
		{"the same again", webSnapshot(serving(endpointB)), changed, false},
		{"UDP Service appears", withUDP(webSnapshot(serving(endpointB)), endpointA), changed, false},
		{"UDP endpoint removed", withUDP(webSnapshot(serving(endpointB))), changed, false},
		{"not ready", webSnapshot([]model.Endpoint{{Addr: endpointB}}), changed, true},
		{"removed after it was not ready", webSnapshot(nil), changed, false},
		{"hints, the zone not known yet", zoned(""), changed, false},
		{"zone known", zoned("zone-a"), nil, true},
		{"other zone", zoned("zone-b"), nil, true},
		{"frontend added", webSnapshot(serving(endpointA, endpointB), func(p *model.ServicePort) { p.ExternalIPs = append(p.ExternalIPs, otherIP) }), changed, false},
		{"frontend removed", webSnapshot(serving(endpointA, endpointB)), changed, true},
		{"local endpoints only, inside", webSnapshot(aHere, internalLocal), changed, true},
		{"remote endpoint removed, outside went there", webSnapshot(aHere[:1], internalLocal), changed, true},
		{"remote endpoint added", webSnapshot(aHere, internalLocal), changed, false},
		{"Service gone", model.Snapshot{}, changed, true},
		{"still gone", model.Snapshot{}, changed, false},
	} {
		before := table.dumps
		if err := f.Clean(t.Context(), step.snap, step.changed, allNodePorts); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := table.dumps > before; got != step.looks {
			t.Errorf("%s: looked at the table is %v, want %v", step.name, got, step.looks)
		}
	}
	if want := (Filter{Protocol: unix.IPPROTO_TCP, Unreplied: true}); table.filter != want {
		t.Errorf("got filter %+v, want %+v", table.filter, want)
	}
	if len(f.served) > 0 || !f.lost.isEmpty() {
		t.Errorf("a Service that is gone is still remembered: %v, %v", f.served, f.lost)
	}
}

// TestFailoverLetsServingEndpointAnswer holds that a SYN which an endpoint on its way
// out has just got may be answered, and that one which it does not answer is freed.
func TestFailoverLetsServingEndpointAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered, silent := syn(to(clusterIP, servicePort), endpointA), syn(to(vip, servicePort), endpointA)
		gone, dead := syn(to(clusterIP, servicePort), to(endpointA.Addr(), 9)), syn(to(clusterIP, servicePort), endpointC)
		table, rec := &fakeTable{entries: []Entry{answered, silent, gone, dead}}, &record{}
		var looks []time.Duration
		var waiting []int
		start := time.Now()
		table.dumped = func() {
			looks = append(looks, time.Since(start))
			waiting = append(waiting, len(table.entries))
			table.entries[0].Waiting = false
		}
		f := newFailover(table, rec, false)
		draining := webSnapshot(append(is(model.Endpoint{Serving: true, Terminating: true}), model.Endpoint{Addr: endpointC}))
		if err := f.Clean(t.Context(), draining, nil, allNodePorts); err != nil {
			t.Fatal(err)
		}
		answered.Waiting = false
		checkEntries(t, table, answered)
		if want := []time.Duration{0, answerTime}; !slices.Equal(looks, want) || rec.freed != 3 {
			t.Errorf("got looks after %v and %d freed, want %v and 3", looks, rec.freed, want)
		}
		// Where nobody serves there is nothing to wait for.
		if want := []int{4, 2}; !slices.Equal(waiting, want) {
			t.Errorf("the looks found %v entries, want %v", waiting, want)
		}
	})
}

func TestFailoverEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	entry := syn(to(clusterIP, servicePort), endpointA)
	table := &fakeTable{entries: []Entry{entry}, dumped: cancel}
	f := newFailover(table, &record{}, false)
	draining := webSnapshot(is(model.Endpoint{Serving: true, Terminating: true}))
	if err := f.Clean(ctx, draining, nil, allNodePorts); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	checkEntries(t, table, entry)
}

// B-39: what failed is done by the next call, although nothing changes any more.
func TestFailoverRetriesWhatFailed(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name   string
		damage func(*fakeTable, *Failover)
	}{
		{"dump fails", func(f *fakeTable, _ *Failover) { f.dumpErr, f.entries = boom, nil }},
		{"delete fails", func(f *fakeTable, _ *Failover) { f.deleteErr = boom }},
		{"addresses unknown", func(_ *fakeTable, f *Failover) {
			f.host = func(model.Family) ([]netip.Prefix, error) { return nil, boom }
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			entries := []Entry{syn(to(clusterIP, servicePort), endpointA), syn(to(nodeIP, nodePort), endpointA)}
			table := &fakeTable{}
			f := newFailover(table, &record{}, false)
			clean := func(snap model.Snapshot, changed ...model.ServicePortName) error {
				return f.Clean(t.Context(), snap, changed, allNodePorts)
			}
			if err := clean(webSnapshot(serving(endpointA))); err != nil {
				t.Fatal(err)
			}
			table.entries = slices.Clone(entries)
			tc.damage(table, f)
			for range 2 {
				if err := clean(model.Snapshot{}, web); !errors.Is(err, boom) {
					t.Fatalf("got error %v, want %v", err, boom)
				}
			}
			table.dumpErr, table.deleteErr, f.host = nil, nil, testHost
			table.entries = slices.Clone(entries)
			if err := clean(model.Snapshot{}); err != nil {
				t.Fatal(err)
			}
			checkEntries(t, table)
		})
	}
}

// TestDropEstablished: with the option, connections to an endpoint that was removed
// go in any state, and those to one on its way out stay.
func TestDropEstablished(t *testing.T) {
	viaService := to(clusterIP, servicePort)
	toA, toB, elsewhere := established(viaService, endpointA), established(viaService, endpointB), established(to(otherIP, servicePort), endpointA)
	host := established(viaService, viaService)
	all := []Entry{toA, toB, elsewhere, host}
	table, rec := &fakeTable{entries: slices.Clone(all)}, &record{}
	f := newFailover(table, rec, true)
	for _, step := range []struct {
		name string
		eps  []model.Endpoint
		want []Entry
	}{
		{"both there", serving(endpointA, endpointB), all},
		{"not ready", is(model.Endpoint{}), all},
		{"terminating", is(model.Endpoint{Terminating: true, Serving: true}), all},
		{"terminating and not serving", is(model.Endpoint{Terminating: true}), all},
		{"removed", serving(endpointB), []Entry{toB, elsewhere, host}},
	} {
		if err := f.Clean(t.Context(), webSnapshot(step.eps), []model.ServicePortName{web}, allNodePorts); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !slices.Equal(table.entries, step.want) {
			t.Errorf("%s: got entries %v, want %v", step.name, table.entries, step.want)
		}
	}
	if rec.freed != 0 {
		t.Errorf("%d connections are said to have failed over, want none: they were cut", rec.freed)
	}
}

// Two Services on one external address: when one loses an endpoint, connections to
// the other's are left alone, and what both have is not lost with one.
func TestFailoverOfTwoServices(t *testing.T) {
	second := model.ServicePortName{ServiceName: model.ServiceName{Namespace: "ns1", Name: "web2"}, Protocol: model.TCP}
	endpointD := netip.MustParseAddrPort("10.244.1.13:5353")
	snap := func(eps ...netip.AddrPort) model.Snapshot {
		// D is an endpoint of both, and does not serve the first.
		s := webSnapshot(append(serving(eps...), model.Endpoint{Addr: endpointD}))
		s.Services[second] = model.ServicePort{Name: second, ClusterIP: otherIP, Port: servicePort, ExternalIPs: []netip.Addr{externalIP}}
		s.Endpoints[second] = serving(endpointB, endpointD)
		return s
	}
	shared, own := to(externalIP, servicePort), to(clusterIP, servicePort)
	freed := map[Entry]bool{
		syn(shared, endpointA): true,
		syn(shared, endpointB): false,
		syn(shared, endpointC): false,
		syn(shared, endpointD): false,
		syn(own, endpointA):    true,
		syn(own, endpointB):    true,
		syn(own, endpointC):    false,
		syn(own, endpointD):    true,
	}
	table := &fakeTable{}
	f := newFailover(table, &record{}, false)
	for _, s := range []model.Snapshot{snap(endpointA, endpointB, endpointC), snap(endpointC)} {
		table.entries = slices.Collect(maps.Keys(freed))
		if err := f.Clean(t.Context(), s, []model.ServicePortName{web}, allNodePorts); err != nil {
			t.Fatal(err)
		}
	}
	for e, want := range freed {
		if got := !slices.Contains(table.entries, e); got != want {
			t.Errorf("%s to %s: freed is %v, want %v", e.Destination, e.ReplySource, got, want)
		}
	}
}

// TestAfterOutage holds which connections go that began while there were no rules.
func TestAfterOutage(t *testing.T) {
	viaService, viaNodePort := to(clusterIP, servicePort), to(nodeIP, nodePort)
	served, empty := webSnapshot(serving(endpointA)), webSnapshot(nil)
	for _, tc := range []struct {
		name   string
		now    model.Snapshot
		entry  Entry
		outage bool
		freed  bool
	}{
		{"untranslated to a cluster IP", served, syn(viaService, viaService), true, true},
		{"untranslated to a node port", served, syn(viaNodePort, viaNodePort), true, true},
		{"without an outage", served, syn(viaService, viaService), false, false},
		{"answered", served, established(viaNodePort, viaNodePort), true, false},
		{"no endpoint to go to", empty, syn(viaNodePort, viaNodePort), true, false},
		{"no frontend of ours", served, syn(endpointA, endpointA), true, false},
		{"no answer from a live endpoint", served, syn(viaService, endpointA), true, true},
		{"no answer from a live endpoint, without an outage", served, syn(viaService, endpointA), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &fakeTable{}
				f := newFailover(table, &record{}, false)
				clean := func() {
					t.Helper()
					if err := f.Clean(t.Context(), tc.now, nil, allNodePorts); err != nil {
						t.Fatal(err)
					}
				}
				clean()
				table.entries = []Entry{tc.entry}
				if tc.outage {
					f.AfterOutage()
				}
				clean()
				if got := len(table.entries) == 0; got != tc.freed {
					t.Errorf("freed is %v, want %v", got, tc.freed)
				}
				dumps := table.dumps
				clean()
				if table.dumps != dumps {
					t.Error("the outage is not over")
				}
			})
		})
	}
}

// TestAfterOutageLetsEndpointsAnswer holds that of the connections to where the rules
// lead only those go that were there at once and still wait a moment later.
func TestAfterOutageLetsEndpointsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered, silent, late := syn(to(clusterIP, servicePort), endpointA), syn(to(vip, servicePort), endpointA), syn(to(nodeIP, nodePort), endpointA)
		answered.ID, silent.ID, late.ID = 1, 2, 3
		table, rec := &fakeTable{}, &record{}
		f := newFailover(table, rec, false)
		served := webSnapshot(serving(endpointA))
		if err := f.Clean(t.Context(), served, nil, allNodePorts); err != nil {
			t.Fatal(err)
		}
		table.entries = []Entry{answered, silent}
		table.dumped = func() {
			if len(table.entries) == 2 {
				table.entries[0].Waiting = false
				table.entries = append(table.entries, late)
			}
		}
		f.AfterOutage()
		if err := f.Clean(t.Context(), served, nil, allNodePorts); err != nil {
			t.Fatal(err)
		}
		answered.Waiting = false
		checkEntries(t, table, answered, late)
		if rec.freed != 1 {
			t.Errorf("got %d freed, want 1", rec.freed)
		}
	})
}

// TestServiceGoneInOutage: what is gone when the rules are back frees its connections,
// too.
func TestServiceGoneInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{}
		f := newFailover(table, &record{}, false)
		if err := f.Clean(t.Context(), webSnapshot(serving(endpointA)), nil, allNodePorts); err != nil {
			t.Fatal(err)
		}
		table.entries = []Entry{syn(to(clusterIP, servicePort), endpointA)}
		f.AfterOutage()
		if err := f.Clean(t.Context(), model.Snapshot{}, []model.ServicePortName{web}, allNodePorts); err != nil {
			t.Fatal(err)
		}
		checkEntries(t, table)
	})
}

// TestOutageWithoutServices: an outage is over even if there was nothing to look at then.
func TestOutageWithoutServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{}
		f := newFailover(table, &record{}, false)
		f.AfterOutage()
		if err := f.Clean(t.Context(), model.Snapshot{}, nil, allNodePorts); err != nil {
			t.Fatal(err)
		}
		begun := syn(to(clusterIP, servicePort), endpointA)
		table.entries = []Entry{begun}
		if err := f.Clean(t.Context(), webSnapshot(serving(endpointA)), []model.ServicePortName{web}, allNodePorts); err != nil {
			t.Fatal(err)
		}
		checkEntries(t, table, begun)
	})
}
