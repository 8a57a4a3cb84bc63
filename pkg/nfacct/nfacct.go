// Package nfacct makes and reads the kernel's accounting objects: named counters
// that rules count packets on with "-m nfacct". Unlike a rule's own counter they
// survive the rule's rewriting.
//
// How the agent uses it. At start, per network namespace and not per family, it
// calls Ensure for each object; for those that can be made, and if the nfacct match
// works, the rules name them and metrics.RegisterAccounting reads them with
// Packets. Without them there are neither matches nor metrics. The numbers of the
// protocol are those of linux/netfilter/nfnetlink_acct.h.
package nfacct

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/nfnetlink"
)

// The objects that the agent counts on; their names are kube-proxy's.
const (
	// InvalidDropped counts forwarded packets dropped as INVALID.
	InvalidDropped = "ct_state_invalid_dropped_pkts"
	// LocalhostNodePorts counts packets accepted for node ports on loopback addresses.
	LocalhostNodePorts = "localhost_nps_accepted_pkts"
)

// MaxName is the longest name of an object, in bytes.
const MaxName = 31

var (
	// ErrUnsupported says that the kernel has no accounting objects
	// (CONFIG_NETFILTER_NETLINK_ACCT).
	ErrUnsupported = errors.New("kernel has no nfacct")
	// ErrNotFound says that there is no object of that name.
	ErrNotFound = errors.New("no such nfacct object")
)

// Commands of the accounting subsystem (NFNL_SUBSYS_ACCT in the high byte) and its
// attributes.
const (
	acctNew = 7 << 8
	acctGet = 7<<8 | 1

	attrName    = 1
	attrPackets = 2
)

// Kernel are the objects in the network namespace of the calling thread. It needs
// CAP_NET_ADMIN there.
type Kernel struct{}

// Ensure makes the object unless it is there. What it has counted so far stays.
func (Kernel) Ensure(name string) error {
	err := request(acctNew, unix.NLM_F_CREATE, name, func(nfnetlink.Message) error { return nil })
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make nfacct object %s: %w", name, explain(err))
	}
	return nil
}

// Packets is how many packets the object has counted.
func (Kernel) Packets(name string) (uint64, error) {
	packets, found := uint64(0), false
	err := request(acctGet, 0, name, func(m nfnetlink.Message) error {
		for kind, data := range nfnetlink.Attributes(m.Attributes) {
			if kind == attrPackets && len(data) == 8 {
				packets, found = binary.BigEndian.Uint64(data), true
			}
		}
		return nil
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("read nfacct object %s: %w", name, explain(err))
	}
	return packets, nil
}

// explain names the two errors that callers tell apart.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrNotFound
	// The kernel's answer for a subsystem that it does not know.
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// request sends one request about the object and hands over what comes back.
func request(kind, flags uint16, name string, each func(nfnetlink.Message) error) (err error) {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("name %q: want 1 to %d bytes", name, MaxName)
	}
	conn, err := nfnetlink.Dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.Get(nfnetlink.Message{
		Type: kind, Flags: flags,
		Attributes: nfnetlink.AppendAttribute(nil, attrName, append([]byte(name), 0)...),
	}, each)
}
