package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	Chains []ChainEdit
	// Missed says that changes came faster than they could be read: nothing is known
	// about what else was changed, or by whom.
	Missed bool
}

// ChainEdit is what was done to one chain.
type ChainEdit struct {
	ruleset.ChainID
	// Gone says that the chain was removed.
	Gone bool
	// Added and Removed count rules. A rule that is replaced is one of each.
	Added, Removed int
	// Balance is the sum of hashes of what the added rules say, less that of the removed
	// ones: zero if they were only moved.
	Balance uint64
}

// watchBuffer is how many bytes of notifications the kernel keeps for the agent. A
// transaction of 600 chains makes several thousand.
const watchBuffer = 32 << 20

// Watch calls each for every transaction of somebody else that changed the family's
// tables, until the context ends, and before the first one once with Missed: what went
// before was not heard. The kernel tells of them as they happen; while nobody changes
// anything Watch costs nothing. The legacy backend has no such thing, and Watch returns
// nil at once.
func (r *Runner) Watch(ctx context.Context, each func(Edit)) error {
	if r.backend != NFT {
		return nil
	}
	socket, err := openNotifications(r.notices)
	if err != nil {
		return fmt.Errorf("watch the nft tables: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	r.own.forgetEnded()
	each(Edit{Missed: true})
	collected := newTransaction(r.family, newRuleHasher(r.seed))
	buffer := make([]byte, 1<<16)
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			collected.take()
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

// openNotifications opens a socket on which the kernel tells of changes, and keeps so many
// bytes for it.
func openNotifications(buffer int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		// Without CAP_NET_ADMIN in the first user namespace the system's limit holds.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
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
	chains map[ruleset.ChainID]*chainNotices
	hasher *ruleHasher
}

// chainNotices are the notifications about one chain.
type chainNotices struct {
	ChainEdit
	// inPlace is like Balance, of hashes of the rules with their handles.
	inPlace uint64
}

// isNothing reports whether each rule was replaced in its place by one that says the same.
// So does iptables -Z, which sets counters to zero.
func (c chainNotices) isNothing() bool {
	return !c.Gone && c.Added > 0 && c.Added == c.Removed && c.inPlace == 0
}

func newTransaction(family model.Family, hasher *ruleHasher) *transaction {
	return &transaction{family: family, chains: map[ruleset.ChainID]*chainNotices{}, hasher: hasher}
}

// add takes in a notification, and returns the transaction when it is complete.
func (t *transaction) add(m syscall.NetlinkMessage) (Edit, bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfHeader {
		return Edit{}, false
	}
	attributes := m.Data[nfHeader:]
	if kind := m.Header.Type & 0xff; kind == unix.NFT_MSG_NEWGEN {
		edit := author(attributes)
		edit.Chains = t.take()
		return edit, true
	} else if m.Data[0] == nfprotocol(t.family) {
		t.touch(kind, attributes)
	}
	return Edit{}, false
}

// touch takes in what was done to a chain or to a rule of it.
func (t *transaction) touch(kind uint16, attributes []byte) {
	switch kind {
	case unix.NFT_MSG_NEWCHAIN:
		t.chain(attributes, nftChains)
	case unix.NFT_MSG_DELCHAIN:
		t.chain(attributes, nftChains).Gone = true
	case unix.NFT_MSG_NEWRULE:
		edit := t.chain(attributes, nftRules)
		handle, content := t.hasher.rule(attributes)
		edit.Added++
		edit.Balance += content
		edit.inPlace += t.hasher.join(0, handle, content)
	case unix.NFT_MSG_DELRULE:
		edit := t.chain(attributes, nftRules)
		handle, content := t.hasher.rule(attributes)
		edit.Removed++
		edit.Balance -= content
		edit.inPlace -= t.hasher.join(0, handle, content)
	}
}

// chain returns what is known of the chain that attributes name, or whose rule they are.
func (t *transaction) chain(attributes []byte, object nftObject) *chainNotices {
	name := readNFTName(attributes, object)
	id := ruleset.ChainID{Table: ruleset.Table(name.table), Name: name.name}
	edit := t.chains[id]
	if edit == nil {
		edit = &chainNotices{ChainEdit: ChainEdit{ChainID: id}}
		t.chains[id] = edit
	}
	return edit
}

// take returns the chains that were changed, and forgets all.
func (t *transaction) take() []ChainEdit {
	edits := make([]ChainEdit, 0, len(t.chains))
	for _, edit := range t.chains {
		if !edit.isNothing() {
			edits = append(edits, edit.ChainEdit)
		}
	}
	clear(t.chains)
	slices.SortFunc(edits, func(a, b ChainEdit) int { return a.ChainID.Compare(b.ChainID) })
	return edits
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
