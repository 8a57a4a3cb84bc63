package e2e

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

var compareFlag = flag.Bool("compare", false,
	"run the comparisons with the real kube-proxy, which print times and take minutes")

// contestants are the programs that are compared, each with its default periods.
func contestants(t *testing.T, c *cluster, n *node) map[string]func() {
	t.Helper()
	kubeProxy := newOriginal(t, c, n)
	begin := func(start func()) func() {
		return func() {
			if err := n.killAgent(); err != nil {
				t.Fatal(err)
			}
			start()
			if err := c.settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	const usual = "--iptables-sync-period=30s"
	return map[string]func(){
		agentMiniproxy: begin(func() {
			if err := n.startAgent(usual); err != nil {
				t.Fatal(err)
			}
		}),
		agentKubeProxy: begin(func() { kubeProxy.start(t, usual) }),
	}
}

// repairLimit is how long a comparison waits for a repair: longer than both programs'
// period.
const repairLimit = 40 * time.Second

// TestCompareRepair prints how long Services are away after somebody has flushed the
// table nat, and after somebody has removed its chains too, with miniproxy and with
// kube-proxy. It holds that they come back with miniproxy.
func TestCompareRepair(t *testing.T) {
	compare(t, func(t *testing.T, c *cluster, n *node) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		for name, start := range contestants(t, c, n) {
			for _, damage := range [][]string{{"-F"}, {"-F", "-X"}} {
				start()
				for range 2 {
					for _, verb := range damage {
						// A program that is quick has filled some chains again, and those stay.
						if _, err := n.iptables(t.Context(), "iptables", "-w", "-t", "nat", verb); err != nil && verb == "-F" {
							t.Fatal(err)
						}
					}
					took, back := awayFor(c.pods[podC].Host, clusterIP(t, svc, 4).String())
					if !back && name == agentMiniproxy {
						t.Errorf("Services are still away after %v", took)
					}
					t.Logf("repair, %s, %s, iptables -t nat %v: back %v, after %v", c.backend, name, damage, back, took.Round(time.Millisecond))
					if !back {
						break
					}
				}
			}
		}
	})
}

// awayFor is how long an address cannot be connected to, and whether it can then.
func awayFor(from *lab.Host, to string) (took time.Duration, back bool) {
	begin := time.Now()
	for time.Since(begin) < repairLimit {
		if connectIn(from, to, time.Second/10) == nil {
			return time.Since(begin), true
		}
	}
	return time.Since(begin), false
}

// TestCompareFailover prints what clients meet when one of two endpoints vanishes
// without a word and is removed three seconds later, with miniproxy and with kube-proxy.
func TestCompareFailover(t *testing.T) {
	compare(t, func(t *testing.T, c *cluster, n *node) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA, podB)
		to := clusterIP(t, svc, 4).String()
		for name, start := range contestants(t, c, n) {
			start()
			clients := startClients(c.pods[podC].Host, to)
			time.Sleep(time.Second) // of a quiet life, to compare with
			awake := c.pods[podB].sleep(t)
			time.Sleep(3 * time.Second) // until somebody notices
			ns.deletePod(t, podB)
			time.Sleep(5 * time.Second)
			t.Logf("failover, %s, %s: %s", c.backend, name, clients.stop())
			awake()
			ns.pod(t, "s", podB)
			c.waitForEndpoints(t, svc, podA, podB)
		}
	})
}

// compare runs a comparison on both backends, if it was asked for.
func compare(t *testing.T, run func(t *testing.T, c *cluster, n *node)) {
	t.Helper()
	if !*compareFlag {
		t.Skip("takes minutes: run with -args -compare")
	}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		run(t, c, n)
	})
}

// connectIn opens and closes a connection.
func connectIn(from *lab.Host, to string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return err
	}
	return conn.Close()
}

// sleep has a pod take no packets any more, until the function is called that it
// returns.
func (s *sandbox) sleep(t *testing.T) (awake func()) {
	t.Helper()
	drop := func(verb string) {
		if _, err := s.Run(context.Background(), "iptables-nft", verb, "INPUT", "-p", "tcp", "-j", "DROP"); err != nil {
			t.Error(err)
		}
	}
	drop("-A")
	return func() { drop("-D") }
}

// clients connect all the time, twenty times a second, and wait for 30 seconds each.
type clients struct {
	quit    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	took    []time.Duration
	failed  int
}

func startClients(from *lab.Host, to string) *clients {
	c := &clients{quit: make(chan struct{})}
	c.running.Go(func() {
		tick := time.NewTicker(time.Second / 20)
		defer tick.Stop()
		for {
			select {
			case <-c.quit:
				return
			case <-tick.C:
				c.running.Go(func() { c.connect(from, to) })
			}
		}
	})
	return c
}

func (c *clients) connect(from *lab.Host, to string) {
	begin := time.Now()
	err := connectIn(from, to, 30*time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, time.Since(begin))
	if err != nil {
		c.failed++
	}
}

// stop ends the clients, after their last connections, and says how it went.
func (c *clients) stop() string {
	close(c.quit)
	c.running.Wait()
	slices.Sort(c.took)
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d connects failed within 30s; connect", c.failed, len(c.took))
	for _, percent := range []int{50, 90, 99, 100} {
		fmt.Fprintf(&b, " p%d %v", percent, c.took[(len(c.took)-1)*percent/100].Round(time.Millisecond))
	}
	return b.String()
}
