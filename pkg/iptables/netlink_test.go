package iptables

import (
	"errors"
	"fmt"
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

// A look that was interrupted is repeated, but not for ever; any other error is the end.
func TestRetryInterrupted(t *testing.T) {
	interrupted := fmt.Errorf("dump: %w", nfnetlink.ErrInterrupted)
	tests := []struct {
		name  string
		errs  []error // of the first looks; the last one is that of all others
		want  error
		looks int
	}{
		{"at once", []error{nil}, nil, 1},
		{"at the third time", []error{interrupted, unix.EINTR, nil}, nil, 3},
		{"never", []error{interrupted}, nfnetlink.ErrInterrupted, 10},
		{"not permitted", []error{interrupted, unix.EPERM, nil}, unix.EPERM, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			looks := 0
			err := retryInterrupted(func() error {
				looks++
				return tt.errs[min(looks, len(tt.errs))-1]
			})
			if !errors.Is(err, tt.want) || looks != tt.looks {
				t.Errorf("got %v after %d looks, want %v after %d", err, looks, tt.want, tt.looks)
			}
		})
	}
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
