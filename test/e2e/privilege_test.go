package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// needless are the capabilities of the manifest that a backend does without.
var needless = map[string][]v1.Capability{"nft": {"NET_RAW"}}

// refusals is how the kernel and the API server say no.
var refusals = regexp.MustCompile(`(?i)permission denied|not permitted|read-only file system|forbidden`)

// The containers of deploy/daemonset.yaml do the whole of the agent's work with what
// the manifest gives them: the capabilities, and of these only what the backend needs;
// a root file system that cannot be written to; kernel settings that only the init
// container may change; the ServiceAccount and its role. Nothing is refused to them, and
// nothing that the role allows goes unused.
func TestLeastPrivilege(t *testing.T) {
	notForKubeProxy(t, "the manifest is not kube-proxy's")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		s := readShipped(t).forThisCluster()
		audit := fileSize(c.cp.auditLog())

		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		if out, err := n.container(t, c, s, s.init).CombinedOutput(); err != nil || refusals.Match(out) {
			t.Fatalf("the init container: %v: %s", err, out)
		}
		said := fileSize(n.log())
		n.startContained(t, n.container(t, c, s, s.stays, needless[c.backend]...))
		n.holdsOnly(t, s.stays.SecurityContext, needless[c.backend]...)

		t.Run("packets get through", func(t *testing.T) { testContainedPackets(t, c, n) })
		t.Run("a flushed table is filled", func(t *testing.T) { testContainedRepair(t, c, n) })
		t.Run("a connection leaves a dead endpoint", func(t *testing.T) { testContainedFailover(t, c) })
		t.Run("a UDP flow follows its endpoints", func(t *testing.T) { testContainedFlow(t, c) })
		t.Run("events are written", func(t *testing.T) { testContainedEvents(t, c, n) })

		for _, family := range families {
			n.waitUntilGone(t, family, "/marker-") // what settle leaves to be removed
		}
		before := saveAll(t, n)
		if err := n.agent.end(syscall.SIGTERM); err != nil {
			t.Errorf("the agent ended with %v, want exit status 0", err)
		}
		for family, want := range before {
			if got := saveAll(t, n)[family]; got != want {
				t.Errorf("%s rules changed at exit:\n%s", familyName(family), lineDiff(got, want))
			}
		}

		// The way in which the agent gets its objects from an API server that does not
		// send lists as watches.
		cmd := n.container(t, c, s, s.stays, needless[c.backend]...)
		cmd.Env = append(cmd.Env, "KUBE_FEATURE_WatchListClient=false")
		n.startContained(t, cmd)

		if found := refusals.FindString(tail(n.log(), said)); found != "" {
			t.Errorf("something was refused: the agent's log says %q", found)
		}
		asked := c.asked(t, n, audit)
		for a, let := range asked {
			if !let {
				t.Errorf("the API server refused to %s", a)
			}
		}
		for _, a := range c.granted(t) {
			if _, used := asked[a]; !used {
				t.Errorf("the role allows to %s, which the agent never did", a)
			}
		}
	})
}

// Without a capability that it needs, the agent ends and says what was refused; the
// rules that are there stay.
func TestMissingCapability(t *testing.T) {
	notForKubeProxy(t, "the manifest is not kube-proxy's")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		s := readShipped(t).forThisCluster()
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		before := saveAll(t, n)
		for _, capability := range s.stays.SecurityContext.Capabilities.Add {
			if c.backend == "nft" && capability == "NET_RAW" {
				continue
			}
			t.Run(string(capability), func(t *testing.T) {
				out, err := n.container(t, c, s, s.stays, capability).CombinedOutput()
				if err == nil || !refusals.Match(out) {
					t.Errorf("it ended with %v, want exit status 1 and what was refused:\n%s", err, out)
				}
				for family, want := range before {
					if got := saveAll(t, n)[family]; got != want {
						t.Errorf("%s rules changed:\n%s", familyName(family), lineDiff(got, want))
					}
				}
			})
		}
	})
}

// forThisCluster is the manifest after the second of the changes that its head asks
// for, the range that pods get their addresses from, and with the tests' syncPeriod.
func (s shipped) forThisCluster() shipped {
	ours := fmt.Sprintf("clusterCIDR: %s\niptables: {syncPeriod: %s}", clusterCIDRs, syncPeriod)
	s.config = regexp.MustCompile(`(?m)^clusterCIDR: .*$`).ReplaceAllString(s.config, ours)
	return s
}

// startContained starts a container in the place of the node's agent, and waits until
// it is ready.
func (n *node) startContained(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var err error
	if n.agent, err = startProcess("container on "+n.Plan.Name, n.log(), cmd); err != nil {
		t.Fatal(err)
	}
	n.waitReady(t)
}

