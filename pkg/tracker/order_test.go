package tracker

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/test/seed"
)

// clone returns a copy that later calls of Take leave alone.
func clone(s model.Snapshot) model.Snapshot {
	return model.Snapshot{Node: s.Node, Services: maps.Clone(s.Services), Endpoints: maps.Clone(s.Endpoints)}
}

// differing names the Service ports in which two snapshots differ, sorted.
func differing(a, b model.Snapshot) []model.ServicePortName {
	names := slices.Concat(slices.Collect(maps.Keys(a.Services)), slices.Collect(maps.Keys(b.Services)))
	slices.SortFunc(names, model.ServicePortName.Compare)
	return slices.DeleteFunc(slices.Compact(names), func(name model.ServicePortName) bool {
		x, inA := a.Services[name]
		y, inB := b.Services[name]
		return inA == inB && x.Equal(y) && slices.EqualFunc(a.Endpoints[name], b.Endpoints[name], model.Endpoint.Equal)
	})
}

// replay delivers events to a tracker, taking snapshots on the way, and checks what
// each of them says has changed. It returns the last snapshot.
func replay(t *testing.T, c choices, family model.Family, events []event) model.Snapshot {
	t.Helper()
	tracker := New(family, thisNode)
	var before model.Snapshot
	look := func() {
		snapshot, changes := tracker.Take()
		if want := differing(before, snapshot); !slices.Equal(changes.ServicePorts, want) {
			t.Errorf("%s: Take says that %v changed, want %v", family, changes.ServicePorts, want)
		}
		checkSnapshot(t, family, snapshot)
		before = clone(snapshot)
	}
	for _, e := range events {
		e.deliver(tracker)
		if c.pick(3) == 0 {
			look()
		}
	}
	look()
	return before
}

// checkSnapshot checks what every snapshot must fulfil.
func checkSnapshot(t *testing.T, family model.Family, s model.Snapshot) {
	t.Helper()
	for name, p := range s.Services {
		foreign := func(a netip.Addr) bool { return !family.Has(a) || a.Is4In6() || a.Zone() != "" }
		if foreign(p.ClusterIP) || slices.ContainsFunc(p.ExternalIPs, foreign) || slices.ContainsFunc(p.LoadBalancerVIPs, foreign) {
			t.Errorf("%s: %s has an address that is none of the family: %+v", family, name, p)
		}
		for _, r := range p.SourceRanges {
			if foreign(r.Addr()) || r != r.Masked() || r.Bits() == 0 {
				t.Errorf("%s: %s has source range %s", family, name, r)
			}
		}
		if p.Port == 0 || p.Name != name || p.Name.Protocol == "" {
			t.Errorf("%s: %s has port %d and is called %+v", family, name, p.Port, p.Name)
		}
		endpoints, ok := s.Endpoints[name]
		if !ok {
			t.Errorf("%s: %s has no entry among the endpoints", family, name)
		}
		for i, e := range endpoints {
			if foreign(e.Addr.Addr()) || e.Addr.Port() == 0 {
				t.Errorf("%s: %s has endpoint %s", family, name, e.Addr)
			}
			if i > 0 && e.Addr.String() <= endpoints[i-1].Addr.String() {
				t.Errorf("%s: %s: endpoint %s stands behind %s", family, name, e.Addr, endpoints[i-1].Addr)
			}
		}
	}
	if len(s.Endpoints) != len(s.Services) {
		t.Errorf("%s: endpoints of %d Service ports, but there are %d", family, len(s.Endpoints), len(s.Services))
	}
}

// checkOrderFree replays the lives in two orders, and the last versions alone, and
// expects the same snapshot each time.
func checkOrderFree(t *testing.T, c choices, family model.Family, histories [][]event) {
	t.Helper()
	want := replay(t, c, family, last(histories))
	for range 2 {
		got := replay(t, c, family, interleave(c, histories))
		if names := differing(got, want); len(names) != 0 {
			t.Errorf("%s: after the whole history %v differ from a fresh start:\n%swant:\n%s", family, names, describe(got), describe(want))
		}
	}
}

// deepCopy returns a copy of the lives in which every object is another one.
func deepCopy(histories [][]event) [][]event {
	var all [][]event
	for _, life := range histories {
		var copied []event
		for _, e := range life {
			copied = append(copied, event{e.oldService.DeepCopy(), e.service.DeepCopy(), e.oldSlice.DeepCopy(), e.slice.DeepCopy()})
		}
		all = append(all, copied)
	}
	return all
}

// TestAnyOrderOfEvents is the third invariant, and B-33: objects belong to the
// informers and are not changed.
func TestAnyOrderOfEvents(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 100
	}
	m := maker{choices: randomChoices{seed.Rand(t)}}
	for range rounds {
		histories := m.histories()
		before := deepCopy(histories)
		for _, family := range model.Families {
			checkOrderFree(t, m, family, histories)
		}
		if !reflect.DeepEqual(histories, before) {
			t.Error("B-33 an object was changed")
		}
		if t.Failed() {
			return
		}
	}
}

func FuzzServiceAndSlice(f *testing.F) {
	f.Add([]byte{}, "")
	f.Add([]byte("the quick brown fox jumps over the lazy dog, again and again and again"), "10.244.1.10")
	f.Add([]byte{3, 1, 2, 0, 1, 1, 2, 2, 1, 3, 1, 0, 2, 1, 3, 3, 3, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "10.0.0.0/08")
	f.Add([]byte{255, 254, 253, 252, 251, 250, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, "fe80::1%eth0")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m := maker{choices: &byteChoices{data}, texts: []string{text}}
		histories := m.histories()
		for _, family := range model.Families {
			checkOrderFree(t, m, family, histories)
		}
	})
}
