package iptables

import (
	"encoding/binary"
	"errors"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// message is a netlink message.
func message(kind, flags uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, make([]byte, 8)...)
	return pad(append(b, body...))
}

// attribute is a netlink attribute.
func attribute(kind uint16, value string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return pad(append(b, value...))
}

func pad(b []byte) []byte { return append(b, make([]byte, (4-len(b)%4)%4)...) }

// chainBody is what the kernel sends of a chain, after the netlink header.
func chainBody(table, name string) []byte {
	return slices.Concat(
		[]byte{unix.NFPROTO_IPV4, 0, 0, 0},
		attribute(unix.NFTA_CHAIN_TABLE, table+"\x00"),
		attribute(unix.NFTA_CHAIN_HANDLE, "12345678"),
		attribute(unix.NFTA_CHAIN_NAME, name+"\x00"),
		attribute(0x8000|unix.NFTA_CHAIN_HOOK, "nested"),
	)
}

const newChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN

func TestNFTAnswer(t *testing.T) {
	errno := func(e syscall.Errno) []byte {
		return append(binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))), make([]byte, 16)...)
	}
	tests := []struct {
		name     string
		datagram []byte
		want     []nftName
		done     bool
		err      error
	}{
		{
			name:     "chains, more to come",
			datagram: slices.Concat(message(newChain, 0, chainBody("nat", "KUBE-A")), message(newChain, 0, chainBody("filter", "KUBE-B"))),
			want:     []nftName{{"nat", "KUBE-A"}, {"filter", "KUBE-B"}},
		},
		{
			name:     "the last",
			datagram: slices.Concat(message(newChain, 0, chainBody("nat", "KUBE-A")), message(unix.NLMSG_DONE, 0, make([]byte, 4))),
			want:     []nftName{{"nat", "KUBE-A"}},
			done:     true,
		},
		{
			name:     "changed meanwhile",
			datagram: message(newChain, unix.NLM_F_DUMP_INTR, chainBody("nat", "KUBE-A")),
			err:      errDumpChanged,
		},
		{
			name:     "not permitted",
			datagram: message(unix.NLMSG_ERROR, 0, errno(unix.EPERM)),
			err:      unix.EPERM,
		},
		{
			name:     "no such subsystem",
			datagram: message(unix.NLMSG_ERROR, 0, errno(unix.EINVAL)),
			err:      errNoNFT,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, done, err := nftAnswer(test.datagram, nftChains)
			if !slices.Equal(got, test.want) || done != test.done || !errors.Is(err, test.err) {
				t.Errorf("got %v, %t, %v; want %v, %t, %v", got, done, err, test.want, test.done, test.err)
			}
		})
	}
}

func FuzzNFTAnswer(f *testing.F) {
	f.Add(message(newChain, 0, chainBody("nat", "KUBE-A")))
	f.Add(message(newChain, 0, nil))
	f.Add(message(unix.NLMSG_ERROR, 0, []byte{1}))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		names, _, err := nftAnswer(datagram, nftChains)
		if err != nil && names != nil {
			t.Errorf("got both names %v and error %v", names, err)
		}
	})
}
