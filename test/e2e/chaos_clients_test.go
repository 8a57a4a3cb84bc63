package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// client connects to one Service address for as long as the test runs, a connection
// each time, and keeps what failed.
type client struct {
	name   string
	from   *lab.Host
	to     netip.AddrPort
	family int
	// firstPort begins the source ports that are the client's own. Each is used again
	// only when conntrack has forgotten about a connection that failed.
	firstPort int

	mu          sync.Mutex
	made        int
	failed      []attempt
	failingFrom time.Time
	longest     time.Duration // from a first failure to the next success
	lastGood    time.Time     // when the last success began
}

// attempt is a connection that failed.
type attempt struct {
	began, ended time.Time
	err          error
}

const (
	// clientPatience is how long a connection may take. A connection through whole
	// rules never takes so long, but on a machine that does nothing for seconds.
	clientPatience = 10 * time.Second
	// clientPause is between two connections of a client.
	clientPause = 100 * time.Millisecond
	clientPorts = 2000
)

// addClients starts clients of the steady Services: pods on both nodes, and one from
// outside through each node.
func (ch *chaos) addClients(t *testing.T) {
	t.Helper()
	add := func(name string, from *lab.Host, to netip.AddrPort, family int) {
		ch.clients = append(ch.clients, &client{
			name: fmt.Sprintf("%s to %s", name, to), from: from, to: to, family: family,
			firstPort: 10000 + clientPorts*len(ch.clients),
		})
	}
	for _, svc := range ch.world.steady {
		for _, family := range families {
			vip := clusterIP(t, svc, family)
			switch {
			case svc.Spec.Type == v1.ServiceTypeNodePort:
				add("client through n1", ch.net.Client, nodePortAt(svc, ch.nodes[n1], family), family)
				add("client through n2", ch.net.Client, nodePortAt(svc, ch.nodes[n2], family), family)
			case svc.Spec.Type == v1.ServiceTypeLoadBalancer:
				add("client through n1", ch.net.Client, netip.AddrPortFrom(steadyBalancer[family], vip.Port()), family)
			case svc == ch.world.talking:
				ch.flows = append(ch.flows, newTalker(t, ch.pods[podC].Host, vip))
			default:
				add("pod c on n1", ch.pods[podC].Host, vip, family)
				add("pod d on n2", ch.pods[podD].Host, vip, family)
			}
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for _, c := range ch.clients {
		running.Go(func() { c.run(ctx) })
	}
	for _, f := range ch.flows {
		running.Go(func() { f.run(ctx) })
	}
}

func (c *client) run(ctx context.Context) {
	tick := time.NewTicker(clientPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			began := time.Now()
			err := c.connect(ctx)
			if ctx.Err() == nil {
				c.record(attempt{began, time.Now(), err})
			}
		}
	}
}

// connect makes one request.
func (c *client) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	var conn net.Conn
	err := c.from.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: c.firstPort + c.made%clientPorts}}
		conn, err = dialer.DialContext(ctx, "tcp", c.to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(clientPatience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	_, body, _ := strings.Cut(string(text), "\r\n\r\n")
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		return fmt.Errorf("answer %q: %w", text, err)
	}
	return nil
}

func (c *client) record(a attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	if a.err != nil {
		c.failed = append(c.failed, a)
		if c.failingFrom.IsZero() {
			c.failingFrom = a.began
		}
		return
	}
	c.lastGood = a.began
	if !c.failingFrom.IsZero() {
		c.longest = max(c.longest, a.ended.Sub(c.failingFrom))
		c.failingFrom = time.Time{}
	}
}

// since is when the client's last successful connection began.
func (c *client) since() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastGood
}

// takeFailures returns the failures since the last call.
func (c *client) takeFailures() []attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := c.failed
	c.failed = nil
	return failed
}

