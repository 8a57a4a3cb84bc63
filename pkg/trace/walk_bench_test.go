package trace_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// flatServices are the rules of n Services with ten endpoints each, in the form that
// every textbook shows.
func flatServices(tb testing.TB, n int) ruleset.Ruleset {
	tb.Helper()
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n")
	for i := range n {
		fmt.Fprintf(&b, ":SVC-%d - [0:0]\n-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m tcp --dport 80 -j SVC-%[1]d\n", i, i>>8, i&255)
		for j := range 10 {
			fmt.Fprintf(&b, ":SEP-%d-%d - [0:0]\n-A SEP-%[1]d-%[2]d -p tcp -j DNAT --to-destination 10.244.%[3]d.%[4]d:8080\n", i, j, i&255, j)
			if j < 9 {
				fmt.Fprintf(&b, "-A SVC-%d -m statistic --mode random --probability %.10f -j SEP-%[1]d-%[3]d\n", i, 1/float64(10-j), j)
			} else {
				fmt.Fprintf(&b, "-A SVC-%d -j SEP-%[1]d-%d\n", i, j)
			}
		}
	}
	b.WriteString("COMMIT\n")
	rs, err := ruleset.Decode([]byte(b.String()))
	if err != nil {
		tb.Fatal(err)
	}
	return rs
}

// toService is a packet to Service i of flatServices.
func toService(i int) trace.Packet {
	return trace.Packet{
		In: "eth0", Source: netip.MustParseAddr("10.9.9.9"), Destination: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
		Protocol: "tcp", SourcePort: 1234, DestinationPort: 80,
	}
}

// TestWalkAllocations pins that a rule that does not match costs nothing: the fuzzing
// and golden tests walk millions of packets.
func TestWalkAllocations(t *testing.T) {
	const services = 500
	tracer := newTracer(t, flatServices(t, services), node)
	cost := func(p trace.Packet, branches int) float64 {
		return testing.AllocsPerRun(10, func() {
			got, err := tracer.Walk(p, nil)
			if err != nil || len(got) != branches {
				t.Errorf("packet %s: got %d branches, %v, want %d", p, len(got), err, branches)
			}
		})
	}
	first, last, none := cost(toService(0), 10), cost(toService(services-1), 10), cost(toService(services), 1)
	t.Logf("allocations of a walk to the first Service: %.0f, the last: %.0f, none: %.0f", first, last, none)
	if first > 90 || last > 90 || none > 9 {
		t.Errorf("got %.0f, %.0f and %.0f allocations, want at most 90, 90 and 9", first, last, none)
	}
}

func BenchmarkWalk(b *testing.B) {
	for _, services := range []int{10, 1000} {
		tracer, err := trace.New(flatServices(b, services), node)
		if err != nil {
			b.Fatal(err)
		}
		for _, tt := range []struct {
			name string
			p    trace.Packet
		}{{"last", toService(services - 1)}, {"none", toService(services)}} {
			b.Run(fmt.Sprintf("%d/%s", services, tt.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := tracer.Walk(tt.p, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkNew(b *testing.B) {
	rs := flatServices(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := trace.New(rs, node); err != nil {
			b.Fatal(err)
		}
	}
}
