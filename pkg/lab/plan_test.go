package lab

import (
	"net/netip"
	"slices"
	"testing"
)

func TestPodAddrs(t *testing.T) {
	tests := []struct {
		name   string
		number int
		want   []string
	}{
		{"gateway", 1, []string{"10.244.1.1", "fd00:244:1::1"}},
		{"two digits", 11, []string{"10.244.1.11", "fd00:244:1::11"}},
		{"three digits", 254, []string{"10.244.1.254", "fd00:244:1::254"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want []netip.Addr
			for _, text := range tt.want {
				want = append(want, netip.MustParseAddr(text))
			}
			if got := DefaultPlan().Nodes[0].PodAddrs(tt.number); !slices.Equal(got, want) {
				t.Errorf("PodAddrs(%d) = %v, want %v", tt.number, got, want)
			}
		})
	}
}

func TestIPv4Only(t *testing.T) {
	plan := DefaultPlan()
	v4 := plan.IPv4Only()
	lists := [][]netip.Prefix{v4.Client, v4.Gateway, v4.Virtual}
	for _, n := range v4.Nodes {
		lists = append(lists, n.Addrs, n.PodCIDRs)
	}
	for _, list := range lists {
		if len(list) == 0 {
			t.Errorf("a list of %v lost its IPv4 addresses too", v4)
		}
		for _, p := range list {
			if p.Addr().Is6() {
				t.Errorf("IPv4Only kept %v", p)
			}
		}
	}
	if got := len(plan.Nodes[0].Addrs); got != 2 {
		t.Errorf("the plan itself was changed: n1 has %d addresses, want 2", got)
	}
}
