package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// errNotNow is a fault's answer when it does not apply as things are.
var errNotNow = errors.New("does not apply now")

// fault is one kind of what goes wrong.
type fault struct {
	name string
	// weight is how often it is chosen.
	weight int
	// damages says that packets miss rules from then on until they are repaired.
	damages bool
	// late says that the fault lasts until the kernel was looked at.
	late bool
	// only is the backend that has such a thing, empty for both.
	only string
	// do does it, says what it did, and returns what ends it, if it lasts.
	do func(ch *chaos, ctx context.Context, at target) (what string, end ending, err error)
}

// target is a node, and one of its families.
type target struct {
	*victim
	family int
}

func faultKinds() []fault {
	return []fault{
		{name: "table flushed", weight: 2, damages: true, do: (*chaos).flushTable},
		{name: "chain flushed", weight: 3, damages: true, do: edit(flushChain)},
		{name: "rule deleted", weight: 3, damages: true, do: edit(deleteRule)},
		{name: "rule inserted", weight: 3, damages: true, do: edit(insertRule)},
		{name: "rule replaced", weight: 3, damages: true, do: edit(replaceRule)},
		{name: "rules reordered", weight: 2, damages: true, do: edit(reverseRules)},
		{name: "jump rule deleted", weight: 3, damages: true, do: (*chaos).deleteJump},
		{name: "jump rule doubled", weight: 1, do: (*chaos).doubleJump},
		{name: "final rule put first", weight: 2, damages: true, late: true, do: (*chaos).putFinalRule},
		{name: "canary removed", weight: 1, do: (*chaos).removeCanary},

		{name: "agent killed", weight: 3, do: endAgent(syscall.SIGKILL)},
		{name: "agent terminated", weight: 2, do: endAgent(syscall.SIGTERM)},
		{name: "agent stopped", weight: 2, do: (*chaos).stopAgent},
		{name: "restore fails", weight: 3, do: (*chaos).failRestore},
		{name: "restore reports a failure wrongly", weight: 1, do: (*chaos).lieAboutRestore},
		{name: "restore hangs", weight: 2, do: (*chaos).hangRestore},
		{name: "lock held", weight: 2, only: "legacy", do: (*chaos).holdLock},
		{name: "API server restarted", weight: 1, do: (*chaos).restartAPI},
		{name: "API connection reset", weight: 1, do: cutAPI("REJECT", "--reject-with", "tcp-reset")},
		{name: "API connection silent", weight: 1, do: cutAPI("DROP")},
	}
}

// choose chooses a kind of fault that the backend has.
func (ch *chaos) choose() fault {
	var all []fault
	for _, f := range faultKinds() {
		if f.only == "" || f.only == ch.backend {
			all = append(all, slices.Repeat([]fault{f}, f.weight)...)
		}
	}
	return all[ch.IntN(len(all))]
}

// faultsMustHappen fails the test if a kind of fault never happened in a run that was
// long enough for it.
func (ch *chaos) faultsMustHappen(t *testing.T) {
	t.Helper()
	total := 0
	for _, n := range ch.tally.faults {
		total += n
	}
	for _, f := range faultKinds() {
		if (f.only == "" || f.only == ch.backend) && total >= 1000 && ch.tally.faults[f.name] == 0 {
			t.Errorf("of %d faults none was %q", total, f.name)
		}
	}
}

// The faults of agents and of what they run.

// endAgent returns a fault that ends an agent; another one is started later.
func endAgent(signal syscall.Signal) func(*chaos, context.Context, target) (string, ending, error) {
	return func(ch *chaos, _ context.Context, at target) (string, ending, error) {
		v := at.victim
		if v.busy {
			return "", nil, errNotNow
		}
		if err := v.agent.alive(); err != nil {
			return "", nil, err
		}
		// Before its first words it may not have come to handle signals.
		if signal != syscall.SIGKILL && fileSize(v.log()) == v.saidBefore {
			return "", nil, errNotNow
		}
		if err := v.agent.end(signal); err != nil && signal != syscall.SIGKILL {
			return "", nil, fmt.Errorf("%s: it ended with %w", v.Plan.Name, err)
		}
		v.busy = true
		return v.Plan.Name, func(context.Context) error {
			v.busy = false
			return v.start()
		}, nil
	}
}

func (ch *chaos) stopAgent(_ context.Context, at target) (string, ending, error) {
	v := at.victim
	if v.busy {
		return "", nil, errNotNow
	}
	if err := v.agent.signal(syscall.SIGSTOP); err != nil {
		return "", nil, err
	}
	v.busy = true
	return v.Plan.Name, func(context.Context) error {
		v.busy = false
		return v.agent.signal(syscall.SIGCONT)
	}, nil
}

// misbehave has the node's restore programs find a file.
func (v *victim) misbehave(file string) error {
	return os.WriteFile(filepath.Join(v.switches, file), nil, 0o644)
}

func (ch *chaos) failRestore(_ context.Context, at target) (string, ending, error) {
	times := 1 + ch.IntN(3)
	for i := range times {
		if err := at.misbehave(fmt.Sprintf("fail-%d", i)); err != nil {
			return "", nil, err
		}
	}
	return fmt.Sprintf("%s, %d times", at.Plan.Name, times), nil, nil
}

func (ch *chaos) lieAboutRestore(_ context.Context, at target) (string, ending, error) {
	return at.Plan.Name, nil, at.misbehave("lie-0")
}

func (ch *chaos) hangRestore(_ context.Context, at target) (string, ending, error) {
	hang := filepath.Join(at.switches, "hang")
	if _, err := os.Stat(hang); err == nil {
		return "", nil, errNotNow
	}
	return at.Plan.Name, func(context.Context) error { return os.Remove(hang) }, at.misbehave("hang")
}

func (ch *chaos) holdLock(context.Context, target) (string, ending, error) {
	if ch.lock != nil {
		return "", nil, errNotNow
	}
	f, err := lockTables()
	if err != nil {
		return "", nil, err
	}
	ch.lock = f
	return "all nodes", func(context.Context) error {
		ch.lock = nil
		return f.Close()
	}, nil
}

// The faults of the API server, and of the way there.

func (ch *chaos) restartAPI(context.Context, target) (string, ending, error) {
	if ch.apiDown {
		return "", nil, errNotNow
	}
	ch.cp.stopAPIServer()
	ch.apiDown = true
	return "", func(ctx context.Context) error {
		ch.apiDown = false
		return ch.cp.startAPIServer(ctx)
	}, nil
}

// cutAPI returns a fault of the control plane's host: it stops a node's packets to the
// API server for a while.
func cutAPI(action ...string) func(*chaos, context.Context, target) (string, ending, error) {
	return func(ch *chaos, ctx context.Context, at target) (string, ending, error) {
		rule := append([]string{"INPUT", "-s", at.addr(4).String(), "-p", "tcp", "--dport", strconv.Itoa(apiPort), "-j"}, action...)
		run := func(ctx context.Context, verb string) error {
			_, err := ch.cp.host.Run(ctx, "iptables-nft", append([]string{verb}, rule...)...)
			return err
		}
		return at.Plan.Name, func(ctx context.Context) error { return run(ctx, "-D") }, run(ctx, "-I")
	}
}
