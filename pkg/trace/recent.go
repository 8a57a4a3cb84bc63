package trace

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Lists are the address lists of match recent, by name: each address with the time
// since it was last put there. A Lists is not changed by a walk.
type Lists map[string]map[netip.Addr]time.Duration

// Older returns the lists as they are after some time.
func (l Lists) Older(by time.Duration) Lists {
	older := Lists{}
	for name, entries := range l {
		older[name] = map[netip.Addr]time.Duration{}
		for addr, age := range entries {
			older[name][addr] = age + by
		}
	}
	return older
}

// with returns a copy in which one list is changed.
func (l Lists) with(name string, change func(entries map[netip.Addr]time.Duration)) Lists {
	entries := maps.Clone(l[name])
	if entries == nil {
		entries = map[netip.Addr]time.Duration{}
	}
	change(entries)
	lists := maps.Clone(l)
	if lists == nil {
		lists = Lists{}
	}
	lists[name] = entries
	return lists
}

// text is the same for lists that are the same.
func (l Lists) text() string {
	var entries []string
	for name, list := range l {
		for addr, age := range list {
			entries = append(entries, fmt.Sprint(name, " ", addr, " ", age))
		}
	}
	slices.Sort(entries)
	return strings.Join(entries, "\n")
}

// check does what the kernel does for --rcheck: an entry counts up to and including
// the last of its seconds, and reaping removes the oldest entry of the list if its
// time is over.
func (l Lists) check(m ruleset.RecentCheck, source netip.Addr) (Lists, bool) {
	age, found := l[m.Name][masked(source, m.Mask)]
	if !found {
		return l, false
	}
	timeout := time.Duration(m.Seconds) * time.Second
	if m.Reap {
		l = l.reap(m.Name, timeout)
	}
	return l, m.Seconds == 0 || age <= timeout
}

func (l Lists) reap(name string, timeout time.Duration) Lists {
	var oldest netip.Addr
	for addr, age := range l[name] {
		if age > timeout && (!oldest.IsValid() || age > l[name][oldest]) {
			oldest = addr
		}
	}
	if !oldest.IsValid() {
		return l
	}
	return l.with(name, func(entries map[netip.Addr]time.Duration) { delete(entries, oldest) })
}

func (l Lists) set(m ruleset.RecentSet, source netip.Addr) Lists {
	return l.with(m.Name, func(entries map[netip.Addr]time.Duration) { entries[masked(source, m.Mask)] = 0 })
}

// masked returns the part of an address that a list keeps.
func masked(addr, mask netip.Addr) netip.Addr {
	if !mask.IsValid() || !sameFamily(addr, mask) {
		return addr
	}
	bytes := addr.AsSlice()
	for i, b := range mask.AsSlice() {
		bytes[i] &= b
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
