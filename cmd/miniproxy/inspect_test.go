package main

import (
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
)

func TestMovedSince(t *testing.T) {
	last := mark{print: iptables.Fingerprint{Entries: 110, Size: 5000}, entries: 100, writes: 3}
	tests := []struct {
		name string
		now  mark
		want bool
	}{
		{"nothing", last, false},
		{"an entry more", mark{iptables.Fingerprint{Entries: 111, Size: 5100}, 100, 3}, true},
		{"an entry of another size", mark{iptables.Fingerprint{Entries: 110, Size: 5010}, 100, 3}, true},
		{"one's own entry", mark{iptables.Fingerprint{Entries: 111, Size: 5100}, 101, 4}, false},
		{"one's own of another size", mark{iptables.Fingerprint{Entries: 110, Size: 5010}, 100, 4}, false},
		{"somebody else's beside one's own", mark{iptables.Fingerprint{Entries: 112, Size: 5200}, 101, 4}, true},
		{"one's own that somebody took", mark{iptables.Fingerprint{Entries: 110, Size: 5000}, 101, 4}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.now.movedSince(last); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}
