package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// original is the kube-proxy that takes turns with the agent.
type original struct {
	node       *node
	kubeconfig string
}

// newOriginal prepares a node for the original, with the rights of an administrator:
// the agent's account may not do all that kube-proxy does.
func newOriginal(t *testing.T, c *cluster, n *node) original {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kube-proxy.kubeconfig")
	if err := c.cp.writeKubeconfig(path, c.cp.token); err != nil {
		t.Fatal(err)
	}
	return original{node: n, kubeconfig: path}
}

// The original's servers, so that it can run beside an agent.
const (
	originalHealthAddr  = "127.0.0.1:20256"
	originalMetricsAddr = "127.0.0.1:20249"
)

// start starts kube-proxy as the node's agent.
func (o original) start(t *testing.T, extra ...string) {
	t.Helper()
	n := o.node
	args := append(n.proxyArgs(o.kubeconfig),
		"--proxy-mode=iptables", "--healthz-bind-address="+originalHealthAddr, "--metrics-bind-address="+originalMetricsAddr)
	cmd := n.Command(context.Background(), filepath.Join(os.Getenv(envControlPlane), agentKubeProxy), append(args, extra...)...)
	cmd.Env = n.env()
	var err error
	if n.agent, err = startProcess("kube-proxy on "+n.Plan.Name, n.log(), cmd); err != nil {
		t.Fatal(err)
	}
}

var (
	originalSyncs  = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_duration_seconds_count.* [1-9]`)
	failedRestores = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_iptables_(partial_)?restore_failures_total.* [1-9].*$`)
)

// mustRestore fails the test if the original could not write something since its start.
func (o original) mustRestore(t *testing.T) {
	t.Helper()
	p, err := o.node.get(t, originalMetricsAddr, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !originalSyncs.MatchString(p.body) {
		t.Errorf("kube-proxy does not say that it has written anything:\n%s", p.body)
	}
	if failed := failedRestores.FindString(p.body); failed != "" {
		t.Errorf("kube-proxy failed to write: %s", failed)
	}
}

// treeSize is a number of Services that does not fit into one chain of a tree.
const treeSize = 20

// A node is taken over from the real kube-proxy and given back to it, one ending
// before the other starts or after, with flat chains or trees, and not one request
// fails. What only the one of them needs is gone once the other has written its rules.
func TestTakeover(t *testing.T) {
	notForKubeProxy(t, "needs miniproxy to take turns with kube-proxy")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		kubeProxy := newOriginal(t, c, n)
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA, podB)
		// Enough for trees in the tables nat and filter.
		for i := range treeSize {
			ns.serviceUnseen(t, fmt.Sprintf("served-%d", i), nodePort, func(svc *v1.Service) { svc.Spec.Selector = map[string]string{appLabel: "s"} })
			last := ns.serviceUnseen(t, fmt.Sprintf("refused-%d", i))
			if i == treeSize-1 {
				c.waitForRules(t, last, portName(last))
			}
		}
		c.restoreAgent(t, n)
		flat := n.chains(t)
		loads := []*load{
			startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4)),
			startLoad(t, c, n.Host, clusterIP(t, svc, 6)),
			startLoad(t, c, c.net.Client, nodePortAt(svc, n, 4)),
		}
		settle := func(t *testing.T) {
			t.Helper()
			if err := c.settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, l := range loads {
				l.waitForMore(t, loadRate/2)
			}
		}
		end := func(t *testing.T) {
			t.Helper()
			if err := n.agent.alive(); err != nil {
				t.Fatal(err)
			}
			if err := n.agent.end(syscall.SIGTERM); err != nil {
				t.Logf("%s: %v", n.agent.name, err) // kube-proxy ends by the signal
			}
		}
		start := func(t *testing.T, extra ...string) {
			t.Helper()
			if err := n.startAgent(extra...); err != nil {
				t.Fatal(err)
			}
			n.waitReady(t)
		}
		giveBack := func(t *testing.T) {
			end(t)
			kubeProxy.start(t)
			settle(t)
			kubeProxy.mustRestore(t)
			// It knows of no chains for Services in the table filter. Nothing leads to them.
			n.mustHoldChains(t, flat, "/filter/")
		}

		t.Run("given back", giveBack)
		t.Run("taken over with trees", func(t *testing.T) {
			end(t)
			start(t, "--flat-dispatch-limit=1", "--flat-balance-limit=1")
			settle(t)
			n.mustHaveNoOrphans(t)
			if len(n.chains(t)) <= len(flat) {
				t.Error("there are no trees, so that the next step shows nothing")
			}
		})
		t.Run("given back from trees", giveBack)
		t.Run("taken over while kube-proxy runs", func(t *testing.T) {
			former := n.agent
			start(t)
			settle(t)
			if err := former.alive(); err != nil {
				t.Fatal(err)
			}
			kubeProxy.mustRestore(t)
			_ = former.end(syscall.SIGTERM) // it ends by the signal
			settle(t)
			n.mustHoldChains(t, flat)
			n.mustHaveNoOrphans(t)
		})
		for _, l := range loads {
			l.stop(t)
		}
	})
}

// perService are the chains that exist for the sake of some Services.
var perService = regexp.MustCompile(`^KUBE-(SVC|SVL|EXT|FW|SEP|XLB)-`)

// chains are the node's chains for Services, as family/table/chain, sorted.
func (n *node) chains(t *testing.T) []string {
	t.Helper()
	var list []string
	n.eachLine(t, func(at, line string) {
		if name, found := strings.CutPrefix(line, ":"); found {
			if name, _, _ = strings.Cut(name, " "); perService.MatchString(name) {
				list = append(list, at+name)
			}
		}
	})
	slices.Sort(list)
	return list
}

// eachLine calls f for each line of the node's tables, with the place "family/table/".
func (n *node) eachLine(t *testing.T, f func(at, line string)) {
	t.Helper()
	for _, family := range families {
		text, err := n.save(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		var table string
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if name, found := strings.CutPrefix(line, "*"); found {
				table = name
			}
			f(fmt.Sprintf("%s/%s/", familyName(family), table), line)
		}
	}
}

// mustHoldChains fails the test if the chains for Services are others than those. Those
// in the ignored places do not count.
func (n *node) mustHoldChains(t *testing.T, want []string, ignored ...string) {
	t.Helper()
	got := slices.DeleteFunc(n.chains(t), func(chain string) bool {
		return slices.ContainsFunc(ignored, func(place string) bool { return strings.Contains(chain, place) })
	})
	if !slices.Equal(got, want) {
		t.Errorf("chains for Services:\n%s", lineDiff(strings.Join(got, "\n"), strings.Join(want, "\n")))
	}
}

// mustHaveNoOrphans fails the test if there is a chain for Services that no rule
// leads to.
func (n *node) mustHaveNoOrphans(t *testing.T) {
	t.Helper()
	target := regexp.MustCompile(` -[jg] (\S+)`)
	used := map[string]bool{}
	n.eachLine(t, func(at, line string) {
		if match := target.FindStringSubmatch(line); match != nil && strings.HasPrefix(line, "-A ") {
			used[at+match[1]] = true
		}
	})
	for _, chain := range n.chains(t) {
		if !used[chain] {
			t.Errorf("nothing leads to the chain %s", chain)
		}
	}
}
