package trace_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// Protocol numbers and message types, see the IANA registries.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// magic marks the payload of a test's packets; the packet's number follows it.
var magic = []byte("mptrace!")

// payloadLen is the length of magic and number.
const payloadLen = 12

// build makes an IP packet with a number in its payload. A TCP packet opens a
// connection, or belongs to none if its state is Invalid.
func build(p trace.Packet, number uint32) []byte {
	payload := binary.BigEndian.AppendUint32(bytes.Clone(magic), number)
	protocol, segment := byte(0), []byte(nil)
	sumAt := 0
	switch p.Protocol {
	case "udp":
		protocol, sumAt = protoUDP, 6
		segment = binary.BigEndian.AppendUint16(nil, p.SourcePort)
		segment = binary.BigEndian.AppendUint16(segment, p.DestinationPort)
		segment = binary.BigEndian.AppendUint16(segment, uint16(8+len(payload)))
		segment = append(segment, 0, 0)
	case "tcp":
		protocol, sumAt = protoTCP, 16
		flags, ack := byte(tcpSYN), uint32(0)
		if p.State == ruleset.Invalid {
			flags, ack = tcpACK, resetNumber(number)
		}
		segment = binary.BigEndian.AppendUint16(nil, p.SourcePort)
		segment = binary.BigEndian.AppendUint16(segment, p.DestinationPort)
		segment = binary.BigEndian.AppendUint32(segment, number)
		segment = binary.BigEndian.AppendUint32(segment, ack)
		segment = append(segment, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	case "icmp", "ipv6-icmp":
		protocol, sumAt = protoICMP, 2
		kind := byte(8) // echo request
		if p.Protocol == "ipv6-icmp" {
			protocol, kind = protoICMPv6, 128
		}
		segment = []byte{kind, 0, 0, 0, byte(number >> 8), byte(number), 0, 0}
	}
	segment = append(segment, payload...)
	var pseudo uint32
	if protocol != protoICMP {
		pseudo = sum(p.Source.AsSlice()) + sum(p.Destination.AsSlice()) + uint32(protocol) + uint32(len(segment))
	}
	binary.BigEndian.PutUint16(segment[sumAt:], checksum(pseudo+sum(segment)))
	return append(header(p, protocol, len(segment)), segment...)
}

// header makes the IP header.
func header(p trace.Packet, protocol byte, length int) []byte {
	if p.Source.Is6() {
		h := []byte{6 << 4, 0, 0, 0, byte(length >> 8), byte(length), protocol, 64}
		return append(append(h, p.Source.AsSlice()...), p.Destination.AsSlice()...)
	}
	length += 20
	h := []byte{4<<4 | 5, 0, byte(length >> 8), byte(length), 0, 0, 0, 0, 64, protocol, 0, 0}
	h = append(append(h, p.Source.AsSlice()...), p.Destination.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(sum(h)))
	return h
}

// resetNumber is the sequence number by which a RST answers a numbered segment.
func resetNumber(number uint32) uint32 { return number + 1 + payloadLen }

// sum and checksum are the Internet checksum, RFC 1071.
func sum(b []byte) uint32 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	return s
}

func checksum(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// sight is a numbered packet, or an answer to one, as it was seen somewhere.
type sight struct {
	number   uint32
	rejected bool
	// from and to are the addresses and the destination port; to has no address
	// where the kernel does not tell it.
	from netip.Addr
	to   netip.AddrPort
}

// parseIP reads a packet with its IP header. It reports false for one that is
// neither a numbered packet nor the answer of a REJECT.
func parseIP(b []byte) (sight, bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		s, ok := parseSegment(b[9], b[int(b[0]&15)*4:])
		s.from = netip.AddrFrom4([4]byte(b[12:16]))
		s.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), s.to.Port())
		return s, ok
	case len(b) >= 40 && b[0]>>4 == 6:
		s, ok := parseSegment(b[6], b[40:])
		s.from = netip.AddrFrom16([16]byte(b[8:24]))
		s.to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])), s.to.Port())
		return s, ok
	}
	return sight{}, false
}

// parseSegment reads what follows the IP header.
func parseSegment(protocol byte, b []byte) (sight, bool) {
	if len(b) < 8 {
		return sight{}, false
	}
	if protocol == protoTCP && len(b) >= 20 && b[13]&tcpRST != 0 {
		answer := binary.BigEndian.Uint32(b[4:8])
		if b[13]&tcpACK != 0 {
			answer = binary.BigEndian.Uint32(b[8:12])
		}
		return sight{number: answer - resetNumber(0), rejected: true}, true
	}
	at := bytes.Index(b, magic)
	if at < 0 || at+payloadLen > len(b) {
		return sight{}, false
	}
	s := sight{number: binary.BigEndian.Uint32(b[at+len(magic):])}
	switch {
	case protocol == protoTCP || protocol == protoUDP:
		s.to = netip.AddrPortFrom(netip.Addr{}, binary.BigEndian.Uint16(b[2:4]))
		return s, true
	case protocol == protoICMP && b[0] == 3, protocol == protoICMPv6 && b[0] == 1: // unreachable
		s.rejected = true
		return s, true
	}
	// Echo requests are packets of ours; replies are of the host's own accord.
	return s, protocol == protoICMP && b[0] == 8 || protocol == protoICMPv6 && b[0] == 128
}
