package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// fakeTable is a connection table in memory.
type fakeTable struct {
	entries   []Entry
	filter    Filter // of the last dump
	dumped    func() // called after each dump
	dumps     int
	largest   int
	dumpErr   error
	deleteErr error
}

func (f *fakeTable) Dump(_ context.Context, _ model.Family, filter Filter, each func(Entry) error) error {
	f.dumps++
	f.filter = filter
	if f.dumped != nil {
		defer f.dumped()
	}
	for _, e := range slices.Clone(f.entries) {
		if e.Protocol == filter.Protocol && !(filter.Unreplied && !e.Waiting) {
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return f.dumpErr
}

func (f *fakeTable) Delete(_ context.Context, entries []Entry) (int, error) {
	if f.deleteErr != nil {
		return 0, f.deleteErr
	}
	f.largest = max(f.largest, len(entries))
	before := len(f.entries)
	f.entries = slices.DeleteFunc(f.entries, func(e Entry) bool { return slices.Contains(entries, e) })
	return before - len(f.entries), nil
}

// record remembers what a Cleaner or a Failover reported.
type record struct{ runs, deleted, freed int }

func (r *record) ConntrackReconciled(_ model.Family, deleted int, _ time.Duration) {
	r.runs++
	r.deleted += deleted
}

func (r *record) ConnectionsFailedOver(_ model.Family, n int) { r.freed += n }

func testHost(model.Family) ([]netip.Prefix, error) {
	return []netip.Prefix{netip.PrefixFrom(nodeIP, 32), netip.MustParsePrefix("127.0.0.0/8")}, nil
}

func newCleaner(table Table, rec Recorder) *Cleaner {
	c := New(model.IPv4, table, rec)
	c.host = testHost
	return c
}

var allNodePorts = NodePorts{All: true, Loopback: true}

// checkEntries fails unless exactly these entries are left.
func checkEntries(t *testing.T, table *fakeTable, want ...Entry) {
	t.Helper()
	if !slices.Equal(table.entries, want) {
		t.Errorf("got entries %v, want %v", table.entries, want)
	}
}

func TestCleanFollowsTheService(t *testing.T) {
	toA, toB := flow(to(clusterIP, servicePort), endpointA), flow(to(clusterIP, servicePort), endpointB)
	tcp := toA
	tcp.Protocol = unix.IPPROTO_TCP
	table := &fakeTable{entries: []Entry{toA, toB, tcp}}
	var rec record
	c := newCleaner(table, &rec)
	clean := func(snap model.Snapshot) {
		t.Helper()
		if err := c.Clean(t.Context(), snap, allNodePorts); err != nil {
			t.Fatal(err)
		}
	}
	clean(snapshot(serving(endpointA, endpointB)...)) // as after a restart (B-25)
	checkEntries(t, table, toA, toB, tcp)
	clean(snapshot(serving(endpointA)...))
	checkEntries(t, table, toA, tcp)
	clean(model.Snapshot{}) // deleted (B-22)
	checkEntries(t, table, tcp)
	if rec.deleted != 2 || rec.runs != 3 {
		t.Errorf("got %+v recorded, want 3 runs and 2 deleted", rec)
	}

	// Once its flows are gone nobody asks for a deleted Service's frontends any more:
	// the memory must not grow with the cluster's history.
	clean(model.Snapshot{})
	if table.dumps != 3 || !c.known.isEmpty() {
		t.Errorf("got %d dumps and memory of %v, want no look without a UDP Service", table.dumps, c.known)
	}
}

// B-39: what failed is done by the next run, also for a Service that exists no more.
func TestCleanRetriesWhatFailed(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name   string
		damage func(*fakeTable, *Cleaner)
		mend   func(*fakeTable, *Cleaner)
	}{
		{"dump fails", func(f *fakeTable, _ *Cleaner) { f.dumpErr = boom; f.entries = nil }, func(f *fakeTable, _ *Cleaner) { f.dumpErr = nil }},
		{"delete fails", func(f *fakeTable, _ *Cleaner) { f.deleteErr = boom }, func(f *fakeTable, _ *Cleaner) { f.deleteErr = nil }},
		{"addresses unknown", func(_ *fakeTable, c *Cleaner) {
			c.host = func(model.Family) ([]netip.Prefix, error) { return nil, boom }
		}, func(_ *fakeTable, c *Cleaner) { c.host = testHost }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			entries := []Entry{flow(to(clusterIP, servicePort), endpointA), flow(to(nodeIP, nodePort), endpointA)}
			table := &fakeTable{entries: slices.Clone(entries)}
			c := newCleaner(table, &record{})
			if err := c.Clean(t.Context(), snapshot(serving(endpointA)...), allNodePorts); err != nil {
				t.Fatal(err)
			}
			tc.damage(table, c)
			for range 2 {
				if err := c.Clean(t.Context(), model.Snapshot{}, allNodePorts); !errors.Is(err, boom) {
					t.Fatalf("got error %v, want %v", err, boom)
				}
			}
			tc.mend(table, c)
			table.entries = slices.Clone(entries)
			if err := c.CleanIfChanged(t.Context(), model.Snapshot{}, allNodePorts); err != nil {
				t.Fatal(err)
			}
			checkEntries(t, table)
		})
	}
}

