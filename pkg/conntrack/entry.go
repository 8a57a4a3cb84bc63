package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// Entry is what is used of one entry of the kernel's connection table.
type Entry struct {
	// Protocol is the transport protocol's number, such as unix.IPPROTO_UDP.
	Protocol uint8
	// Source and Destination are what the client's packets carry: the addresses
	// before any translation.
	Source, Destination netip.AddrPort
	// ReplySource is who answers: after a DNAT its target, otherwise Destination.
	ReplySource netip.AddrPort
	// ID tells this entry from a later one with the same addresses.
	ID uint32
	// Zone is not 0 for entries that a CT target or another datapath keeps apart.
	Zone uint16
	// Waiting says that this is a TCP connection whose SYN nobody has answered.
	Waiting bool
}

// isTranslated reports whether the connection's destination was rewritten.
func (e Entry) isTranslated() bool { return e.ReplySource != e.Destination }

// Attribute types of linux/netfilter/nfnetlink_conntrack.h, and values in them.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1

	ctaFilterOrigFlags = 1
	filterProtoNum     = 1 << 3

	// statusSeenReply is IPS_SEEN_REPLY of linux/netfilter/nf_conntrack_common.h,
	// tcpSynSent is TCP_CONNTRACK_SYN_SENT of nf_conntrack_tcp.h.
	statusSeenReply = 1 << 1
	tcpSynSent      = 1
)

// tuple is one direction of an entry.
type tuple struct {
	protocol         uint8
	source, dest     netip.Addr
	sourcePort, port uint16
	zone             uint16
}

// parseEntry reads an entry from a message's attributes; false for one that is not
// complete, such as an entry of a protocol without ports.
func parseEntry(attributes []byte) (Entry, bool) {
	var orig, reply tuple
	var e Entry
	var status uint32
	var state uint8
	for kind, data := range nfnetlink.Attributes(attributes) {
		switch kind {
		case ctaTupleOrig:
			orig = parseTuple(data)
		case ctaTupleReply:
			reply = parseTuple(data)
		case ctaStatus:
			status = bigUint32(data)
		case ctaProtoInfo:
			state = parseTCPState(data)
		case ctaID:
			e.ID = bigUint32(data)
		case ctaZone:
			e.Zone = bigUint16(data)
		}
	}
	e.Protocol = orig.protocol
	e.Source = netip.AddrPortFrom(orig.source, orig.sourcePort)
	e.Destination = netip.AddrPortFrom(orig.dest, orig.port)
	e.ReplySource = netip.AddrPortFrom(reply.source, reply.sourcePort)
	// A zone of one direction only is told in that direction's tuple.
	e.Zone |= orig.zone | reply.zone
	e.Waiting = state == tcpSynSent && status&statusSeenReply == 0
	return e, e.Source.IsValid() && e.Destination.IsValid() && e.ReplySource.IsValid()
}

// parseTCPState returns the state of a TCP connection, 0 for anything else.
func parseTCPState(b []byte) uint8 {
	for protocol, info := range nfnetlink.Attributes(b) {
		if protocol != ctaProtoInfoTCP {
			continue
		}
		for kind, value := range nfnetlink.Attributes(info) {
			if kind == ctaProtoInfoTCPState && len(value) > 0 {
				return value[0]
			}
		}
	}
	return 0
}

func parseTuple(b []byte) tuple {
	var t tuple
	for kind, data := range nfnetlink.Attributes(b) {
		switch kind {
		case ctaTupleIP:
			for kind, addr := range nfnetlink.Attributes(data) {
				switch kind {
				case ctaIPv4Src, ctaIPv6Src:
					t.source, _ = netip.AddrFromSlice(addr)
				case ctaIPv4Dst, ctaIPv6Dst:
					t.dest, _ = netip.AddrFromSlice(addr)
				}
			}
		case ctaTupleProto:
			for kind, value := range nfnetlink.Attributes(data) {
				switch {
				case kind == ctaProtoNum && len(value) > 0:
					t.protocol = value[0]
				case kind == ctaProtoSrcPort:
					t.sourcePort = bigUint16(value)
				case kind == ctaProtoDstPort:
					t.port = bigUint16(value)
				}
			}
		case ctaTupleZone:
			t.zone = bigUint16(data)
		}
	}
	return t
}

// appendDelete appends the attributes that name exactly this entry.
func (e Entry) appendDelete(b []byte) []byte {
	src, dst := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if e.Source.Addr().Is6() {
		src, dst = ctaIPv6Src, ctaIPv6Dst
	}
	var ip, proto, tuple []byte
	ip = nfnetlink.AppendAttribute(ip, src, e.Source.Addr().AsSlice()...)
	ip = nfnetlink.AppendAttribute(ip, dst, e.Destination.Addr().AsSlice()...)
	proto = nfnetlink.AppendAttribute(proto, ctaProtoNum, e.Protocol)
	proto = nfnetlink.AppendAttribute(proto, ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, e.Source.Port())...)
	proto = nfnetlink.AppendAttribute(proto, ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, e.Destination.Port())...)
	tuple = nfnetlink.AppendNested(tuple, ctaTupleIP, ip)
	tuple = nfnetlink.AppendNested(tuple, ctaTupleProto, proto)
	b = nfnetlink.AppendNested(b, ctaTupleOrig, tuple)
	b = nfnetlink.AppendAttribute(b, ctaID, binary.BigEndian.AppendUint32(nil, e.ID)...)
	if e.Zone != 0 {
		b = nfnetlink.AppendAttribute(b, ctaZone, binary.BigEndian.AppendUint16(nil, e.Zone)...)
	}
	return b
}

// Filter says which entries a dump is about.
type Filter struct {
	// Protocol is the transport protocol's number.
	Protocol uint8
	// Unreplied lets the kernel leave out connections that an answer was seen to. It
	// saves work and promises nothing: kernels before Linux 5.15 send them.
	Unreplied bool
}

// append appends the attributes that have a dump leave out what the filter is not
// about (Linux 5.8; older kernels send everything).
func (f Filter) append(b []byte) []byte {
	flags := nfnetlink.AppendAttribute(nil, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtoNum)...)
	proto := nfnetlink.AppendAttribute(nil, ctaProtoNum, f.Protocol)
	b = nfnetlink.AppendNested(b, ctaFilter, flags)
	b = nfnetlink.AppendNested(b, ctaTupleOrig, nfnetlink.AppendNested(nil, ctaTupleProto, proto))
	if f.Unreplied {
		b = nfnetlink.AppendAttribute(b, ctaStatus, 0, 0, 0, 0)
		b = nfnetlink.AppendAttribute(b, ctaStatusMask, 0, 0, 0, statusSeenReply)
	}
	return b
}

// addressFamily is the number by which the kernel knows the family of an address.
func addressFamily(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func bigUint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func bigUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
