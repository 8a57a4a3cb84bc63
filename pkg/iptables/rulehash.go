package iptables

import (
	"encoding/binary"
	"hash/maphash"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// ruleHasher tells nft rules apart by what the kernel says of them. Only hashes of one
// seed can be compared. It is not for concurrent use.
type ruleHasher struct {
	hash maphash.Hash
}

func newRuleHasher(seed maphash.Seed) *ruleHasher {
	h := &ruleHasher{}
	h.hash.SetSeed(seed)
	return h
}

// rule returns a rule's handle, and a hash of what it says and does.
func (h *ruleHasher) rule(attributes []byte) (handle, content uint64) {
	h.hash.Reset()
	for kind, value := range nfnetlink.Attributes(attributes) {
		switch kind {
		case unix.NFTA_RULE_HANDLE:
			if len(value) == 8 {
				handle = binary.BigEndian.Uint64(value)
			}
		case unix.NFTA_RULE_USERDATA: // the comment
			h.hash.Write(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, expression := range nfnetlink.Attributes(value) {
				h.expression(expression)
			}
		}
	}
	return handle, h.hash.Sum64()
}

// expression takes in a part of a rule, unless it is one that packets change.
func (h *ruleHasher) expression(attributes []byte) {
	for kind, value := range nfnetlink.Attributes(attributes) {
		if kind == unix.NFTA_EXPR_NAME {
			switch unix.ByteSliceToString(value) {
			case "counter", "quota", "last":
				return
			}
		}
		h.hash.Write(value)
	}
}

// join returns the hash of a chain that goes on with a rule.
func (h *ruleHasher) join(chain, handle, content uint64) uint64 {
	var b [24]byte
	binary.NativeEndian.PutUint64(b[:], chain)
	binary.NativeEndian.PutUint64(b[8:], handle)
	binary.NativeEndian.PutUint64(b[16:], content)
	h.hash.Reset()
	h.hash.Write(b[:])
	return h.hash.Sum64()
}
