package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Edit is what one program changed in one transaction.
type Edit struct {
	// Process and PID are who did it: the name that the kernel knows the program by, at
	// most 15 bytes, and its process id as the host sees it.
	Process string
	PID     int
	// Chains are those that were made, removed, or had rules added or removed, sorted.
	Chains []ruleset.ChainID
	// Missed says that changes came faster than they could be read: nothing is known
	// about what else was changed, or by whom.
	Missed bool
}

// watchBuffer is how many bytes of notifications the kernel keeps for the agent. A
// transaction of 1,200 chains makes several thousand.
const watchBuffer = 32 << 20

// Watch calls each for every transaction of somebody else that changed the family's
// tables, until the context ends. The kernel tells of them as they happen; while
// nobody changes anything Watch costs nothing. The legacy backend has no such thing,
// and Watch returns nil at once.
func (r *Runner) Watch(ctx context.Context, each func(Edit)) error {
	if r.backend != NFT {
		return nil
	}
	socket, err := openNotifications()
	if err != nil {
		return fmt.Errorf("watch the nft tables: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	collected := transaction{family: r.family, chains: map[ruleset.ChainID]bool{}}
	buffer := make([]byte, 1<<16)
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			clear(collected.chains)
			each(Edit{Missed: true})
			continue
		case err != nil:
			return fmt.Errorf("watch the nft tables: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fmt.Errorf("watch the nft tables: %w", err)
		}
		for _, m := range messages {
			edit, complete := collected.add(m)
			if complete && len(edit.Chains) > 0 && !r.own.isOurs(edit) {
				each(edit)
			}
		}
	}
}

// openNotifications opens a socket on which the kernel tells of changes.
func openNotifications() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer); err != nil {
		// Without CAP_NET_ADMIN in the first user namespace the system's limit holds.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, watchBuffer)
		if err != nil {
			return nil, errors.Join(err, socket.Close())
		}
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// nfHeader is the size of the netfilter header that precedes a message's attributes.
const nfHeader = 4

// transaction collects the notifications of one transaction; the one about the new
// generation of the ruleset is its last.
type transaction struct {
	family model.Family
	chains map[ruleset.ChainID]bool
}

// add takes in a notification, and returns the transaction when it is complete.
func (t *transaction) add(m syscall.NetlinkMessage) (Edit, bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfHeader {
		return Edit{}, false
	}
	attributes := m.Data[nfHeader:]
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		t.touch(m.Data[0], attributes, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		t.touch(m.Data[0], attributes, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	case unix.NFT_MSG_NEWGEN:
		edit := author(attributes)
		edit.Chains = slices.SortedFunc(maps.Keys(t.chains), ruleset.ChainID.Compare)
		clear(t.chains)
		return edit, true
	}
	return Edit{}, false
}

func (t *transaction) touch(family byte, attributes []byte, table, chain uint16) {
	if family != nfprotocol(t.family) {
		return
	}
	var id ruleset.ChainID
	for kind, value := range nfnetlink.Attributes(attributes) {
		switch kind {
		case table:
			id.Table = ruleset.Table(unix.ByteSliceToString(value))
		case chain:
			id.Name = unix.ByteSliceToString(value)
		}
	}
	t.chains[id] = true
}

// author reads who made a generation.
func author(attributes []byte) (e Edit) {
	for kind, value := range nfnetlink.Attributes(attributes) {
		switch {
		case kind == unix.NFTA_GEN_PROC_NAME:
			e.Process = unix.ByteSliceToString(value)
		case kind == unix.NFTA_GEN_PROC_PID && len(value) == 4:
			e.PID = int(binary.BigEndian.Uint32(value))
		}
	}
	return e
}
