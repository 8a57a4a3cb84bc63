package iptables

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Fingerprint is what the kernel tells of a table of the legacy backend without being
// asked for the rules. A rule that is replaced by one of the same size, or moved within
// a chain, leaves it as it is.
type Fingerprint struct {
	// Entries counts the rules, and one or two more for each chain.
	Entries uint32
	// Size is that of the table, in bytes.
	Size uint32
	// Chains are the offsets in bytes of the built-in chains' first and last entries.
	Chains [2 * hookCount]uint32
}

// hookCount is the number of netfilter's hooks, NF_INET_NUMHOOKS without ingress.
const hookCount = 5

// getInfo is struct ipt_getinfo of linux/netfilter_ipv4/ip_tables.h, and struct
// ip6t_getinfo, which is the same.
type getInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [hookCount]uint32
	underflow  [hookCount]uint32
	entries    uint32
	size       uint32
}

// soGetInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const soGetInfo = 64

// Fingerprint asks for a legacy table's. That is one system call, and takes a few
// microseconds whatever the table holds. A table that does not exist is made, as by any
// iptables-legacy command.
func (r *Runner) Fingerprint(table ruleset.Table) (Fingerprint, error) {
	info, err := legacyInfo(r.family, table)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("ask for the size of the %v legacy table %s: %w", r.family, table, err)
	}
	print := Fingerprint{Entries: info.entries, Size: info.size}
	copy(print.Chains[:hookCount], info.hookEntry[:])
	copy(print.Chains[hookCount:], info.underflow[:])
	return print, nil
}

func legacyInfo(fam model.Family, table ruleset.Table) (info getInfo, err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if fam == model.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	// Any socket of the family will do. Only a raw one needs CAP_NET_RAW.
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return getInfo{}, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	copy(info.name[:len(info.name)-1], table)
	size := uint32(unsafe.Sizeof(info))
	// The kernel reads the table's name from where it writes the answer to, which none
	// of the unix package's functions allow.
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), soGetInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return getInfo{}, errno
	}
	return info, nil
}
