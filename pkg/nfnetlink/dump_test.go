package nfnetlink

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// part is one message of an answer to request 7.
func part(kind, flags uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(headerSize+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, 7)
	b = append(append(b, 0, 0, 0, 0), body...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// entry is one entry of a table.
func entry(flags uint16, name string) []byte {
	return part(acctGet, flags, append([]byte{unix.AF_INET, 0, 0, 0}, AppendAttribute(nil, 1, append([]byte(name), 0)...)...))
}

func errno(e unix.Errno) []byte {
	return append(binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))), make([]byte, 16)...)
}

func TestDumpReadsPackets(t *testing.T) {
	other := entry(0, "of another request")
	binary.NativeEndian.PutUint32(other[8:], 6)
	done := part(unix.NLMSG_DONE, 0, make([]byte, 4))
	tests := []struct {
		name   string
		packet []byte
		want   []string
		done   bool
		err    error
	}{
		{"entries, more to come", slices.Concat(entry(0, "a"), entry(0, "b")), []string{"a", "b"}, false, nil},
		{"the last", slices.Concat(entry(0, "a"), done), []string{"a"}, true, nil},
		{"changed meanwhile", slices.Concat(entry(unix.NLM_F_DUMP_INTR, "a"), entry(0, "b"), done), []string{"a", "b"}, true, ErrInterrupted},
		{"changed at the end", slices.Concat(entry(0, "a"), part(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, make([]byte, 4))), []string{"a"}, true, ErrInterrupted},
		{"not permitted", part(unix.NLMSG_ERROR, 0, errno(unix.EPERM)), nil, true, unix.EPERM},
		{"an error at the end", part(unix.NLMSG_DONE, 0, errno(unix.ENOENT)), nil, true, unix.ENOENT},
		{"another request's", slices.Concat(other, entry(0, "a")), []string{"a"}, false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			d := dump{seq: 7, each: func(m Message) error { got = append(got, nameOf(m)); return nil }}
			ended, err := eachMessage(tt.packet, d.add)
			if !slices.Equal(got, tt.want) || ended != tt.done || !errors.Is(err, tt.err) {
				t.Errorf("got %v, %t, %v; want %v, %t, %v", got, ended, err, tt.want, tt.done, tt.err)
			}
		})
	}
}

func FuzzDumpPacket(f *testing.F) {
	f.Add(entry(0, "a"))
	f.Add(part(unix.NLMSG_ERROR, 0, []byte{1}))
	f.Add(part(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, nil))
	f.Fuzz(func(t *testing.T, packet []byte) {
		d := dump{seq: 7, each: func(m Message) error {
			for _, value := range Attributes(m.Attributes) {
				if len(value) > len(packet) {
					t.Errorf("attribute of %d bytes in a packet of %d", len(value), len(packet))
				}
			}
			return nil
		}}
		if done, err := eachMessage(packet, d.add); err != nil && !done && len(packet) < headerSize {
			t.Errorf("got %v for a packet without a message", err)
		}
	})
}