// holdsOnly checks that the agent is confined as the manifest says: a test of the
// container that ran with all rights would pass.
func (n *node) holdsOnly(t *testing.T, security *v1.SecurityContext, without ...v1.Capability) {
	t.Helper()
	numbers := map[v1.Capability]int{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW}
	var mask uint64
	for _, capability := range security.Capabilities.Add {
		number, known := numbers[capability]
		if !known {
			t.Fatalf("this test does not know the capability %s", capability)
		}
		if !slices.Contains(without, capability) {
			mask |= 1 << number
		}
	}
	proc := fmt.Sprintf("/proc/%d", n.agent.cmd.Process.Pid)
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"Name": "miniproxy", "CapInh": fmt.Sprintf("%016x", 0), "CapPrm": fmt.Sprintf("%016x", mask),
		"CapEff": fmt.Sprintf("%016x", mask), "CapBnd": fmt.Sprintf("%016x", mask), "CapAmb": fmt.Sprintf("%016x", 0),
		"NoNewPrivs": "1",
	} {
		if !strings.Contains("\n"+string(status), fmt.Sprintf("\n%s:\t%s\n", field, want)) {
			t.Errorf("%s is not %s in the agent's\n%s", field, want, status)
		}
	}
	for _, file := range []string{"/", "/etc", "/usr", "/proc/sys/net/ipv4/ip_forward", "/sys", "/run"} {
		err := unix.Access(filepath.Join(proc, "root", file), unix.W_OK)
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written to in the container: %v", file, err)
		}
	}
}

func testContainedPackets(t *testing.T, c *cluster, n *node) {
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	ns.pod(t, "s", podB)
	svc := ns.service(t, "s", nodePort)
	c.waitForEndpoints(t, svc, podA, podB)
	forEachFamily(t, func(t *testing.T, family int) {
		checkWays(t, []wayIn{
			{c.podCaller(podC), clusterIP(t, svc, family)},
			{c.clientCaller(n1), nodePortAt(svc, n, family)},
		}, podA, podB)
	})
}

func testContainedRepair(t *testing.T, c *cluster, n *node) {
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	svc := ns.service(t, "s")
	c.waitForEndpoints(t, svc, podA)
	forEachFamily(t, func(t *testing.T, family int) {
		want := n.saveOurs(t, family)
		n.flush(t, family, "nat")
		eventually(t, "the rules to be back", func() error {
			if got := n.saveOurs(t, family); got != want {
				return errors.New(lineDiff(got, want))
			}
			return n.agent.alive()
		})
		checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, family)}}, podA)
	})
	c.replantForeignRules(t, n)
}

// testContainedFailover frees a connection whose endpoint does not answer and is then
// removed: the conntrack table can be read and changed.
func testContainedFailover(t *testing.T, c *cluster) {
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	svc := ns.service(t, "s")
	c.waitForEndpoints(t, svc, podA)
	dead := c.pods[podA]
	if _, err := dead.Run(t.Context(), "iptables-nft", "-A", "INPUT", "-p", "tcp", "-j", "DROP"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := dead.Run(context.Background(), "iptables-nft", "-F", "INPUT"); err != nil {
			t.Error(err)
		}
	}()
	answered := make(chan error, 1)
	go func() {
		p, err := getFrom(t, c.pods[podC].Host, clusterIP(t, svc, 4).String(), "/")
		if err == nil && !strings.Contains(p.body, `"`+podB+`"`) {
			err = fmt.Errorf("answered %q, want %s", p.body, podB)
		}
		answered <- err
	}()
	eventually(t, "the client to knock at the dead pod", func() error {
		counters, err := dead.Run(t.Context(), "iptables-nft", "-nvxL", "INPUT")
		if err == nil && !regexp.MustCompile(`(?m)^ *[1-9]\d* .* DROP `).MatchString(counters) {
			err = fmt.Errorf("it has not: %s", counters)
		}
		return err
	})
	// The other one first: a Service without endpoints refuses who comes.
	ns.pod(t, "s", podB)
	c.waitForEndpoints(t, svc, podA, podB)
	ns.deletePod(t, podA)
	if err := <-answered; err != nil {
		t.Errorf("the connection that waited for the dead pod: %v", err)
	}
}

func testContainedFlow(t *testing.T, c *cluster) {
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	svc := ns.service(t, "s", udp)
	c.waitForEndpoints(t, svc, podA)
	f := newFlow(t, c.pods[podC].Host, clusterIP(t, svc, 4))
	f.eventuallyAnsweredBy(t, podA)
	ns.deletePod(t, podA)
	ns.pod(t, "s", podB)
	f.eventuallyAnsweredBy(t, podB)
}

// testContainedEvents makes the agent write an event, and the same one again: the
// first is created, the second patched.
func testContainedEvents(t *testing.T, c *cluster, n *node) {
	ns := c.newNamespace(t)
	audit := fileSize(c.cp.auditLog())
	older := ns.service(t, "elder", withExternalIPs)
	younger := ns.youngerService(t, older, "junior", withExternalIPs)
	ns.waitForEvent(t, younger.Name, "FrontendTaken", externalIP(younger, 4).String())
	c.waitUntilAsked(t, n, audit, access{"create", "events.k8s.io", "events"})

	ns.update(t, older.Name, func(svc *v1.Service) { svc.Spec.ExternalIPs = nil })
	if err := c.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	ns.update(t, older.Name, withExternalIPs)
	c.waitUntilAsked(t, n, audit, access{"patch", "events.k8s.io", "events"})
}
