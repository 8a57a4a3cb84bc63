package conntrack

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// BenchmarkDump reads a table of 240,000 entries (what fits below the default
// nf_conntrack_max), of which a quarter is UDP and the rest answered TCP. B/op shows
// that memory does not grow with it. The dump of what waits for an answer is what a
// TCP endpoint that leaves costs.
func BenchmarkDump(b *testing.B) {
	const total = 240_000
	host, err := labtest.New(b).Host("node")
	if err != nil {
		b.Fatal(err)
	}
	if err := host.Do(func() error { return fill(b, total) }); err != nil {
		b.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		filter Filter
		want   int
	}{
		{"UDP", Filter{Protocol: unix.IPPROTO_UDP}, total / 4},
		{"TCP", Filter{Protocol: unix.IPPROTO_TCP}, total - total/4},
		{"waiting TCP", Filter{Protocol: unix.IPPROTO_TCP, Unreplied: true}, 0},
	} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			runtime.GC()
			for b.Loop() {
				seen := 0
				if err := host.Do(func() error {
					return Kernel{}.Dump(b.Context(), model.IPv4, tc.filter, func(Entry) error { seen++; return nil })
				}); err != nil {
					b.Fatal(err)
				}
				if seen != tc.want {
					b.Fatalf("got %d entries, want %d", seen, tc.want)
				}
			}
		})
	}
}

// fill makes entries of flows to one cluster IP, every fourth of them UDP.
func fill(b *testing.B, total int) error {
	const ctNew = 1 << 8
	conn, err := nfnetlink.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var requests []nfnetlink.Message
	for i := range total {
		e := flow(netip.AddrPortFrom(clusterIP, servicePort), endpointA)
		e.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}), 1024+uint16(i&0xff))
		if e.Protocol = unix.IPPROTO_TCP; i%4 == 0 {
			e.Protocol = unix.IPPROTO_UDP
		}
		var attributes []byte
		for kind, data := range nfnetlink.Attributes(message(e)) {
			if kind == ctaTupleOrig || kind == ctaTupleReply {
				attributes = nfnetlink.AppendNested(attributes, kind, data)
			}
		}
		const ctaTimeout = 7
		if e.Protocol == unix.IPPROTO_TCP {
			const confirmed, assured = 1 << 3, 1 << 2
			attributes = nfnetlink.AppendAttribute(attributes, ctaStatus, 0, 0, 0, confirmed|assured|statusSeenReply)
		}
		attributes = nfnetlink.AppendAttribute(attributes, ctaTimeout, binary.BigEndian.AppendUint32(nil, 3600)...)
		requests = append(requests, nfnetlink.Message{Type: ctNew, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Family: unix.AF_INET, Attributes: attributes})
	}
	results, err := conn.Do(b.Context(), requests...)
	for i, result := range results {
		if result != nil {
			b.Fatalf("make entry %d: %v", i, result)
		}
	}
	return err
}
