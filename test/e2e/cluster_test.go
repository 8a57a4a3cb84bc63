package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// backends are the forms of iptables that every case runs on.
var backends = []string{"nft", "legacy"}

// cluster is a control plane, nodes with an agent each, pods and a client.
type cluster struct {
	net     *lab.Cluster
	backend string
	dir     string
	cp      *controlPlane
	nodes   map[string]*node
	pods    map[string]*sandbox

	markers int       // see settle
	outcast *lab.Host // see neighbour
}

// client is the API client of an administrator.
func (c *cluster) client() kubernetes.Interface { return c.cp.client }

// shared are the clusters of this test run, one for each backend, made when a case
// first asks for one.
var shared clusters

type clusters struct {
	mu        sync.Mutex
	byBackend map[string]*cluster
	errs      map[string]error
}

// get returns the cluster of a backend. A cluster that could not be made once is not
// tried again for every case.
func (s *clusters) get(backend string) (*cluster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byBackend == nil {
		s.byBackend, s.errs = map[string]*cluster{}, map[string]error{}
	}
	if s.byBackend[backend] == nil && s.errs[backend] == nil {
		s.byBackend[backend], s.errs[backend] = newCluster(context.Background(), backend)
	}
	return s.byBackend[backend], s.errs[backend]
}

func (s *clusters) close() error {
	var errs []error
	for _, c := range s.byBackend {
		if c != nil {
			errs = append(errs, c.close())
		}
	}
	return errors.Join(errs...)
}

// onBothBackends runs a case on the cluster of each backend. Cases run one after
// another and leave the cluster as they found it.
func onBothBackends(t *testing.T, run func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, backend := range backends {
		onBackend(t, backend, run)
	}
}

// onBackend is onBothBackends for what has to do with one of them only, or with none.
func onBackend(t *testing.T, backend string, run func(t *testing.T, c *cluster)) {
	t.Helper()
	if skipReason != nil {
		t.Skip(skipReason)
	}
	t.Run(backend, func(t *testing.T) {
		c, err := shared.get(backend)
		if err != nil {
			t.Fatalf("no cluster: %v", err)
		}
		c.explainFailure(t)
		run(t, c)
	})
}

// forEachFamily runs a case for IPv4 and for IPv6.
func forEachFamily(t *testing.T, run func(t *testing.T, family int)) {
	t.Helper()
	for _, family := range families {
		t.Run(familyName(family), func(t *testing.T) { run(t, family) })
	}
}

// newCluster builds a cluster and waits until its agents have written rules. On an
// error it returns the half-built cluster, to be closed.
func newCluster(ctx context.Context, backend string) (*cluster, error) {
	dir, err := clusterDir(backend)
	if err != nil {
		return nil, err
	}
	l, err := lab.New("mpe2e")
	if err != nil {
		return nil, err
	}
	network, err := lab.NewCluster(l, lab.DefaultPlan())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c := &cluster{
		net: network, backend: backend, dir: dir,
		nodes: map[string]*node{}, pods: map[string]*sandbox{},
	}
	steps := []func(context.Context) error{
		c.addPods, c.addControlPlane, c.addNodes, c.applyDeploy, c.plantForeignRules, c.startAgents,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// clusterDir is the directory for a cluster's state and logs. /run is in memory and
// goes with the test run.
func clusterDir(backend string) (string, error) {
	parent := *workDirFlag
	if parent == "" {
		parent = "/run"
	}
	dir := filepath.Join(parent, "e2e-"+backend)
	return dir, os.MkdirAll(dir, 0o755)
}

func (c *cluster) addPods(context.Context) error {
	for _, p := range podPlan {
		s, err := newSandbox(c.net.Node(p.node), p.name, p.number)
		if err != nil {
			return err
		}
		c.pods[p.name] = s
	}
	return nil
}

func (c *cluster) addControlPlane(ctx context.Context) error {
	host, err := c.net.AddMachine(controlName, controlAddrs...)
	if err != nil {
		return err
	}
	// Pods may talk to the API server, and it must find the way back to them.
	for _, n := range c.net.Nodes {
		for i, cidr := range n.Plan.PodCIDRs {
			route := lab.Route{To: cidr, Via: n.Plan.Addrs[i].Addr(), Dev: lab.Uplink}
			if err := host.AddRoutes(route); err != nil {
				return err
			}
		}
	}
	c.cp, err = newControlPlane(ctx, host, c.dir)
	return err
}

// addNodes makes the Node objects, and what the agent on each node needs.
func (c *cluster) addNodes(ctx context.Context) error {
	if err := refuseAtWill(c.net.Underlay); err != nil {
		return err
	}
	for _, m := range c.net.Nodes {
		n := &node{
			Node: m, backend: c.backend, dir: filepath.Join(c.dir, m.Plan.Name),
			kubeconfig: filepath.Join(c.dir, m.Plan.Name+".kubeconfig"),
		}
		if err := n.linkTools(); err != nil {
			return err
		}
		if err := refuseAtWill(n.Host); err != nil {
			return err
		}
		c.nodes[m.Plan.Name] = n
		if err := c.registerNode(ctx, m.Plan); err != nil {
			return err
		}
	}
	return nil
}

// refuseAtWill lifts the limit on ICMP errors. By default a host sends a few and then
// stays silent for a second; the cases that wait for a refusal, or for its end, ask
// more often.
func refuseAtWill(h *lab.Host) error {
	return h.Sysctl(
		lab.Setting{Path: "net/ipv4/icmp_ratelimit", Value: "0"},
		lab.Setting{Path: "net/ipv6/icmp/ratelimit", Value: "0"})
}

// registerNode makes a Node object as the kubelet and the controllers would.
func (c *cluster) registerNode(ctx context.Context, plan lab.NodePlan) error {
	obj := &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: plan.Name,
		Labels: map[string]string{
			v1.LabelHostname:     plan.Name,
			v1.LabelTopologyZone: zones[plan.Name],
		},
	}}
	for _, cidr := range plan.PodCIDRs {
		obj.Spec.PodCIDRs = append(obj.Spec.PodCIDRs, cidr.String())
	}
	obj.Spec.PodCIDR = obj.Spec.PodCIDRs[0]
	nodes := c.client().CoreV1().Nodes()
	obj, err := nodes.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, addr := range plan.Addrs {
		obj.Status.Addresses = append(obj.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: addr.Addr().String()})
	}
	obj.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	_, err = nodes.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	return err
}

