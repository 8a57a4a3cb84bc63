package proxier

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// idleKernel takes everything and keeps nothing, so that what is measured is the agent.
type idleKernel struct{ restores, bytes int }

func (k *idleKernel) Restore(_ context.Context, input []byte) error {
	k.restores++
	k.bytes += len(input)
	return nil
}

func (*idleKernel) ChainNames(context.Context, ruleset.Table) ([]string, error) { return nil, nil }

func (*idleKernel) HasChain(context.Context, ruleset.ChainID) (bool, error) { return true, nil }

func (*idleKernel) EnsureChain(context.Context, ruleset.ChainID) (bool, error) { return true, nil }

func (*idleKernel) EnsureJumps(context.Context, []ruleset.Hook) ([]iptables.Change, error) {
	return nil, nil
}

// Synced implements Observer.
func (*idleKernel) Synced(context.Context, Result) {}

// Writing implements Observer.
func (*idleKernel) Writing(int, int) {}

// largeCluster is a tracker that was told of many Services with ten endpoints each,
// and a proxier that has written none of them yet.
func largeCluster(services int) (*tracker.Tracker, *Proxier, *idleKernel) {
	const endpoints = 10
	cluster := tracker.New(model.IPv4, "n1")
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		cluster.ServiceChanged(nil, newService(name, benchServiceIP(i).String()))
		cluster.EndpointSliceChanged(nil, benchSlice(name, i*endpoints, endpoints))
	}
	kernel := &idleKernel{}
	p := New(model.IPv4, cluster, kernel, Settings{Chunk: ChunkNFT, JumpPeriod: jumpPeriod},
		func(node model.NodeFacts) (render.Options, error) {
			return render.Options{
				Family:         model.IPv4,
				Node:           node,
				MasqueradeMark: 0x4000,
				Local:          render.LocalTraffic{Range: netip.MustParsePrefix("10.244.0.0/16")},
				NodePorts:      render.NodePortAddresses{All: true},
			}, nil
		}, kernel)
	return cluster, p, kernel
}

func benchServiceIP(i int) netip.Addr {
	n := uint32(i+1)*668265263&0xFFFFF | 0x100 // spread, as an allocator's are
	return netip.AddrFrom4([4]byte{10, 96 + byte(n>>16), byte(n >> 8), byte(n)})
}

func benchSlice(name string, first, n int) *discoveryv1.EndpointSlice {
	var addresses []string
	for i := first; i < first+n; i++ {
		addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", 2+i>>8&0x7f, i&0xff))
	}
	return newSlice(name, addresses...)
}

func BenchmarkFullSync(b *testing.B) {
	ctx := quiet(b.Context())
	_, p, kernel := largeCluster(10_000)
	for b.Loop() {
		p.ForceFull("a benchmark")
		if err := p.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(kernel.restores)/float64(b.N), "restores/op")
	b.ReportMetric(float64(kernel.bytes)/float64(b.N), "B-written/op")
	b.ReportMetric(heapInUse()/(1<<20), "MB-live")
	runtime.KeepAlive(p)
}

func heapInUse() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func BenchmarkOneServiceChanges(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			ctx := quiet(b.Context())
			cluster, p, _ := largeCluster(services)
			if err := p.Sync(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				cluster.EndpointSliceChanged(nil, benchSlice("s7", 70+i%2, 10))
				if err := p.Sync(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStorm is one sync of a rolling update of 500 among 10,000 Services.
func BenchmarkStorm(b *testing.B) {
	ctx := quiet(b.Context())
	cluster, p, kernel := largeCluster(10_000)
	if err := p.Sync(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	before := *kernel
	i := 0
	for b.Loop() {
		i++
		for service := range 500 {
			cluster.EndpointSliceChanged(nil, benchSlice(fmt.Sprintf("s%d", service), service*10+i%2, 10))
		}
		if err := p.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(kernel.restores-before.restores)/float64(b.N), "restores/op")
	b.ReportMetric(float64(kernel.bytes-before.bytes)/float64(b.N), "B-written/op")
}
