// Package trace walks a packet through a ruleset as the kernel would and says what
// can happen to it, with which probability, and by which rules. It asks no kernel:
// the ruleset may be one that was only rendered, or one read from iptables-save.
//
// It walks the tables mangle, nat and filter of one family. What it cannot know is
// an error, never a guess: a match or target that package ruleset has no type for,
// when a packet reaches it.
package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// ErrUnknown says that a packet reached a rule that cannot be reasoned about.
var ErrUnknown = errors.New("what the rule does is not known")

// Tracer holds a ruleset ready for many walks. It is safe for concurrent use.
type Tracer struct {
	host   Host
	chains map[ruleset.ChainID]*chain
}

// chain is a ruleset.Chain with its jumps resolved.
type chain struct {
	ruleset.ChainID
	policy string
	rules  []rule
	// checked is how far the search for loops has come, see checkLoops.
	checked checkState
}

type checkState uint8

const (
	checkBegun checkState = iota + 1
	checkDone
)

type rule struct {
	ruleset.Rule
	target *chain
}

// New prepares a ruleset for walks on a host. It fails for a jump to a chain that
// does not exist, for a loop, and for rules in a table that is not walked.
func New(rs ruleset.Ruleset, host Host) (*Tracer, error) {
	t := &Tracer{host: host, chains: make(map[ruleset.ChainID]*chain, len(rs))}
	for id, c := range rs {
		if id.Table != ruleset.Mangle && id.Table != ruleset.NAT && id.Table != ruleset.Filter {
			if len(c.Rules) > 0 {
				return nil, fmt.Errorf("chain %s has rules, but table %s is not walked", id, id.Table)
			}
			continue
		}
		t.chains[id] = &chain{ChainID: id, policy: c.Policy, rules: make([]rule, len(c.Rules))}
	}
	for id, c := range t.chains {
		for i, r := range rs[id].Rules {
			c.rules[i].Rule = r
			if target := r.Target(); target != "" {
				c.rules[i].target = t.chains[ruleset.ChainID{Table: id.Table, Name: target}]
				if c.rules[i].target == nil {
					return nil, fmt.Errorf("chain %s jumps to %s, which does not exist", id, target)
				}
			}
		}
	}
	for _, c := range t.chains {
		if err := c.checkLoops(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// checkLoops fails if a packet in the chain could come back to where it was.
func (c *chain) checkLoops() error {
	if c.checked == checkDone {
		return nil
	}
	c.checked = checkBegun
	for _, r := range c.rules {
		if r.target == nil {
			continue
		}
		if r.target.checked == checkBegun {
			return fmt.Errorf("chain %s jumps back to %s", c.ChainID, r.target.Name)
		}
		if err := r.target.checkLoops(); err != nil {
			return err
		}
	}
	c.checked = checkDone
	return nil
}

// Walk walks one packet through a ruleset. For many packets make a Tracer.
func Walk(rs ruleset.Ruleset, host Host, p Packet, lists Lists) ([]Branch, error) {
	t, err := New(rs, host)
	if err != nil {
		return nil, err
	}
	return t.Walk(p, lists)
}

// Walk returns every way that the packet can take, ways with the same outcome and
// the same lists in one, in the order of the rules. The lists may be nil.
func (t *Tracer) Walk(p Packet, lists Lists) ([]Branch, error) {
	if !sameFamily(p.Source, p.Destination) || !p.Source.IsValid() {
		return nil, fmt.Errorf("packet %s: want two addresses of one family", p)
	}
	if p.State == 0 {
		p.State = ruleset.New
	}
	w := walk{tracer: t}
	first := &flow{Packet: p, probability: 1, lists: lists}
	first.enter(t.host)
	w.waiting = []*flow{first}
	for len(w.waiting) > 0 {
		last := len(w.waiting) - 1
		f := w.waiting[last]
		w.waiting = w.waiting[:last]
		if err := w.run(f); err != nil {
			return nil, fmt.Errorf("packet %s: %w", p, err)
		}
		w.add(f)
	}
	return w.branches, nil
}

// walk is one call of Walk.
type walk struct {
	tracer *Tracer
	// waiting are the flows that split off and have not been walked to their end.
	waiting  []*flow
	branches []Branch
	// seen finds the branch that a flow's end is merged into.
	seen map[branchKey]int
}

type branchKey struct {
	outcome Outcome
	lists   string
}

// run walks one flow to its end.
func (w *walk) run(f *flow) error {
	for f.verdict == "" {
		if len(f.stack) == 0 {
			if !f.nextStage(w.tracer) {
				return nil
			}
			continue
		}
		top := &f.stack[len(f.stack)-1]
		if top.next == len(top.chain.rules) {
			f.leaveChain()
			continue
		}
		index := top.next
		top.next++
		r := &top.chain.rules[index]
		matched, err := w.matches(f, r)
		if err == nil && matched {
			f.path = &pathStep{chain: top.chain, index: index, before: f.path}
			err = f.act(r, w.tracer.host)
		}
		if err != nil {
			return fmt.Errorf("chain %s: rule %q: %w", top.chain.ChainID, r.Rule, err)
		}
	}
	return nil
}

// add makes a branch of a flow that has come to its end.
func (w *walk) add(f *flow) {
	key := branchKey{outcome: f.outcome()}
	if f.wrote {
		key.lists = f.lists.text()
	}
	if i, ok := w.seen[key]; ok {
		w.branches[i].Probability += f.probability
		return
	}
	if w.seen == nil && len(w.waiting) > 0 { // most packets have one way only
		w.seen = map[branchKey]int{}
	}
	if w.seen != nil {
		w.seen[key] = len(w.branches)
	}
	b := Branch{Outcome: key.outcome, Probability: f.probability, Lists: f.lists, path: f.path}
	if f.leaves() {
		b.Out = f.out
	}
	w.branches = append(w.branches, b)
}

// flow is a packet on its way.
type flow struct {
	Packet
	probability float64
	// stage is the hook and table that the packet is in; later are the ones that
	// are certain to follow it.
	stage stage
	later []stage
	// leg is the part of the way that the stages belong to.
	leg leg
	// in and out are the interfaces that rules see in this leg.
	in, out string
	stack   []frame
	// policy is that of the built-in chain that the stack begins with.
	policy string

	mark       uint32
	verdict    Fate
	translated netip.AddrPort
	masquerade bool
	randomPort bool // the source port is the kernel's choice
	accept     bool
	lists      Lists
	wrote      bool
	path       *pathStep
}

type stage struct {
	hook  string
	table ruleset.Table
}

// frame is a chain that the packet is in, and the rule it comes to next there.
type frame struct {
	chain *chain
	next  int
}

// pathStep is a matched rule, and those before it. Flows share their beginnings.
type pathStep struct {
	chain  *chain
	index  int
	before *pathStep
}

func (f *flow) outcome() Outcome {
	if f.verdict != "" {
		return Outcome{Fate: f.verdict}
	}
	o := Outcome{Fate: Pass, Masquerade: f.masquerade, Accept: f.accept}
	if f.translated.IsValid() {
		o.Fate, o.To = Translated, f.translated
	}
	if f.leaves() {
		o.Mark = f.mark
	}
	return o
}

// split returns a copy of the flow that can go its own way.
func (f *flow) split() *flow {
	c := *f
	c.stack = slices.Clone(f.stack)
	return &c
}

// leaveChain comes back from the end of a chain, or a RETURN.
func (f *flow) leaveChain() {
	f.stack = f.stack[:len(f.stack)-1]
	if len(f.stack) == 0 {
		f.endStage()
	}
}
