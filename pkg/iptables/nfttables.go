package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// NFTTable is a table of the kernel's nf_tables. iptables-nft sees those of the
// families ip and ip6 that have the names of its own.
type NFTTable struct {
	// Family is as nft(8) spells it: ip, ip6, inet, arp, bridge or netdev.
	Family string
	Name   string
}

// String returns such as "inet firewalld".
func (t NFTTable) String() string { return t.Family + " " + t.Name }

// IsIPTables reports whether it is one of the tables that iptables-nft shows.
func (t NFTTable) IsIPTables() bool {
	isShared := slices.ContainsFunc(sharedTables, func(name ruleset.Table) bool { return string(name) == t.Name })
	return isShared && (t.Family == "ip" || t.Family == "ip6")
}

// nftFamilies are the families of nf_tables by their numbers.
var nftFamilies = map[uint8]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// NFTTables lists all tables of nf_tables, of every family; none on a kernel that has
// no nf_tables.
func NFTTables(ctx context.Context) ([]NFTTable, error) {
	conn, err := nfnetlink.Dial()
	if err != nil {
		return nil, fmt.Errorf("list the nft tables: %w", err)
	}
	defer conn.Close()
	var tables []NFTTable
	err = retryInterrupted(func() error {
		tables = nil
		return conn.Dump(ctx, nftMessage(unix.NFPROTO_UNSPEC, nftTables.request), func(m nfnetlink.Message) error {
			tables = append(tables, NFTTable{Family: nftFamilies[m.Family], Name: readNFTName(m.Attributes, nftTables).table})
			return nil
		})
	})
	if err = withoutNFT(err); errors.Is(err, errNoNFT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the nft tables: %w", err)
	}
	slices.SortFunc(tables, func(a, b NFTTable) int { return strings.Compare(a.String(), b.String()) })
	return tables, nil
}
