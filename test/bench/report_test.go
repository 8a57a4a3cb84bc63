package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func times(ms ...float64) []time.Duration {
	var all []time.Duration
	for _, m := range ms {
		all = append(all, time.Duration(m*float64(time.Millisecond)))
	}
	return all
}

func TestReport(t *testing.T) {
	kube, mini := rows[0], rows[1]
	values := func(r row, factor int) *result {
		f := float64(factor)
		return &result{
			row: r, starts: times(2000*f, 1000*f, 3000*f), changes: times(10*f, 10*f),
			cpu: time.Duration(factor) * 200 * time.Millisecond, agentPeak: int64(factor) * 50 << 20, agentEnd: int64(factor) * 40 << 20, childPeak: 7 << 20,
			via: times(1 + f), direct: times(1 + 3*f), floor: times(1),
		}
	}
	tests := []struct {
		name    string
		results []*result
		want    []string
	}{
		{
			name:    "values and ratios",
			results: []*result{values(kube, 4), values(mini, 1)},
			want: []string{
				"1000 Services with 10 endpoints each; 3 rounds of 10 changes and 3000 connections; ",
				"| no rules (the floor) |  |  |  |  |  | 1.000 / 1.000 ms |",
				"| kube-proxy-iptables-nft | 8.00 s | 40 / 40 ms | 0.400 s | 200 / 160 / 7 MB | 5.000 / 5.000 ms | 13.000 / 13.000 ms |",
				"| miniproxy-nft | 2.00 s | 10 / 10 ms | 0.100 s | 50 / 40 / 7 MB | 2.000 / 2.000 ms | 4.000 / 4.000 ms |",
				"| miniproxy-nft ÷ kube-proxy-iptables-nft | 0.25 | 0.25 | 0.25 | 0.25 / 0.25 | 0.25 above the floor | 0.25 above the floor |",
			},
		},
		{
			name:    "the other is not ready",
			results: []*result{{row: kube, failure: errors.Join(notReadyError{100 * time.Second})}, values(mini, 1)},
			want: []string{
				"| kube-proxy-iptables-nft | not ready after 100 s |  |  |  |  |  |",
				"| miniproxy-nft ÷ kube-proxy-iptables-nft | < 0.020 |  |  |  |  |  |",
			},
		},
		{
			name:    "the other's connections are at the floor",
			results: []*result{{row: kube, starts: times(1), changes: times(1), via: times(1.01), direct: times(1), floor: times(1)}, values(mini, 1)},
			want:    []string{"| – | – |"},
		},
		{
			name:    "the other is not measured",
			results: []*result{values(mini, 1)},
			want:    []string{"| miniproxy-nft | 2.00 s |"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseFlags(nil)
			if err != nil {
				t.Fatal(err)
			}
			got := report(c, machine{}, tt.results)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("got:\n%s\nwant in it:\n%s", got, want)
				}
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	sample := times(4, 1, 3, 2)
	for q, want := range map[float64]time.Duration{0: times(1)[0], 0.5: times(3)[0], 0.99: times(4)[0], 1: times(4)[0]} {
		if got := quantile(sample, q); got != want {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: got %v, want 0", got)
	}
}

func TestFlags(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string // in the error; empty for none
	}{
		{name: "some modes", args: []string{"-modes=miniproxy-nft,kube-proxy-nftables"}},
		{name: "an unknown mode", args: []string{"-modes=ipvs"}, want: `mode "ipvs"`},
		{name: "no Services", args: []string{"-services=0"}, want: "at least one"},
		{name: "more endpoints than addresses", args: []string{"-services=100000"}, want: "at most"},
		{name: "no rounds", args: []string{"-rounds=0"}, want: "at least 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseFlags(tt.args)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %q in it", err, tt.want)
			}
		})
	}
}
