package main

import (
	"fmt"
	"slices"
)

// row is one program in one mode: a row of the table.
type row struct {
	name      string
	miniproxy bool
	// backend is what iptables means on its node: nft or legacy.
	backend string
	args    []string
	// against are the rows that it stands against.
	against []string
}

// rows in the order that they are measured in.
var rows = []row{
	{
		name: "kube-proxy-iptables-nft", backend: "nft",
		args: []string{"--proxy-mode=iptables"},
	},
	{
		name: "miniproxy-nft", backend: "nft", miniproxy: true,
		args:    []string{"run", "--iptables-backend=nft"},
		against: []string{"kube-proxy-iptables-nft", "kube-proxy-nftables"},
	},
	{
		name: "kube-proxy-nftables", backend: "nft",
		args: []string{"--proxy-mode=nftables"},
	},
	{
		name: "kube-proxy-iptables-legacy", backend: "legacy",
		args: []string{"--proxy-mode=iptables"},
	},
	{
		name: "miniproxy-legacy", backend: "legacy", miniproxy: true,
		args:    []string{"run", "--iptables-backend=legacy"},
		against: []string{"kube-proxy-iptables-legacy"},
	},
}

// commonArgs are the arguments of every program. The machine's conntrack table is not
// ours to resize; everything else is as it comes.
func commonArgs(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + nodeName,
		"--cluster-cidr=" + podRange.String(),
		"--conntrack-max-per-core=0",
		"--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s",
		"--conntrack-tcp-timeout-close-wait=0s",
	}
}

func rowNames() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// findRows returns the rows of the given names, in the order of rows.
func findRows(names []string) ([]row, error) {
	for _, name := range names {
		if !slices.Contains(rowNames(), name) {
			return nil, fmt.Errorf("mode %q: want some of %v", name, rowNames())
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !slices.Contains(names, r.name) }), nil
}
