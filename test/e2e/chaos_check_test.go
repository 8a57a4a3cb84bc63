package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// chaosPatience bounds the wait for a quiet point. An agent that lost the API server
// may pause for most of a minute before it looks again.
const chaosPatience = 5 * time.Minute

// own are the agent's chains on the node, but for the canaries.
func (v *victim) own(ctx context.Context, family int) (ruleset.Ruleset, error) {
	all, err := v.rules(ctx, family)
	if err != nil {
		return nil, err
	}
	return agentsOwn(all), nil
}

func agentsOwn(all ruleset.Ruleset) ruleset.Ruleset {
	own := maps.Clone(all)
	maps.DeleteFunc(own, func(id ruleset.ChainID, chain *ruleset.Chain) bool {
		// KUBE-FIREWALL is there for its jump rules only where it is empty, and those
		// are not rendered either.
		empty := render.Shares(id) && len(chain.Rules) == 0
		return !(render.Owns(id) || render.Shares(id)) || id.Name == render.CanaryChain || empty
	})
	return own
}

// rules are all rules of the node, without what counts only.
func (v *victim) rules(ctx context.Context, family int) (ruleset.Ruleset, error) {
	text, err := v.iptables(ctx, tool(family)+"-save")
	if err != nil {
		return nil, err
	}
	all, err := ruleset.Decode([]byte(text))
	if err != nil {
		return nil, err
	}
	for _, chain := range all {
		withoutAccounts(chain)
	}
	return all, nil
}

// quiet waits until every node holds what it should.
func (ch *chaos) quiet(t *testing.T) {
	t.Helper()
	ch.want = ch.rendered(t)
	ctx, cancel := context.WithTimeout(t.Context(), chaosPatience)
	defer cancel()
	for {
		err := ch.holds(ctx)
		var ended *endedError
		if err == nil {
			break
		}
		if ctx.Err() != nil || errors.As(err, &ended) {
			ch.tally.divergences++
			t.Fatalf("waited in vain for a quiet point: %v", err)
		}
		time.Sleep(pollEvery)
	}
	ch.tally.checkpoints++
	// The agents leave the rules of others alone at all times, so there is nothing to
	// wait for.
	for _, v := range ch.victims {
		for _, family := range families {
			save, err := v.save(t.Context(), family)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := foreignText(foreignTables(save)), foreignText(v.wanted(family)); got != want {
				ch.tally.divergences++
				t.Fatalf("rules of other programs on %s, %s:\n%s", v.Plan.Name, familyName(family), lineDiff(got, want))
			}
		}
	}
}

// rendered is what render prints for each node and family.
func (ch *chaos) rendered(t *testing.T) map[target]ruleset.Ruleset {
	t.Helper()
	want := map[target]ruleset.Ruleset{}
	for _, v := range ch.victims {
		for _, family := range families {
			rules, err := ch.render(t, v.node, family, v.flags...)
			if err != nil {
				t.Fatal(err)
			}
			want[target{v, family}] = rules
		}
	}
	return want
}

// holds returns what is not as it should be.
func (ch *chaos) holds(ctx context.Context) error {
	var errs []error
	for at, rules := range ch.want {
		if err := at.agent.alive(); err != nil {
			return err
		}
		all, err := at.rules(ctx, at.family)
		if err != nil {
			return err
		}
		var wrong []string
		for _, diff := range ruleset.Diff(agentsOwn(all), rules) {
			wrong = append(wrong, diff.String())
		}
		wrong = append(wrong, missingJumps(all)...)
		wrong = append(wrong, missingCanaries(all)...)
		if len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("on %s, %s:\n%s", at.Plan.Name, familyName(at.family), strings.Join(wrong, "\n")))
		}
	}
	return errors.Join(errs...)
}

