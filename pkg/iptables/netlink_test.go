package iptables

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// chainAttributes are what the kernel sends of a chain.
func chainAttributes(table, name string) []byte {
	return slices.Concat(
		nfnetlink.AppendAttribute(nil, unix.NFTA_CHAIN_TABLE, append([]byte(table), 0)...),
		nfnetlink.AppendAttribute(nil, unix.NFTA_CHAIN_HANDLE, []byte("12345678")...),
		nfnetlink.AppendAttribute(nil, unix.NFTA_CHAIN_NAME, append([]byte(name), 0)...),
		nfnetlink.AppendNested(nil, unix.NFTA_CHAIN_HOOK, []byte("nested")),
	)
}

func TestReadNFTName(t *testing.T) {
	chain := chainAttributes("nat", "KUBE-A")
	tests := []struct {
		name       string
		attributes []byte
		object     nftObject
		want       nftName
	}{
		{"a chain", chain, nftChains, nftName{"nat", "KUBE-A"}},
		{"what has no name", chain, nftTables, nftName{table: "nat"}},
		{"cut off", chain[:len(chain)-24], nftChains, nftName{table: "nat"}},
		{"nothing", nil, nftChains, nftName{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := readNFTName(tt.attributes, tt.object); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func FuzzReadNFTName(f *testing.F) {
	f.Add(chainAttributes("nat", "KUBE-A"))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, attributes []byte) {
		if n := readNFTName(attributes, nftChains); len(n.table)+len(n.name) > len(attributes) {
			t.Errorf("read %+v from %d bytes", n, len(attributes))
		}
	})
}

// TestWithoutNFT tells a kernel without nf_tables from one that refuses.
func TestWithoutNFT(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPROTONOSUPPORT:        true,
		unix.EINVAL:                 true,
		unix.EOPNOTSUPP:             true,
		unix.EPERM:                  false,
		nfnetlink.ErrInterrupted:    false,
		errors.New("anything else"): false,
	} {
		if got := errors.Is(withoutNFT(err), errNoNFT); got != want {
			t.Errorf("%v means no nf_tables: got %t, want %t", err, got, want)
		}
	}
}
