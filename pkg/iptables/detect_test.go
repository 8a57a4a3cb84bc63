package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// fakeHost is what a host says of its backends.
type fakeHost struct {
	programs, hints []Backend
	nft, legacy     int
	err             error
}

func (h fakeHost) usable(_ context.Context, b Backend) (bool, error) {
	return slices.Contains(h.programs, b), nil
}

func (h fakeHost) hinted(_ context.Context, b Backend) (bool, error) {
	return slices.Contains(h.hints, b), h.err
}

func (h fakeHost) rules(_ context.Context, b Backend) (int, error) {
	if b == NFT {
		return h.nft, nil
	}
	return h.legacy, nil
}

func TestChoose(t *testing.T) {
	both := []Backend{NFT, Legacy}
	tests := []struct {
		name    string
		host    fakeHost
		forced  Backend
		want    Backend
		reason  string
		wantErr string
	}{
		{
			name:   "nothing to go by",
			host:   fakeHost{programs: both},
			want:   NFT,
			reason: "nothing speaks for legacy",
		},
		{
			name:   "B-53: hint in nft, and more rules in legacy",
			host:   fakeHost{programs: both, hints: []Backend{NFT}, legacy: 1000},
			want:   NFT,
			reason: "hint chain",
		},
		{
			name:   "B-53: hint in legacy, and more rules in nft",
			host:   fakeHost{programs: both, hints: []Backend{Legacy}, nft: 1000},
			want:   Legacy,
			reason: "hint chain",
		},
		{
			name:   "B-53: hints in both, as a switched host leaves them",
			host:   fakeHost{programs: both, hints: both, legacy: 1000},
			want:   NFT,
			reason: "hint chain",
		},
		{
			name:   "B-53: no hint, more rules in legacy",
			host:   fakeHost{programs: both, nft: 3, legacy: 4},
			want:   Legacy,
			reason: "(legacy 4, nft 3)",
		},
		{
			name:   "no hint, more rules in nft",
			host:   fakeHost{programs: both, nft: 4, legacy: 3},
			want:   NFT,
			reason: "(nft 4, legacy 3)",
		},
		{
			name:   "as many rules in both",
			host:   fakeHost{programs: both, nft: 4, legacy: 4},
			want:   NFT,
			reason: "nothing speaks for legacy",
		},
		{
			name:   "one is not usable",
			host:   fakeHost{programs: []Backend{Legacy}, hints: []Backend{NFT}},
			want:   Legacy,
			reason: "the other one",
		},
		{
			name:   "forced",
			host:   fakeHost{programs: both, hints: []Backend{NFT}},
			forced: Legacy,
			want:   Legacy,
			reason: "configured",
		},
		{
			name:    "forced and not usable",
			host:    fakeHost{programs: []Backend{NFT}},
			forced:  Legacy,
			wantErr: "legacy cannot be used",
		},
		{
			name:    "none usable",
			wantErr: "install iptables",
		},
		{
			name:    "could not look",
			host:    fakeHost{programs: both, err: errors.New("not permitted")},
			wantErr: "not permitted",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := choose(t.Context(), test.host, test.forced)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got %v, %v; want an error with %q", got, err, test.wantErr)
				}
				return
			}
			if err != nil || got.Backend != test.want || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("got %+v, %v; want %s because of %q", got, err, test.want, test.reason)
			}
		})
	}
}

func TestParseBackend(t *testing.T) {
	tests := []struct {
		in      string
		want    Backend
		wantErr bool
	}{
		{in: ""},
		{in: "auto"},
		{in: "nft", want: NFT},
		{in: "legacy", want: Legacy},
		{in: "ipvs", wantErr: true},
	}
	for _, test := range tests {
		t.Run(test.in, func(t *testing.T) {
			if got, err := ParseBackend(test.in); got != test.want || (err != nil) != test.wantErr {
				t.Errorf("got %q, %v; want %q, error %t", got, err, test.want, test.wantErr)
			}
		})
	}
}