func TestCleanIfChanged(t *testing.T) {
	table := &fakeTable{}
	c := newCleaner(table, &record{})
	tcp := model.ServicePortName{ServiceName: dns.ServiceName, Protocol: model.TCP}
	withTCP := snapshot(serving(endpointA)...)
	withTCP.Services[tcp] = model.ServicePort{Name: tcp, ClusterIP: clusterIP, Port: 80}
	for _, step := range []struct {
		name      string
		snap      model.Snapshot
		nodePorts NodePorts
		looks     bool
	}{
		{"first", snapshot(serving(endpointA)...), allNodePorts, true},
		{"the same", snapshot(serving(endpointA)...), allNodePorts, false},
		{"TCP only", withTCP, allNodePorts, false},
		{"endpoints changed", snapshot(serving(endpointB)...), allNodePorts, true},
		{"node port addresses changed", snapshot(serving(endpointB)...), NodePorts{Addresses: []netip.Addr{nodeIP}}, true},
		{"Service gone", model.Snapshot{}, allNodePorts, true},
		{"still gone", model.Snapshot{}, allNodePorts, false},
	} {
		before := table.dumps
		if err := c.CleanIfChanged(t.Context(), step.snap, step.nodePorts); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := table.dumps > before; got != step.looks {
			t.Errorf("%s: looked at the table is %v, want %v", step.name, got, step.looks)
		}
	}
}

// Entries are deleted while the table is read, so that a table full of stale ones
// is not held in memory, and what a broken dump found is deleted too.
func TestCleanDeletesInBatches(t *testing.T) {
	table := &fakeTable{dumpErr: unix.EINTR}
	for i := range 3*batchSize + 1 {
		e := flow(to(clusterIP, servicePort), endpointB)
		e.ID = uint32(i)
		table.entries = append(table.entries, e)
	}
	var rec record
	c := newCleaner(table, &rec)
	if err := c.Clean(t.Context(), snapshot(serving(endpointA)...), allNodePorts); !errors.Is(err, unix.EINTR) {
		t.Errorf("got error %v, want %v", err, unix.EINTR)
	}
	if len(table.entries) != 0 || table.largest > batchSize || rec.deleted != 3*batchSize+1 {
		t.Errorf("got %d entries left, largest batch %d, %d recorded", len(table.entries), table.largest, rec.deleted)
	}
}

func TestAddresses(t *testing.T) {
	loopback, host := netip.MustParsePrefix("127.0.0.0/8"), netip.PrefixFrom(nodeIP, 32)
	for _, tc := range []struct {
		nodePorts NodePorts
		want      []netip.Prefix
	}{
		{NodePorts{All: true, Loopback: true}, []netip.Prefix{host, loopback}},
		{NodePorts{All: true}, []netip.Prefix{host}},
		{NodePorts{Addresses: []netip.Addr{nodeIP}}, []netip.Prefix{host}},
		{NodePorts{}, []netip.Prefix{}},
	} {
		t.Run(fmt.Sprintf("%+v", tc.nodePorts), func(t *testing.T) {
			got, err := tc.nodePorts.prefixes(model.IPv4, testHost)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
