package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// Commands of the conntrack subsystem (NFNL_SUBSYS_CTNETLINK in the high byte).
const (
	ctGet    = 1<<8 | 1
	ctDelete = 1<<8 | 2
)

// Kernel is the connection table of the network namespace of the calling thread.
// It needs CAP_NET_ADMIN there.
type Kernel struct{}

// Dump calls each with every entry of the family that the filter lets through. It
// holds one entry at a time. nfnetlink.ErrInterrupted says that some may be missing.
func (Kernel) Dump(ctx context.Context, fam model.Family, filter Filter, each func(Entry) error) error {
	err := dump(ctx, fam, filter.Protocol, filter.append(nil), each)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		// A kernel that knows filters, but not this one, says so before the first entry.
		err = dump(ctx, fam, filter.Protocol, nil, each)
	}
	if err != nil {
		return fmt.Errorf("read conntrack table: %w", err)
	}
	return nil
}

func dump(ctx context.Context, fam model.Family, protocol uint8, filter []byte, each func(Entry) error) (err error) {
	conn, err := nfnetlink.Dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	family := uint8(unix.AF_INET)
	if fam == model.IPv6 {
		family = unix.AF_INET6
	}
	request := nfnetlink.Message{Type: ctGet, Family: family, Attributes: filter}
	return conn.Dump(ctx, request, func(m nfnetlink.Message) error {
		if e, ok := parseEntry(m.Attributes); ok && e.Protocol == protocol && m.Family == family {
			return each(e)
		}
		return nil
	})
}

// Delete deletes exactly these entries and returns how many of them were still
// there.
func (Kernel) Delete(ctx context.Context, entries []Entry) (deleted int, err error) {
	conn, err := nfnetlink.Dial()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	requests := make([]nfnetlink.Message, len(entries))
	for i, e := range entries {
		requests[i] = nfnetlink.Message{Type: ctDelete, Family: addressFamily(e.Source.Addr()), Attributes: e.appendDelete(nil)}
	}
	results, err := conn.Do(ctx, requests...)
	var refused error
	for i, result := range results {
		switch {
		case result == nil:
			deleted++
		case errors.Is(result, unix.ENOENT):
			// It timed out, or a new connection has taken its place.
		case refused == nil:
			// One is enough to tell: what refuses one refuses thousands.
			refused = fmt.Errorf("delete conntrack entry %s to %s: %w", entries[i].Source, entries[i].Destination, result)
		}
	}
	return deleted, errors.Join(refused, err)
}
