package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The nft backend's tables are asked for by netlink where only names or numbers
// are wanted: iptables-nft reads every rule to list chain names, which takes
// minutes where netlink takes a second, and it can create the tables it looks for.
// The messages are those of linux/netfilter/nf_tables.h.

// nfHeader is the size of the netfilter header that precedes a message's attributes.
const nfHeader = 4

// nftObject is a kind of object that the kernel can list.
type nftObject struct {
	request     uint16
	table, name uint16 // the attributes with the table's and the object's own name
}

var (
	nftTables = nftObject{request: unix.NFT_MSG_GETTABLE, table: unix.NFTA_TABLE_NAME}
	nftChains = nftObject{request: unix.NFT_MSG_GETCHAIN, table: unix.NFTA_CHAIN_TABLE, name: unix.NFTA_CHAIN_NAME}
	nftRules  = nftObject{request: unix.NFT_MSG_GETRULE, table: unix.NFTA_RULE_TABLE}
)

// errDumpChanged says that the tables were changed while they were listed.
var errDumpChanged = errors.New("the tables changed while they were listed")

// errNoNFT says that this kernel has no nft tables.
var errNoNFT = errors.New("no nf_tables in this kernel")

// nftName is what is kept of a listed object: its table, and its own name if it
// has one.
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
	const attempts = 10
	var err error
	for range attempts {
		if err = ctx.Err(); err != nil {
			break
		}
		var names []nftName
		if names, err = nftDumpOnce(fam, query); err == nil {
			return names, nil
		}
		if !errors.Is(err, errDumpChanged) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, fmt.Errorf("list the %v nft tables by netlink: %w", fam, err)
}

func nftDumpOnce(fam model.Family, query nftQuery) ([]nftName, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoNFT
	}
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer unix.Close(fd)
	// The kernel answers a dump as it is read; silence means that something is wrong.
	timeout := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, fmt.Errorf("set a netlink socket's timeout: %w", err)
	}
	if err := unix.Sendto(fd, nftRequest(fam, query.object.request), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send a netlink request: %w", err)
	}
	buf := make([]byte, 1<<16) // the kernel fills at most 32 KiB at a time
	var names []nftName
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, fmt.Errorf("receive a netlink answer: %w", err)
		}
		listed, done, err := nftAnswer(buf[:n], query.object)
		if err != nil {
			return nil, err
		}
		for _, name := range listed {
			if slices.Contains(query.tables, ruleset.Table(name.table)) {
				names = append(names, name)
			}
		}
		if done || query.limit > 0 && len(names) >= query.limit {
			return names, nil
		}
	}
}

// nftRequest is a request for a dump: a netlink header and a netfilter header.
func nftRequest(fam model.Family, message uint16) []byte {
	const length = unix.SizeofNlMsghdr + nfHeader
	b := make([]byte, 0, length)
	b = binary.NativeEndian.AppendUint32(b, length)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES<<8|message)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = binary.NativeEndian.AppendUint32(b, 1) // sequence number
	b = binary.NativeEndian.AppendUint32(b, 0) // port: the kernel's choice
	return append(b, nfprotocol(fam), unix.NFNETLINK_V0, 0, 0)
}

func nfprotocol(fam model.Family) byte {
	if fam == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// nftAnswer reads one datagram of a dump and reports whether it was the last.
func nftAnswer(datagram []byte, object nftObject) (names []nftName, done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return nil, false, fmt.Errorf("parse a netlink answer: %w", err)
	}
	for _, m := range messages {
		if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			return nil, false, errDumpChanged
		}
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return names, true, nil
		case unix.NLMSG_ERROR:
			return nil, false, netlinkError(m.Data)
		}
		names = append(names, readNFTName(m.Data, object))
	}
	return names, false, nil
}

// netlinkError reads the negated errno at the start of an error message.
func netlinkError(data []byte) error {
	if len(data) < 4 {
		return fmt.Errorf("netlink error message of %d bytes", len(data))
	}
	errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(data)))
	if errno == unix.EINVAL || errno == unix.EOPNOTSUPP {
		return errNoNFT // nobody takes messages of this subsystem
	}
	return errno
}

// readNFTName reads the names from an object's attributes, which follow its
// netfilter header.
func readNFTName(data []byte, object nftObject) (n nftName) {
	for kind, value := range nfnetlink.Attributes(data[min(nfHeader, len(data)):]) {
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