// checkClients waits until each client has connected after the repair, and fails the
// test for each connection that failed for another reason than damage to the rules of
// its family.
func (ch *chaos) checkClients(t *testing.T, repaired time.Time) {
	t.Helper()
	for _, c := range ch.clients {
		eventually(t, c.name+" to connect", func() error {
			if !c.since().After(repaired) {
				failed := c.takeFailures()
				ch.judge(t, c, failed, repaired)
				if len(failed) > 0 {
					return failed[len(failed)-1].err
				}
				return fmt.Errorf("not connected since %v", repaired)
			}
			return nil
		})
		ch.judge(t, c, c.takeFailures(), repaired)
	}
	for _, f := range ch.flows {
		eventually(t, f.name+" to be answered by a pod that serves", func() error {
			began, pod := f.last()
			if !began.After(repaired) || !slices.Contains(ch.world.serving, pod) {
				return fmt.Errorf("last answered by %q, %v after the repair; those that serve are %v", pod, began.Sub(repaired), ch.world.serving)
			}
			return nil
		})
	}
	if t.Failed() {
		t.FailNow()
	}
}

// judge fails the test for failures that no damage explains.
func (ch *chaos) judge(t *testing.T, c *client, failed []attempt, repaired time.Time) {
	t.Helper()
	damaged := ch.damaged[c.family]
	for _, a := range failed {
		ch.tally.failed++
		what := fmt.Sprintf("%s failed at %v, after %v: %v", c.name,
			a.began.Format(clock), a.ended.Sub(a.began).Round(time.Millisecond), a.err)
		ch.note("%s", what)
		if damaged.IsZero() || a.ended.Before(damaged) || a.began.After(repaired) {
			t.Errorf("with no rules missing %s", what)
		}
	}
}

// talker is a UDP client that keeps its source port for as long as the test runs, so
// that conntrack never forgets where its packets went.
type talker struct {
	*flow
	name string

	mu    sync.Mutex
	began time.Time
	pod   string
}

func newTalker(t *testing.T, from *lab.Host, to netip.AddrPort) *talker {
	return &talker{flow: newFlow(t, from, to), name: fmt.Sprintf("the UDP flow from %s to %s", from.Name(), to)}
}

func (f *talker) run(ctx context.Context) {
	tick := time.NewTicker(clientPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			began := time.Now()
			if a, err := f.ask(); err == nil {
				f.mu.Lock()
				f.began, f.pod = began, a.Pod
				f.mu.Unlock()
			}
		}
	}
}

// last is when the last packet that was answered was sent, and who answered.
func (f *talker) last() (began time.Time, pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.began, f.pod
}

// tally is what is printed in the end.
type tally struct {
	events, checkpoints, packets, divergences int
	failed                                    int
	faults                                    map[string]int
	longest                                   map[string]time.Duration // repair, by kind of fault
}

func newTally() tally {
	return tally{faults: map[string]int{}, longest: map[string]time.Duration{}}
}

// What repairs after no fault, and after more than one, are counted as.
const (
	noFault    = "(events alone)"
	manyFaults = "(several faults)"
)

// repaired notes how long the way to a quiet point took.
func (t *tally) repaired(kinds []string, took time.Duration) {
	kind := noFault
	if len(kinds) == 1 {
		kind = kinds[0]
	} else if len(kinds) > 1 {
		kind = manyFaults
	}
	t.longest[kind] = max(t.longest[kind], took)
}

// report is the tally as a table.
func (t *tally) report(clients []*client) string {
	var b strings.Builder
	connections, window := 0, time.Duration(0)
	for _, c := range clients {
		c.mu.Lock()
		connections += c.made
		window = max(window, c.longest)
		c.mu.Unlock()
	}
	fmt.Fprintf(&b, "%d events, %d checkpoints, %d divergences, %d packets traced\n", t.events, t.checkpoints, t.divergences, t.packets)
	fmt.Fprintf(&b, "%d connections, %d failed while rules were missing, for %v at the longest\n", connections, t.failed, window.Round(time.Millisecond))
	kinds := map[string]bool{}
	total := 0
	for kind, n := range t.faults {
		kinds[kind] = true
		total += n
	}
	for kind := range t.longest {
		kinds[kind] = true
	}
	fmt.Fprintf(&b, "%-36s %7s %16s\n", "fault", "number", "longest repair")
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		repair := "-"
		if took, alone := t.longest[kind]; alone {
			repair = took.Round(10 * time.Millisecond).String()
		}
		fmt.Fprintf(&b, "%-36s %7d %16s\n", kind, t.faults[kind], repair)
	}
	fmt.Fprintf(&b, "%-36s %7d\n", "all", total)
	return b.String()
}
