package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The nft backend's tables are asked for by netlink where only names or numbers
// are wanted: iptables-nft reads every rule to list chain names, which takes
// minutes where netlink takes a second, and it can create the tables it looks for.
// The messages are those of linux/netfilter/nf_tables.h.

// nftObject is a kind of object that the kernel can list.
type nftObject struct {
	request     uint16
	table, name uint16 // the attributes with the table's and the object's name, or its chain's
}

var (
	nftTables = nftObject{request: unix.NFT_MSG_GETTABLE, table: unix.NFTA_TABLE_NAME}
	nftChains = nftObject{request: unix.NFT_MSG_GETCHAIN, table: unix.NFTA_CHAIN_TABLE, name: unix.NFTA_CHAIN_NAME}
	nftRules  = nftObject{request: unix.NFT_MSG_GETRULE, table: unix.NFTA_RULE_TABLE, name: unix.NFTA_RULE_CHAIN}
)

// errNoNFT says that this kernel has no nft tables.
var errNoNFT = errors.New("no nf_tables in this kernel")

// nftName is what is kept of a listed object: its table, and its own name, or that of
// the chain that it is in.
type nftName struct{ table, name string }

// nftQuery says what to list.
type nftQuery struct {
	object nftObject
	// tables are those whose objects are wanted.
	tables []ruleset.Table
	// limit ends the list early, 0 for never. The time to list rules grows with
	// their square: half a minute for 300,000.
	limit int
}

// nftDump lists objects of a family's tables.
func nftDump(ctx context.Context, fam model.Family, query nftQuery) ([]nftName, error) {
	var names []nftName
	err := retryInterrupted(func() (err error) {
		names, err = nftDumpOnce(ctx, fam, query)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the %v nft tables by netlink: %w", fam, err)
	}
	return names, nil
}

// retryInterrupted looks again, a few times, if a look was interrupted by somebody's change
// of the tables, or by a signal: what it did not see may be there.
func retryInterrupted(look func() error) (err error) {
	const attempts = 10
	for range attempts {
		if err = look(); !errors.Is(err, nfnetlink.ErrInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// errEnough ends a list early.
var errEnough = errors.New("listed enough")

func nftDumpOnce(ctx context.Context, fam model.Family, query nftQuery) (names []nftName, err error) {
	conn, err := nfnetlink.Dial()
	if err != nil {
		return nil, withoutNFT(err)
	}
	defer conn.Close()
	err = conn.Dump(ctx, nftRequest(fam, query.object.request), func(m nfnetlink.Message) error {
		if name := readNFTName(m.Attributes, query.object); slices.Contains(query.tables, ruleset.Table(name.table)) {
			names = append(names, name)
		}
		if query.limit > 0 && len(names) >= query.limit {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, withoutNFT(err)
	}
	return names, nil
}

// nftRequest is a message to the kernel's nf_tables about one IP family.
func nftRequest(fam model.Family, command uint16) nfnetlink.Message {
	return nftMessage(nfprotocol(fam), command)
}

// nftMessage is a message to the kernel's nf_tables.
func nftMessage(protocol byte, command uint16) nfnetlink.Message {
	return nfnetlink.Message{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | command, Family: protocol}
}

func nfprotocol(fam model.Family) byte {
	if fam == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// withoutNFT adds errNoNFT to an error that means that nobody takes messages of this
// subsystem.
func withoutNFT(err error) error {
	for _, number := range []error{unix.EPROTONOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP} {
		if errors.Is(err, number) {
			return fmt.Errorf("%w: %w", errNoNFT, err)
		}
	}
	return err
}

// readNFTName reads the names from an object's attributes.
func readNFTName(attributes []byte, object nftObject) (n nftName) {
	for kind, value := range nfnetlink.Attributes(attributes) {
		switch kind {
		case object.table:
			n.table = unix.ByteSliceToString(value)
		case object.name:
			n.name = unix.ByteSliceToString(value)
		}
	}
	return n
}

// nftChainNames lists the chains of one table.
func nftChainNames(ctx context.Context, fam model.Family, table ruleset.Table) ([]string, error) {
	chains, err := nftDump(ctx, fam, nftQuery{object: nftChains, tables: []ruleset.Table{table}})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(chains))
	for i, c := range chains {
		names[i] = c.name
	}
	return names, nil
}
