package proxier

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Refusal is a Service port whose rules the kernel, or iptables, does not take. It
// keeps the rules that it had, or has none, and the others get theirs.
type Refusal struct {
	Name model.ServicePortName
	// Err is why, the last time.
	Err error
	// Since is when it was first refused, and Failures how often it was since then.
	Since    time.Time
	Failures int
	// Retry is when it is tried again at the latest. A change of the Service or its
	// endpoints makes it be tried at once.
	Retry time.Time
	// KeepsRules says that rules which were accepted before are still in force.
	KeepsRules bool

	// good is the unit with the rules that were accepted.
	good *unit
}

// The first and the longest wait before a refused Service port is tried again.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// groupSize is how many Service ports are tried together when looking for the ones
// that are refused.
const groupSize = 100

// contain finds out which of the Service ports that were to be written made the
// kernel refuse a transaction, among the suspects first, and puts them aside. It
// reports whether there are any; if not, something else is wrong. If nothing can be
// written for now, it puts aside what it has found, and returns what has stopped it.
func (p *Proxier) contain(ctx context.Context, snapshot model.Snapshot, before *units,
	suspects, names []model.ServicePortName) (found bool, stopped error) {
	switch err := p.try(ctx, snapshot, p.opts, nil); {
	case iptables.IsRefused(err):
		return false, nil // not even what belongs to no Service is taken
	case err != nil:
		return false, err
	}
	refused, err := p.isolate(ctx, snapshot, suspects, names)
	for _, culprit := range refused {
		r := &Refusal{Name: culprit.Item, Since: time.Now(), good: before.byName[culprit.Item]}
		r.KeepsRules = r.good != nil
		r.fail(culprit.Err)
		p.quarantine[r.Name] = r
		fields := []any{"servicePort", r.Name.String()}
		if refused, ok := errors.AsType[*iptables.RestoreError](r.Err); ok {
			fields = append(fields, "lines", refused.Excerpt())
		}
		klog.FromContext(ctx).Error(r.Err, "The rules of a Service port are refused; the others are not affected", fields...)
	}
	if err == nil && len(refused) == 0 {
		refused, err = p.forsake(ctx)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not find out about all Service ports whether they are refused")
	}
	return len(refused) > 0, err
}

// isolate returns those of the Service ports that are refused: suspects, or if none of
// them is, any.
func (p *Proxier) isolate(ctx context.Context, snapshot model.Snapshot, suspects, names []model.ServicePortName) (refused []culprit, err error) {
	try := func(group []model.ServicePortName) error { return p.try(ctx, snapshot, p.opts, group) }
	refused, err = iptables.Narrow(p.atLarge(suspects), try)
	if err != nil || len(refused) > 0 {
		return refused, err
	}
	for group := range slices.Chunk(p.atLarge(names), groupSize) {
		more, err := iptables.Narrow(group, try)
		refused = append(refused, more...)
		if err != nil {
			return refused, err
		}
	}
	return refused, nil
}

// culprit is a Service port that is refused, and why.
type culprit = iptables.Culprit[model.ServicePortName]

// forsake takes from Service ports in quarantine what leads to their old rules where
// the kernel does not take that any more, and returns them.
func (p *Proxier) forsake(ctx context.Context) ([]culprit, error) {
	var names []model.ServicePortName
	for _, r := range p.refusals() {
		if r.good != nil {
			names = append(names, r.Name)
		}
	}
	refused, err := iptables.Narrow(names, func(group []model.ServicePortName) error {
		var entries []render.Entry
		for _, name := range group {
			entries = append(entries, p.quarantine[name].good.Entries...)
		}
		return p.tryRules(ctx, ruleset.NewBuilder(render.Tables()...), entries)
	})
	for _, culprit := range refused {
		p.loseRefused([]model.ServicePortName{culprit.Item})
		klog.FromContext(ctx).Error(culprit.Err, "What leads to the old rules of a refused Service port is refused, too; it has none now", "servicePort", culprit.Item.String())
	}
	return refused, err
}

// atLarge returns those of the Service ports that are not in quarantine.
func (p *Proxier) atLarge(names []model.ServicePortName) []model.ServicePortName {
	return slices.DeleteFunc(slices.Clone(names), func(name model.ServicePortName) bool { return p.quarantine[name] != nil })
}

func (r *Refusal) fail(err error) {
	r.Err = err
	r.Retry = time.Now().Add(min(firstRetry<<min(r.Failures, 16), lastRetry))
	r.Failures++
}

// blamed returns the Service ports whose chains stand in the line that the error
// names.
func (p *Proxier) blamed(err error) []model.ServicePortName {
	refused, ok := errors.AsType[*iptables.RestoreError](err)
	if !ok || refused.Text == "" {
		return nil
	}
	var names []model.ServicePortName
	for word := range strings.FieldsSeq(refused.Text) {
		last, _ := p.ledger.last(ruleset.ChainID{Table: ruleset.NAT, Name: word})
		if last.owner != nil {
			names = append(names, last.owner.Name)
		}
	}
	return merge(names, nil)
}

