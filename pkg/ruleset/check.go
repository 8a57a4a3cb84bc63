package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// calledPrefixes begin the names of chains that exist only to be jumped to. One
// that nothing jumps to is a leak.
var calledPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"}

// Check returns what is wrong with a ruleset of one family, all of it joined: what
// the kernel would refuse (a jump to a missing chain, a loop, a name that is too
// long, a target outside of its table), what it would silently change (a comment
// with a newline), and what should not be there (a Service chain that nothing
// jumps to).
func Check(rs Ruleset) error {
	errs := []error{checkTargets(rs), checkLoops(rs, sortedIDs(rs)), checkOrphans(rs), checkFamily(rs)}
	for _, table := range rs.Tables() {
		for _, c := range rs.Chains(table) {
			errs = append(errs, checkChain(c))
		}
	}
	return errors.Join(errs...)
}

func checkChain(c *Chain) error {
	errs := []error{checkChainName(c.Name)}
	if c.Policy != "" && !c.IsBuiltin() {
		errs = append(errs, fmt.Errorf("chain %s: policy %s, but it is not built in", c.ChainID, c.Policy))
	}
	for _, r := range c.Rules {
		for _, err := range []error{checkComment(r.Comment), checkMatches(r), checkAction(c.Table, r)} {
			if err != nil {
				errs = append(errs, fmt.Errorf("chain %s: rule %q: %w", c.ChainID, r, err))
			}
		}
	}
	return errors.Join(errs...)
}

func checkComment(s string) error {
	switch {
	case len(s) > MaxComment:
		return fmt.Errorf("comment is longer than %d bytes", MaxComment)
	case !isCleanText(s):
		return errors.New("comment has control characters")
	}
	return nil
}

func checkMatches(r Rule) error {
	var errs []error
	protocol := ""
	for _, m := range r.Matches {
		if p, ok := m.(Protocol); ok && !p.Not {
			protocol = p.Name
		}
	}
	lastRank := -1
	for _, m := range r.Matches {
		rank := addressRank(m)
		if rank < lastRank || rank == lastRank && rank < addressRanks {
			errs = append(errs, errors.New("matches are not in the order of iptables-save"))
		}
		lastRank = rank
		errs = append(errs, checkMatch(m, protocol))
	}
	return errors.Join(errs...)
}

func checkMatch(m Match, protocol string) error {
	switch m := m.(type) {
	case Source:
		return checkPrefix(m.Prefix)
	case Destination:
		return checkPrefix(m.Prefix)
	case SourcePort:
		return checkPort(m.Protocol, protocol, m.First, m.Last)
	case DestinationPort:
		return checkPort(m.Protocol, protocol, m.First, m.Last)
	case Conntrack:
		if m.States == 0 || m.States >= 1<<len(stateNames) {
			return fmt.Errorf("conntrack states %#x", uint8(m.States))
		}
	case Random:
		if m.Steps == 0 || m.Steps > 1<<31 {
			return fmt.Errorf("probability of %d/2^31", m.Steps)
		}
	case RecentCheck:
		if m.Reap && m.Seconds == 0 {
			return errors.New("recent: --reap without --seconds")
		}
	}
	return nil
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("invalid address range")
	case p != p.Masked():
		return fmt.Errorf("address range %s has bits behind its length", p)
	case p.Bits() == 0:
		return fmt.Errorf("address range %s says nothing", p)
	}
	return nil
}

func checkPort(module, protocol string, first, last uint16) error {
	switch {
	case module != protocol:
		return fmt.Errorf("-m %s without -p %s", module, module)
	case first > last:
		return fmt.Errorf("port range %d:%d", first, last)
	}
	return nil
}

