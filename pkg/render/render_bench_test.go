package render

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// cluster is a world of n Services with ten endpoints each.
func cluster(n int) world {
	w := newWorld()
	for i := range n {
		var endpoints []model.Endpoint
		for j := range 10 {
			endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.%d:8080", 2+i/25%250, i%25*10+j)))
		}
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		w.with(service(fmt.Sprint("s", i), at(ip.String())), endpoints...)
	}
	return w
}

// TestRenderAllocations pins what every change, and ten thousand times every full sync,
// makes the garbage collector do. A Service port has 11 chains of 23 rules here.
func TestRenderAllocations(t *testing.T) {
	w := cluster(200)
	name := service("s7").Name
	opts := options()
	one := testing.AllocsPerRun(10, func() { ServicePort(w.Services[name], w.Endpoints[name], opts) })
	all := testing.AllocsPerRun(3, func() { Snapshot(w.Snapshot, opts) }) / 200
	t.Logf("one Service port: %.0f; each of 200, with dispatch chains: %.1f", one, all)
	if one > 280 {
		t.Errorf("one Service port makes %.0f allocations, want at most 280", one)
	}
	if all > 300 {
		t.Errorf("each of 200 Service ports makes %.1f allocations, want at most 300", all)
	}
}

func BenchmarkServicePort(b *testing.B) {
	w := cluster(1)
	name := service("s0").Name
	opts := options()
	b.ReportAllocs()
	for b.Loop() {
		ServicePort(w.Services[name], w.Endpoints[name], opts)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	for _, services := range []int{100, 1000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			w := cluster(services)
			opts := options(func(o *Options) { o.FlatDispatch = DefaultFlatDispatch })
			b.ReportAllocs()
			for b.Loop() {
				Snapshot(w.Snapshot, opts)
			}
		})
	}
}

// BenchmarkDispatcher changes the endpoints of one Service among many: from its entries
// to the chains that they change, which are none.
func BenchmarkDispatcher(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			w := cluster(services)
			opts := options(func(o *Options) { o.FlatDispatch = DefaultFlatDispatch })
			d := NewDispatcher()
			d.SetOptions(opts)
			var last *Unit
			for name, port := range w.Services {
				unit := ServicePort(port, w.Endpoints[name], opts)
				d.Replace(nil, &unit)
				last = &unit
			}
			d.Chains()
			b.ReportAllocs()
			for b.Loop() {
				next := *last
				d.Replace(last, &next)
				d.Chains()
				last = &next
			}
		})
	}
}