// missingJumps are complaints about jump rules: each is to be there once, in order, and
// not behind a rule that no packet gets past.
func missingJumps(all ruleset.Ruleset) []string {
	var wrong []string
	for id, hooks := range hooksByChain() {
		var have []string
		if chain := all[id]; chain != nil {
			for _, rule := range chain.Rules {
				if strings.HasPrefix(rule.Target(), "KUBE-") {
					have = append(have, rule.String())
				} else if len(rule.Matches) == 0 && rule.Action != nil && rule.Target() == "" {
					break
				}
			}
		}
		if !slices.Equal(have, hooks) {
			wrong = append(wrong, fmt.Sprintf("jump rules in %s: %q, want %q", id, have, hooks))
		}
	}
	return wrong
}

func hooksByChain() map[ruleset.ChainID][]string {
	hooks := map[ruleset.ChainID][]string{}
	for _, hook := range render.Hooks() {
		hooks[hook.From] = append(hooks[hook.From], hook.Rule.String())
	}
	return hooks
}

// missingCanaries are complaints about canaries.
func missingCanaries(all ruleset.Ruleset) []string {
	var wrong []string
	for _, table := range tables {
		chain := all[ruleset.ChainID{Table: ruleset.Table(table), Name: render.CanaryChain}]
		if chain == nil || len(chain.Rules) != 1 {
			wrong = append(wrong, "no canary in "+table)
		}
	}
	return wrong
}

// mustStillHold looks once more: nothing that was begun before the quiet point may
// come through after it.
func (ch *chaos) mustStillHold(t *testing.T) {
	t.Helper()
	if err := ch.holds(t.Context()); err != nil {
		ch.tally.divergences++
		t.Fatalf("after a quiet point, with nothing done: %v", err)
	}
}

// mustTraceAlike walks packets through a node's rules, and through the same with the
// agent's chains as render prints them.
func (ch *chaos) mustTraceAlike(t *testing.T) {
	t.Helper()
	v, family := ch.victims[ch.IntN(len(ch.victims))], families[ch.IntN(len(families))]
	all, err := v.rules(t.Context(), family)
	if err != nil {
		t.Fatal(err)
	}
	rendered := ch.want[target{v, family}]
	fresh := maps.Clone(all)
	for id := range agentsOwn(all) {
		delete(fresh, id)
	}
	maps.Copy(fresh, rendered)
	host := traceHost(v.node)
	have, err := trace.New(all, host)
	if err != nil {
		t.Fatal(err)
	}
	want, err := trace.New(fresh, host)
	if err != nil {
		t.Fatal(err)
	}
	packets := trace.Packets(host, trace.Extra{}, ch.sample(rendered))
	differences, err := trace.Compare(have, want, packets)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		ch.tally.divergences++
		t.Errorf("on %s: %v", v.Plan.Name, d)
	}
	if t.Failed() {
		t.FailNow()
	}
	ch.tally.packets += len(packets)
}

// sample is a few rules, whose addresses and ports packets are made from: all of them
// with all others would be millions.
func (ch *chaos) sample(rules ruleset.Ruleset) ruleset.Ruleset {
	var all []ruleset.Rule
	for _, id := range slices.SortedFunc(maps.Keys(rules), ruleset.ChainID.Compare) {
		all = append(all, rules[id].Rules...)
	}
	ch.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	id := ruleset.ChainID{Table: ruleset.NAT, Name: "SAMPLE"}
	return ruleset.Ruleset{id: {ChainID: id, Rules: all[:min(len(all), 12)]}}
}

// traceHost is what a walk needs to know of a node.
func traceHost(n *node) trace.Host {
	bridge := trace.Interface{Name: lab.PodBridge, Addrs: slices.Clone(n.Plan.PodCIDRs)}
	for i, gateway := range n.Plan.PodAddrs(1) {
		bridge.Addrs[i] = netip.PrefixFrom(gateway, bridge.Addrs[i].Bits())
	}
	return trace.Host{Interfaces: []trace.Interface{{Name: lab.Uplink, Addrs: n.Plan.Addrs}, bridge}}
}
