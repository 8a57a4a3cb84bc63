package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"
)

const (
	// sampled is how many Services must answer for a program to count as ready.
	sampled = 64
	// quiet is the pause between two changes: longer than any program's own pause
	// between two writes.
	quiet = 1500 * time.Millisecond
	// block is how many connections are made before others have their turn.
	block = 100
	// changePatience is how long a change may take.
	changePatience = time.Minute
)

// result is what was measured of one row, over all rounds.
type result struct {
	row row
	// failure is why it was given up.
	failure error
	starts  []time.Duration
	changes []time.Duration
	// cpu is what all changes took.
	cpu time.Duration
	// agentPeak, agentEnd and childPeak are bytes of memory: the program's at most and at
	// the end, and the most of one of the commands that it runs.
	agentPeak, agentEnd, childPeak int64
	// via and direct are the connections through Services and to a pod, floor those to a
	// pod from a node without rules.
	via, direct, floor []time.Duration
}

// measurement is a run of this program.
type measurement struct {
	config  config
	api     *apiServer
	machine machine
	dir     string
	// bare is a network in which no program runs.
	bare  *network
	flips int
}

func newMeasurement(ctx context.Context, c config) (*measurement, error) {
	api, err := newAPIServer(c.load)
	if err != nil {
		return nil, err
	}
	machine, err := describeMachine(ctx, c)
	return &measurement{config: c, api: api, machine: machine}, err
}

// all measures all rows in turn, round after round, so that a machine that is slower
// for a while is slower for all of them.
func (m *measurement) all(ctx context.Context) ([]*result, error) {
	m.dir = m.config.logs
	if m.dir == "" {
		var err error
		if m.dir, err = os.MkdirTemp("", "miniproxy-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(m.dir)
	}
	var err error
	if m.bare, err = newNetwork(ctx, m.api); err != nil {
		return nil, err
	}
	defer m.bare.close()
	var results []*result
	for _, r := range m.config.rows {
		results = append(results, &result{row: r})
	}
	for round := range m.config.rounds {
		for _, res := range results {
			if res.failure != nil {
				continue
			}
			begun := time.Now()
			if err := m.one(ctx, res); err != nil {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				res.failure = err
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s, in %.0f s\n", round+1, m.config.rounds, res.progress(), time.Since(begun).Seconds())
		}
	}
	return results, nil
}

// one measures a row once, on a node of its own.
func (m *measurement) one(ctx context.Context, res *result) error {
	n, err := newNetwork(ctx, m.api)
	if err != nil {
		return err
	}
	defer n.close()
	if err := waitForCalm(ctx); err != nil {
		return err
	}
	program := m.config.kubeProxy
	if res.row.miniproxy {
		program = m.config.miniproxy
	}
	a, err := startAgent(ctx, n.node, res.row, program, m.dir)
	if err != nil {
		return err
	}
	defer a.kill()
	steps := []func() error{
		func() error { return n.node.Do(func() error { return m.start(ctx, a, res) }) },
		func() error { return a.settle(ctx) },
		func() error { return m.change(ctx, n, a, res) },
		func() error { return m.connect(n, res) },
		func() error { return res.readMemory(a) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return errors.Join(err, a.alive())
		}
	}
	return nil
}

// start waits until a sample of the Services has answered.
func (m *measurement) start(ctx context.Context, a *agent, res *result) error {
	for _, i := range rand.Perm(m.config.load.services)[:min(sampled, m.config.load.services)] {
		for {
			if _, err := ask(serviceAddr(i)); err == nil {
				break
			}
			if time.Since(a.started) > m.config.bound {
				return notReadyError{m.config.bound}
			}
			if err := errors.Join(a.alive(), pause(ctx, 5*time.Millisecond)); err != nil {
				return err
			}
		}
	}
	res.starts = append(res.starts, time.Since(a.started))
	return nil
}

// notReadyError says that a program was not ready in time.
type notReadyError struct{ bound time.Duration }

func (e notReadyError) Error() string {
	return fmt.Sprintf("not ready after %.0f s", e.bound.Seconds())
}

// change lets a Service's only endpoint become another one, several times, and waits
// for the first connection that it answers. CPU time is counted with the quiet time
// after each change, so that what comes later belongs to the change as well.
func (m *measurement) change(ctx context.Context, n *network, a *agent, res *result) error {
	before, err := cpuTime(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for range m.config.flips {
		var took time.Duration
		if err := n.node.Do(func() (err error) { took, err = m.flip(ctx); return err }); err != nil {
			return err
		}
		res.changes = append(res.changes, took)
		if err := pause(ctx, quiet); err != nil {
			return err
		}
	}
	after, err := cpuTime(a.cmd.Process.Pid)
	res.cpu += after - before
	return err
}

func (m *measurement) flip(ctx context.Context) (time.Duration, error) {
	m.flips++
	want := probeEndpoints[m.flips%2]
	start := time.Now()
	if err := m.api.put(slice("probe", want)); err != nil {
		return 0, err
	}
	for {
		if got, err := ask(probeService); err == nil && got == want {
			return time.Since(start), nil
		}
		if time.Since(start) > changePatience {
			return 0, fmt.Errorf("a change was not seen within %v", changePatience)
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// connect sets up connections through random Services, to a pod, and to a pod from the
// node without rules. They take turns, so that a noisy machine disturbs all alike.
func (m *measurement) connect(n *network, res *result) error {
	random := func() netip.AddrPort { return serviceAddr(rand.IntN(m.config.load.services)) }
	direct := func() netip.AddrPort { return directEndpoint }
	for made := 0; made < m.config.connections; made += block {
		count := min(block, m.config.connections-made)
		err := errors.Join(
			n.node.Do(func() error { return dial(count, random, &res.via) }),
			n.node.Do(func() error { return dial(count, direct, &res.direct) }),
			m.bare.node.Do(func() error { return dial(count, direct, &res.floor) }))
		if err != nil {
			return fmt.Errorf("measure connections: %w", err)
		}
	}
	return nil
}

// dial notes how long each of count connections takes to set up.
func dial(count int, to func() netip.AddrPort, times *[]time.Duration) error {
	for range count {
		took, err := connect(to())
		if err != nil {
			return err
		}
		*times = append(*times, took)
	}
	return nil
}

func (r *result) readMemory(a *agent) error {
	m, err := memoryOf(a.cmd.Process.Pid)
	r.agentPeak = max(r.agentPeak, m.peak)
	r.agentEnd = max(r.agentEnd, m.resident)
	r.childPeak = max(r.childPeak, a.childPeak.Load())
	return err
}

// progress says the last values of a row.
func (r *result) progress() string {
	if r.failure != nil {
		return fmt.Sprintf("%s: %v", r.row.name, r.failure)
	}
	return fmt.Sprintf("%s: ready after %.2f s, change p50 %.0f ms", r.row.name,
		r.starts[len(r.starts)-1].Seconds(), milliseconds(quantile(r.changes, 0.5)))
}

// waitForCalm waits until the machine has little to do: the kernel takes a network
// namespace with its rules apart after the namespace is gone. It does not wait for
// ever, because somebody else may be at work.
func waitForCalm(ctx context.Context) error {
	const look, patience = 300 * time.Millisecond, 20 * time.Second
	for start := time.Now(); time.Since(start) < patience; {
		before, err := busyTime()
		if err != nil {
			return err
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
		after, err := busyTime()
		if err != nil || after-before <= look/10 {
			return err
		}
	}
	return nil
}

// quantile returns the value below which a share q of the sample lies, 0 for an empty
// sample.
func quantile(sample []time.Duration, q float64) time.Duration {
	if len(sample) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(sample))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