// probeChain holds the dispatch entries of Service ports that are tried. Nothing
// leads to it.
const probeChain = "KUBE-SVC-PROBE"

// try writes all that some Service ports need, but for what would lead packets
// there. The ledger does not count it as written: it may be refused.
func (p *Proxier) try(ctx context.Context, snapshot model.Snapshot, opts render.Options, names []model.ServicePortName) error {
	b := ruleset.NewBuilder(render.Tables()...)
	write := func(chains []ruleset.Chain) {
		for _, chain := range chains {
			b.Write(chain)
			// Or the next look would take it for somebody else's work.
			p.ledger.unsee(chain.ChainID)
		}
	}
	write(render.Fixed(opts))
	var entries []render.Entry
	for _, name := range names {
		port, exists := snapshot.Services[name]
		if !exists {
			continue
		}
		unit := render.ServicePort(port, snapshot.Endpoints[name], opts)
		write(unit.Chains)
		entries = append(entries, unit.Entries...)
	}
	return p.tryRules(ctx, b, entries)
}

// tryRules writes what is in a builder, and dispatch entries where nothing leads to them.
func (p *Proxier) tryRules(ctx context.Context, b *ruleset.Builder, entries []render.Entry) error {
	probes := map[ruleset.Table][]ruleset.Rule{ruleset.Filter: nil, ruleset.NAT: nil}
	for _, e := range entries {
		probes[e.Index.Table()] = append(probes[e.Index.Table()], e.Rules...)
	}
	remove := ruleset.NewBuilder(render.Tables()...)
	for table, rules := range probes {
		id := ruleset.ChainID{Table: table, Name: probeChain}
		b.Write(ruleset.Chain{ChainID: id, Rules: rules})
		remove.Delete(id)
	}
	err := p.kernel.Restore(ctx, bytes.Join(b.Take(), nil))
	if err != nil && !iptables.IsRefused(err) {
		// To remove them would wait for the same lock once more. Nothing leads there.
		return err
	}
	return errors.Join(err, p.kernel.Restore(ctx, bytes.Join(remove.Take(), nil)))
}

// release tries Service ports again that were refused, if it is time for that or if
// they changed, and returns those of them that have to be written.
func (p *Proxier) release(ctx context.Context, snapshot model.Snapshot) []model.ServicePortName {
	if len(p.quarantine) == 0 {
		return nil
	}
	// Those of the sync that follows: what is tried with others would be left behind.
	opts, err := p.options(snapshot.Node)
	if err != nil {
		return nil
	}
	opts = opts.For(snapshot)
	var released []model.ServicePortName
	for name, r := range p.quarantine {
		if _, exists := snapshot.Services[name]; !exists {
			delete(p.quarantine, name)
			continue
		}
		if _, changed := slices.BinarySearchFunc(p.unsynced.ServicePorts, name, model.ServicePortName.Compare); !changed && time.Now().Before(r.Retry) {
			continue
		}
		if err := p.try(ctx, snapshot, opts, []model.ServicePortName{name}); iptables.IsRefused(err) {
			r.fail(err)
			continue
		} else if err != nil {
			return released
		}
		klog.FromContext(ctx).Info("The rules of a Service port are accepted again", "servicePort", name.String(), "refusals", r.Failures)
		delete(p.quarantine, name)
		released = append(released, name)
	}
	return released
}

// hold returns what a Service port in quarantine has instead of what was rendered for
// it: the rules that it had, if the kernel still holds them. Existing are the chains in
// the kernel, for a full sync, which knows nothing of them.
func (p *Proxier) hold(r *Refusal, rendered render.Unit, existing map[ruleset.ChainID]bool) *unit {
	lost := func(id ruleset.ChainID) bool { return !existing[id] }
	if r.good == nil || existing != nil && slices.ContainsFunc(r.good.without(nil), lost) {
		r.lose()
		return nil
	}
	r.KeepsRules = true
	kept := &unit{Unit: r.good.Kept(rendered), chains: r.good.chains}
	for _, id := range kept.without(nil) {
		p.ledger.claim(id, kept)
	}
	return kept
}

// lose says that the Service port has no rules that could be kept.
func (r *Refusal) lose() { r.good, r.KeepsRules = nil, false }

// loseRefused takes from Service ports in quarantine what they had, since somebody has
// changed it, or the kernel does not take it any more, and what it said is not known.
func (p *Proxier) loseRefused(names []model.ServicePortName) {
	for _, name := range names {
		if r := p.quarantine[name]; r != nil {
			r.lose()
		}
	}
}

// refusals lists what is in quarantine, sorted.
func (p *Proxier) refusals() []Refusal {
	var list []Refusal
	for _, r := range p.quarantine {
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b Refusal) int { return a.Name.Compare(b.Name) })
	return list
}