func checkAction(table Table, r Rule) error {
	switch a := r.Action.(type) {
	case DNAT:
		if table != NAT {
			return errors.New("DNAT outside of table nat")
		}
		if !a.To.Addr().IsValid() {
			return errors.New("DNAT without an address")
		}
		if a.To.Port() != 0 && !slices.ContainsFunc(r.Matches, func(m Match) bool {
			p, ok := m.(Protocol)
			return ok && !p.Not
		}) {
			return errors.New("DNAT to a port without a protocol")
		}
	case Masquerade:
		if table != NAT {
			return errors.New("MASQUERADE outside of table nat")
		}
	case Reject:
		if table != Filter {
			return errors.New("REJECT outside of table filter")
		}
	case Drop:
		if table == NAT {
			return errors.New("DROP in table nat")
		}
	}
	return nil
}

// checkTargets finds jumps to chains that are not there.
func checkTargets(chains map[ChainID]*Chain) error {
	var errs []error
	for id, c := range chains {
		for _, r := range c.Rules {
			target := ChainID{id.Table, r.Target()}
			if target.Name == "" {
				continue
			}
			if chains[target] == nil {
				errs = append(errs, fmt.Errorf("chain %s jumps to %s, which does not exist", id, target.Name))
			} else if target.IsBuiltin() {
				errs = append(errs, fmt.Errorf("chain %s jumps to %s, which is built in", id, target.Name))
			}
		}
	}
	return join(errs)
}

// checkLoops finds chains, among those that a packet can get to from the given
// ones, from which it could come back to them.
func checkLoops(chains map[ChainID]*Chain, from []ChainID) error {
	const (
		inProgress = iota + 1
		done
	)
	var errs []error
	state := make(map[ChainID]int, len(chains))
	var visit func(id ChainID)
	visit = func(id ChainID) {
		c := chains[id]
		if c == nil {
			return
		}
		state[id] = inProgress
		for _, r := range c.Rules {
			target := ChainID{id.Table, r.Target()}
			switch {
			case target.Name == "":
			case state[target] == inProgress:
				errs = append(errs, fmt.Errorf("chain %s jumps back to %s", id, target.Name))
			case state[target] != done:
				visit(target)
			}
		}
		state[id] = done
	}
	for _, id := range from {
		if state[id] == 0 {
			visit(id)
		}
	}
	return join(errs)
}

// checkOrphans finds Service chains that nothing jumps to.
func checkOrphans(rs Ruleset) error {
	called := map[ChainID]bool{}
	for id, c := range rs {
		for _, r := range c.Rules {
			called[ChainID{id.Table, r.Target()}] = true
		}
	}
	var errs []error
	for id := range rs {
		if !called[id] && slices.ContainsFunc(calledPrefixes, func(p string) bool { return strings.HasPrefix(id.Name, p) }) {
			errs = append(errs, fmt.Errorf("nothing jumps to chain %s", id))
		}
	}
	return join(errs)
}

// checkFamily finds IPv4 and IPv6 addresses in one ruleset.
func checkFamily(rs Ruleset) error {
	var first netip.Addr
	var errs []error
	for _, id := range sortedIDs(rs) {
		for _, r := range rs[id].Rules {
			for _, addr := range r.addresses() {
				if !first.IsValid() {
					first = addr
				}
				if addr.BitLen() != first.BitLen() {
					errs = append(errs, fmt.Errorf("chain %s has address %s, others are like %s", id, addr, first))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// addresses returns the addresses that the rule names.
func (r Rule) addresses() []netip.Addr {
	var addrs []netip.Addr
	for _, m := range r.Matches {
		switch m := m.(type) {
		case Source:
			addrs = append(addrs, m.Prefix.Addr())
		case Destination:
			addrs = append(addrs, m.Prefix.Addr())
		}
	}
	if a, ok := r.Action.(DNAT); ok {
		addrs = append(addrs, a.To.Addr())
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !a.IsValid() })
}

func sortedIDs(chains map[ChainID]*Chain) []ChainID {
	ids := make([]ChainID, 0, len(chains))
	for id := range chains {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ChainID.Compare)
	return ids
}

// join joins errors that were found in the random order of a map.
func join(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