// startAgents starts the agents and waits until they have written rules.
func (c *cluster) startAgents(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.startAgent(); err != nil {
			return err
		}
	}
	return c.settle(ctx)
}

// close ends everything in the cluster and removes its network.
func (c *cluster) close() error {
	for _, n := range c.nodes {
		if n.agent != nil {
			_ = n.agent.end(syscall.SIGKILL) // it ends by the signal, never well
		}
	}
	if c.cp != nil {
		c.cp.stop()
	}
	for _, s := range c.pods {
		s.close()
	}
	return c.net.Lab.Close()
}

// explainFailure shows, when the test fails, what the agents said during it and what
// rules the nodes have.
func (c *cluster) explainFailure(t *testing.T) {
	offsets := map[*node]int64{}
	for _, n := range c.nodes {
		offsets[n] = fileSize(n.log())
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, n := range c.nodes {
			t.Logf("agent on %s:\n%s", n.Plan.Name, tail(n.log(), offsets[n]))
			for _, family := range families {
				rules, err := n.iptables(context.Background(), tool(family)+"-save")
				t.Logf("%s-save on %s: %v\n%s", tool(family), n.Plan.Name, err, rules)
			}
		}
	})
}

// settle returns when every agent has taken in every change of Services made before
// the call: it makes one more Service, waits for its rule everywhere, and removes it.
func (c *cluster) settle(ctx context.Context) error {
	c.markers++
	name := fmt.Sprintf("marker-%d", c.markers)
	services := c.client().CoreV1().Services(metav1.NamespaceDefault)
	dual := v1.IPFamilyPolicyRequireDualStack
	marker := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{IPFamilyPolicy: &dual, Ports: []v1.ServicePort{{Port: 9}}},
	}
	if _, err := services.Create(ctx, marker, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, n := range c.nodes {
		for _, family := range families {
			if err := n.waitForRule(ctx, family, metav1.NamespaceDefault+"/"+name); err != nil {
				return fmt.Errorf("on %s: %w", n.Plan.Name, err)
			}
		}
	}
	return services.Delete(ctx, name, metav1.DeleteOptions{})
}

// waitForRule waits until a node has a rule with text in its comment.
func (n *node) waitForRule(ctx context.Context, family int, text string) error {
	return waitUntil(ctx, func(ctx context.Context) error {
		if err := n.agent.alive(); err != nil {
			return err
		}
		rules, err := n.iptables(ctx, tool(family)+"-save")
		if err != nil {
			return err
		}
		if !hasComment(rules, text) {
			return fmt.Errorf("no %s rule with a comment on %q", tool(family), text)
		}
		return nil
	})
}
