package trace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// MaxDifferences is how many differences Compare looks for before it stops.
const MaxDifferences = 5

// Difference is a packet that two rulesets do not treat alike.
type Difference struct {
	Packet Packet
	// History says what happened before, when the difference depends on it.
	History string
	Have    []Branch
	Want    []Branch
}

// String returns the packet with both distributions and the rules that matched.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s", d.Packet, d.History)
	for _, side := range []struct {
		name     string
		branches []Branch
	}{{"have", d.Have}, {"want", d.Want}} {
		for _, branch := range side.branches {
			fmt.Fprintf(&b, "\n  %s %.7f %s", side.name, branch.Probability, branch.Outcome)
			for _, s := range branch.Steps() {
				fmt.Fprintf(&b, "\n       %s", s)
			}
		}
	}
	return b.String()
}

// Compare asks both rulesets about every packet and returns the first few that
// they treat differently. Where match recent is on the way it also asks what
// happens to the next packets of the same client: a moment later, around the
// timeout, and to the other destinations that the lists are for.
func Compare(have, want *Tracer, packets []Packet) ([]Difference, error) {
	c := comparison{have: have, want: want}
	var sticky []firstPacket
	for _, p := range packets {
		first, err := c.ask(p, nil, nil, "")
		if err != nil {
			return nil, err
		}
		if writesLists(first.have) || writesLists(first.want) {
			sticky = append(sticky, first)
		}
		if len(c.differences) >= MaxDifferences {
			return c.differences, nil
		}
	}
	return c.differences, c.followUp(sticky)
}

type comparison struct {
	have, want  *Tracer
	differences []Difference
}

// firstPacket is a packet with what both rulesets do to it.
type firstPacket struct {
	Packet
	have, want []Branch
}

func (c *comparison) ask(p Packet, haveLists, wantLists Lists, history string) (firstPacket, error) {
	have, err := c.have.Walk(p, haveLists)
	if err != nil {
		return firstPacket{}, fmt.Errorf("have: %w", err)
	}
	want, err := c.want.Walk(p, wantLists)
	if err != nil {
		return firstPacket{}, fmt.Errorf("want: %w", err)
	}
	if !Distribute(have).Equal(Distribute(want)) {
		c.differences = append(c.differences, Difference{Packet: p, History: history, Have: have, Want: want})
	}
	return firstPacket{p, have, want}, nil
}

func writesLists(branches []Branch) bool {
	return slices.ContainsFunc(branches, func(b Branch) bool { return len(b.Lists) > 0 })
}

// client is where packets that share a place on a list come from.
type client struct {
	in     string
	source netip.Addr
}

// memory is what a client's first packet left behind.
type memory struct {
	client
	outcome    Outcome
	have, want string
}

// followUp asks, for each outcome of a client's first packet, about the client's
// next packets.
func (c *comparison) followUp(sticky []firstPacket) error {
	ages := c.ages()
	byClient := map[client][]Packet{}
	for _, first := range sticky {
		from := client{first.In, first.Source}
		byClient[from] = append(byClient[from], first.Packet)
	}
	asked := map[memory]bool{}
	for _, first := range sticky {
		from := client{first.In, first.Source}
		for _, h := range first.have {
			i := slices.IndexFunc(first.want, func(w Branch) bool { return w.Outcome == h.Outcome })
			if i < 0 {
				continue // is a difference already
			}
			w := first.want[i]
			// Many first packets leave the same lists; to ask once is enough.
			m := memory{from, h.Outcome, h.Lists.text(), w.Lists.text()}
			if asked[m] {
				continue
			}
			asked[m] = true
			for _, age := range ages {
				history := fmt.Sprintf(", %v after %s: %s", age, first.Packet, h.Outcome)
				for _, next := range byClient[from] {
					if _, err := c.ask(next, h.Lists.Older(age), w.Lists.Older(age), history); err != nil {
						return err
					}
				}
				if len(c.differences) >= MaxDifferences {
					return nil
				}
			}
		}
	}
	return nil
}

// ages are the moments to ask about again: soon, and around each timeout that a
// rule of either ruleset has.
func (c *comparison) ages() []time.Duration {
	ages := map[time.Duration]bool{time.Second: true}
	for _, t := range []*Tracer{c.have, c.want} {
		for _, ch := range t.chains {
			for _, r := range ch.rules {
				for _, m := range r.Matches {
					if check, ok := m.(ruleset.RecentCheck); ok && check.Seconds > 0 {
						timeout := time.Duration(check.Seconds) * time.Second
						ages[timeout-time.Millisecond], ages[timeout+time.Millisecond] = true, true
					}
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(ages), func(a, b time.Duration) int { return cmp.Compare(a, b) })
}
