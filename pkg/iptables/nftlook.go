package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// NFTLook is a connection for many small looks at the nft tables of one family. It is
// not for concurrent use.
type NFTLook struct {
	family model.Family
	conn   *nfnetlink.Conn
	hasher *ruleHasher
	// attributes and name are buffers for requests: there are 100,000 in one go.
	attributes, name []byte
}

// LookNFT opens a connection. The Runner must be one of the nft backend.
func (r *Runner) LookNFT() (*NFTLook, error) {
	conn, err := nfnetlink.Dial()
	if err != nil {
		return nil, fmt.Errorf("look at the %v nft tables: %w", r.family, withoutNFT(err))
	}
	return &NFTLook{family: r.family, conn: conn, hasher: newRuleHasher(r.seed)}, nil
}

// Close closes the connection.
func (l *NFTLook) Close() error { return l.conn.Close() }

// Generation is the number of the ruleset, of all families: every transaction of
// anybody in the network namespace makes it another one.
func (l *NFTLook) Generation() (uint32, error) {
	var generation uint32
	err := l.conn.Get(nftRequest(l.family, unix.NFT_MSG_GETGEN), func(m nfnetlink.Message) error {
		for kind, value := range nfnetlink.Attributes(m.Attributes) {
			if kind == unix.NFTA_GEN_ID && len(value) == 4 {
				generation = binary.BigEndian.Uint32(value)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the nft tables: %w", withoutNFT(err))
	}
	return generation, nil
}

// ChainState is what a chain looks like in the kernel, without what its rules say.
type ChainState struct {
	Exists bool
	// Rules is how many there are.
	Rules int
	// InARow says that the rules were added one right after the other, as those of a
	// chain are that one transaction wrote: the kernel counts up in each table, and a
	// rule keeps its number, also when it is replaced.
	InARow bool
	// Hash changes with any change of the rules and of their order. It is to be compared
	// with those that the same Runner's looks tell.
	Hash uint64
}

// Chain looks at a chain. That takes as long as its own rules do, some ten microseconds,
// however many there are beside them: to list the rules of a whole table takes time with
// their square.
func (l *NFTLook) Chain(ctx context.Context, id ruleset.ChainID) (ChainState, error) {
	request := l.about(unix.NFT_MSG_GETRULE, id, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	var state ChainState
	err := retryInterrupted(func() error {
		var last uint64
		state = ChainState{Exists: true, InARow: true}
		return l.conn.Dump(ctx, request, func(m nfnetlink.Message) error {
			handle, content := l.hasher.rule(m.Attributes)
			state.InARow = state.InARow && (state.Rules == 0 || handle == last+1)
			state.Hash = l.hasher.join(state.Hash, handle, content)
			last = handle
			state.Rules++
			return nil
		})
	})
	if err == nil && state.Rules == 0 {
		// One that does not exist has no rules either.
		state.Exists, err = l.hasChain(id)
	}
	if errors.Is(err, unix.ENOENT) {
		return ChainState{}, nil // not even the table is there
	}
	return state, wrapLook(err, l.family, id)
}

func (l *NFTLook) hasChain(id ruleset.ChainID) (bool, error) {
	request := l.about(unix.NFT_MSG_GETCHAIN, id, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	err := l.conn.Get(request, func(nfnetlink.Message) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func wrapLook(err error, family model.Family, id ruleset.ChainID) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("look at %v chain %v: %w", family, id, err)
}

// about is a request about a chain. It is good until the next one is made.
func (l *NFTLook) about(command uint16, id ruleset.ChainID, table, chain uint16) nfnetlink.Message {
	l.attributes = l.appendName(l.attributes[:0], table, string(id.Table))
	l.attributes = l.appendName(l.attributes, chain, id.Name)
	request := nftRequest(l.family, command)
	request.Attributes = l.attributes
	return request
}

func (l *NFTLook) appendName(b []byte, kind uint16, name string) []byte {
	l.name = append(append(l.name[:0], name...), 0)
	return nfnetlink.AppendAttribute(b, kind, l.name...)
}
