package trace

import (
	"fmt"
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// matches reports whether every match of the rule holds. A random match splits
// the flow: the part that the match does not hold for waits, at the next rule.
func (w *walk) matches(f *flow, r *rule) (bool, error) {
	for _, m := range r.Matches {
		switch m := m.(type) {
		case ruleset.Random:
			if m.Steps == 0 {
				return false, nil
			}
			if m.Steps < 1<<31 {
				p := float64(m.Steps) / (1 << 31)
				other := f.split()
				other.probability *= 1 - p
				f.probability *= p
				w.waiting = append(w.waiting, other)
			}
		case ruleset.RecentSet:
			f.lists, f.wrote = f.lists.set(m, f.Source), true
		case ruleset.RecentCheck:
			lists, ok := f.lists.check(m, f.Source)
			f.lists, f.wrote = lists, f.wrote || m.Reap
			if !ok {
				return false, nil
			}
		default:
			if ok, err := f.matches(m, w.tracer.host); !ok || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// matches reports whether a match without chance or memory holds.
func (f *flow) matches(m ruleset.Match, host Host) (bool, error) {
	switch m := m.(type) {
	case ruleset.Source:
		return m.Prefix.Contains(f.Source) != m.Not, nil
	case ruleset.Destination:
		return m.Prefix.Contains(f.Destination) != m.Not, nil
	case ruleset.InInterface:
		return matchesInterface(m.Pattern, f.in) != m.Not, nil
	case ruleset.OutInterface:
		return matchesInterface(m.Pattern, f.out) != m.Not, nil
	case ruleset.Protocol:
		return (m.Name == f.Protocol) != m.Not, nil
	case ruleset.SourcePort:
		if f.randomPort {
			return false, fmt.Errorf("the kernel chose the source port at random: %w", ErrUnknown)
		}
		return m.Protocol == f.Protocol && (m.First <= f.SourcePort && f.SourcePort <= m.Last) != m.Not, nil
	case ruleset.DestinationPort:
		return m.Protocol == f.Protocol && (m.First <= f.DestinationPort && f.DestinationPort <= m.Last) != m.Not, nil
	case ruleset.AddrType:
		return f.matchesAddrType(m, host)
	case ruleset.Conntrack:
		return (f.State&m.States != 0) != m.Not, nil
	case ruleset.Mark:
		return (f.mark&m.Mask == m.Value) != m.Not, nil
	case ruleset.NFAcct:
		return true, nil
	}
	return false, ErrUnknown
}

// matchesAddrType knows LOCAL only: the other types depend on routes that Host does
// not hold.
func (f *flow) matchesAddrType(m ruleset.AddrType, host Host) (bool, error) {
	for _, part := range []struct {
		kind string
		addr netip.Addr
		not  bool
	}{{m.Source, f.Source, m.NotSource}, {m.Destination, f.Destination, m.NotDestination}} {
		if part.kind == "" {
			continue
		}
		if part.kind != "LOCAL" {
			return false, fmt.Errorf("address type %s: %w", part.kind, ErrUnknown)
		}
		if host.Owns(part.addr) == part.not {
			return false, nil
		}
	}
	return true, nil
}

// act does what the rule's action says.
func (f *flow) act(r *rule, host Host) error {
	switch a := r.Action.(type) {
	case nil:
	case ruleset.Jump:
		f.stack = append(f.stack, frame{chain: r.target})
	case ruleset.Goto:
		f.stack[len(f.stack)-1] = frame{chain: r.target}
	case ruleset.Return:
		f.leaveChain()
	case ruleset.Accept:
		f.accept = f.accept || f.stage.table == ruleset.Filter
		f.stack = f.stack[:0]
	case ruleset.Drop:
		f.verdict = Dropped
	case ruleset.Reject:
		f.verdict = Rejected
	case ruleset.SetMark:
		f.mark = f.mark&^a.Mask ^ a.Value
	case ruleset.DNAT:
		f.translate(a.To)
		f.stack = f.stack[:0]
	case ruleset.Masquerade:
		f.hide(host, a.RandomFully)
		f.stack = f.stack[:0]
	default:
		return ErrUnknown
	}
	return nil
}

// translate gives the packet another destination. To the one that it has already
// it stays untranslated: conntrack sees no difference either.
func (f *flow) translate(to netip.AddrPort) {
	if to.Port() == 0 {
		to = netip.AddrPortFrom(to.Addr(), f.DestinationPort)
	}
	if to == netip.AddrPortFrom(f.Destination, f.DestinationPort) {
		return
	}
	f.Destination, f.DestinationPort = to.Addr(), to.Port()
	f.translated = to
	f.State |= ruleset.DNATed
}

// hide gives the packet an address of the host as its source. A port chosen at
// random makes it a translated one even if the address stays the same.
func (f *flow) hide(host Host, randomPort bool) {
	f.masquerade, f.randomPort = true, randomPort
	source := host.masqueradeAddr(f.out, f.Destination)
	if source != f.Source || randomPort {
		f.Source = source
		f.State |= ruleset.SNATed
	}
}
