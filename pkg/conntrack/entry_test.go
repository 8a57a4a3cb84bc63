package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// message is an entry as the kernel sends it: both tuples, with attributes around
// them that nobody asked for.
func message(e Entry) []byte {
	b := nfnetlink.AppendAttribute(nil, 3, 0, 0, 1, 142) // status
	b = e.appendDelete(b)
	reply := Entry{Protocol: e.Protocol, Source: e.ReplySource, Destination: e.Source}
	for kind, data := range nfnetlink.Attributes(reply.appendDelete(nil)) {
		if kind == ctaTupleOrig {
			b = nfnetlink.AppendNested(b, ctaTupleReply, data)
		}
	}
	return nfnetlink.AppendAttribute(b, 7, 0, 0, 0, 30) // timeout
}

func TestParseEntry(t *testing.T) {
	for _, e := range []Entry{
		{
			Protocol: unix.IPPROTO_UDP, ID: 0xdeadbeef,
			Source:      netip.MustParseAddrPort("10.244.1.50:40000"),
			Destination: netip.MustParseAddrPort("10.96.0.53:53"),
			ReplySource: netip.MustParseAddrPort("10.244.1.10:5353"),
		},
		{
			Protocol: unix.IPPROTO_UDP, ID: 1, Zone: 7,
			Source:      netip.MustParseAddrPort("[fd00:244:1::50]:40000"),
			Destination: netip.MustParseAddrPort("[fd00:96::53]:53"),
			ReplySource: netip.MustParseAddrPort("[fd00:244:1::10]:5353"),
		},
	} {
		if got, ok := parseEntry(message(e)); !ok || got != e {
			t.Errorf("got %+v (complete: %v), want %+v", got, ok, e)
		}
	}
}

func TestParseEntryIncomplete(t *testing.T) {
	whole := message(flow(to(clusterIP, servicePort), endpointA))
	for n := range whole {
		// Cut anywhere, it is either left out or, where only the tail that is not used is
		// gone, whole.
		if e, ok := parseEntry(whole[:n]); ok && e != flow(to(clusterIP, servicePort), endpointA) {
			t.Errorf("cut to %d of %d bytes: got %+v", n, len(whole), e)
		}
	}
}

func TestParseEntryWaiting(t *testing.T) {
	for _, tc := range []struct {
		name     string
		protocol uint16
		state    uint8
		status   uint32
		want     bool
	}{
		{"SYN sent", ctaProtoInfoTCP, tcpSynSent, 0, true},
		{"SYN sent, confirmed and translated", ctaProtoInfoTCP, tcpSynSent, 1<<3 | 1<<5 | 1<<8, true},
		{"answered", ctaProtoInfoTCP, 2, statusSeenReply, false},
		{"both sent a SYN", ctaProtoInfoTCP, tcpSynSent, statusSeenReply, false},
		{"picked up in the middle", ctaProtoInfoTCP, 3, 0, false},
		{"another protocol", 3, tcpSynSent, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state := nfnetlink.AppendAttribute(nil, ctaProtoInfoTCPState, tc.state)
			b := nfnetlink.AppendAttribute(nil, ctaStatus, binary.BigEndian.AppendUint32(nil, tc.status)...)
			b = nfnetlink.AppendNested(b, ctaProtoInfo, nfnetlink.AppendNested(nil, tc.protocol, state))
			if e, _ := parseEntry(b); e.Waiting != tc.want {
				t.Errorf("waiting is %v, want %v", e.Waiting, tc.want)
			}
		})
	}
	if e, _ := parseEntry(nfnetlink.AppendAttribute(nil, ctaStatus, 0, 0, 0, 0)); e.Waiting {
		t.Error("an entry without a state waits")
	}
}

func TestParseEntryZoneOfOneDirection(t *testing.T) {
	zone := nfnetlink.AppendAttribute(nil, ctaTupleZone, binary.BigEndian.AppendUint16(nil, 9)...)
	b := nfnetlink.AppendNested(nil, ctaTupleOrig, zone)
	if e, _ := parseEntry(b); e.Zone != 9 {
		t.Errorf("got zone %d, want 9", e.Zone)
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add(message(flow(to(clusterIP, servicePort), endpointA)))
	f.Add([]byte{4, 0, 1, 128, 8, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseEntry(b)
		if ok && !(e.Source.IsValid() && e.Destination.IsValid() && e.ReplySource.IsValid()) {
			t.Errorf("incomplete entry passed for whole: %+v", e)
		}
	})
}

// The parser runs for every entry of the table: garbage would be proportional to it.
func TestParseEntryDoesNotAllocate(t *testing.T) {
	b := message(flow(to(clusterIP, servicePort), endpointA))
	if got := testing.AllocsPerRun(100, func() { parseEntry(b) }); got != 0 {
		t.Errorf("got %v allocations for an entry, want none", got)
	}
}
