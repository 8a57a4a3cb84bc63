package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miniproxy/miniproxy/examples"
	"github.com/miniproxy/miniproxy/pkg/lab"
)

// What the manifests of the demo say.
const (
	clusterIP = "10.96.0.80"
	nodePort  = 30080
	podPort   = 8080
)

// The range of all pods, by which the agents tell pods from others.
const (
	clusterCIDR4 = "10.244.0.0/16"
	clusterCIDR6 = "fd00:244::/32"
)

// patience is how long the demo waits for the agents to do something. They need
// milliseconds; a slow machine gets the benefit of the doubt.
const patience = time.Minute

// pod is a pod with a web server; its number is the last part of its address.
type pod struct {
	name   string
	node   string
	number int
}

// webPods are the endpoints in the manifests.
func webPods() []pod {
	return []pod{{"web-a", "n1", 11}, {"web-b", "n1", 12}, {"web-c", "n2", 11}}
}

// world is everything that the demo has built: the cluster, and the processes in it.
type world struct {
	record  *record
	dir     string
	lab     *lab.Lab
	cluster *lab.Cluster
	// shell is a pod without a server, to ask from.
	shell *lab.Host
	hosts map[string]*lab.Host
	// servers are the running web servers, by pod.
	servers map[string]*process
	agents  map[string]*process
	// iptables is the command that sees the rules of the agents' backend.
	iptables string
}

// newWorld prepares a world with nothing in it but its record.
func newWorld() (*world, error) {
	l, err := lab.New(labPrefix)
	if err != nil {
		return nil, err
	}
	rec, err := newRecord(l.Name())
	if err != nil {
		return nil, err
	}
	return &world{
		record:  rec,
		dir:     rec.dir(),
		lab:     l,
		hosts:   map[string]*lab.Host{},
		servers: map[string]*process{},
		agents:  map[string]*process{},
	}, nil
}

// close ends the processes and removes the namespaces.
func (w *world) close() error { return w.record.takeDown() }

func (w *world) manifests() string { return filepath.Join(w.dir, "manifests") }

// makeCluster builds the namespaces, writes the manifests and starts the web servers.
func (w *world) makeCluster() (err error) {
	plan := lab.DefaultPlan()
	if !lab.HasIPv6() {
		plan = plan.IPv4Only()
	}
	if w.cluster, err = lab.NewCluster(w.lab, plan); err != nil {
		return fmt.Errorf("%w (in a container, the demo needs one that is --privileged)", err)
	}
	if w.shell, err = w.cluster.Node("n1").AddPod("shell", 50); err != nil {
		return err
	}
	if err := os.MkdirAll(w.manifests(), 0o755); err != nil {
		return err
	}
	for _, p := range webPods() {
		if w.hosts[p.name], err = w.cluster.Node(p.node).AddPod(p.name, p.number); err != nil {
			return err
		}
		if err := w.startPod(p.name); err != nil {
			return err
		}
	}
	return w.writeManifests(func(text string) string { return text })
}

// startPod starts the web server of a pod: this program, told to be one.
func (w *world) startPod(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := w.hosts[name].Command(context.Background(), self, "demo", "--as-pod="+name, fmt.Sprintf("--listen=:%d", podPort))
	w.servers[name], err = w.start(cmd, name)
	return err
}

// startAgents starts this program as agent on each node.
func (w *world) startAgents(ctx context.Context, backend string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, node := range w.cluster.Nodes {
		args := agentArgs(node.Name(), w.manifests(), backend)
		// Not the demo's context: an agent that is kept outlives the demo, and one that is
		// not is ended with the rest.
		cmd := node.Command(context.WithoutCancel(ctx), self, args...)
		if w.agents[node.Name()], err = w.start(cmd, node.Name()); err != nil {
			return err
		}
	}
	return nil
}

// agentArgs is the command line of an agent.
func agentArgs(node, manifests, backend string) []string {
	pods := clusterCIDR4
	if lab.HasIPv6() {
		pods += "," + clusterCIDR6
	}
	args := []string{
		"run",
		"--manifests=" + manifests,
		"--hostname-override=" + node,
		"--cluster-cidr=" + pods,
		// The machine's own limits are not the demo's to change.
		"--conntrack-max-per-core=0",
		"--oom-score-adj=0",
	}
	if backend != "" {
		args = append(args, "--iptables-backend="+backend)
	}
	return args
}

// start starts a process with a log of its own and notes it in the record.
func (w *world) start(cmd *exec.Cmd, name string) (*process, error) {
	p, err := start(cmd, filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, w.record.add(p.id)
}

// alive are the names of the pods whose server runs.
func (w *world) alive() []string {
	var names []string
	for _, p := range webPods() {
		if w.servers[p.name] != nil {
			names = append(names, p.name)
		}
	}
	return names
}

// awaitServices waits until both Services answer, and finds out which iptables
// command shows the rules.
func (w *world) awaitServices(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	for _, url := range []string{"http://" + clusterIP + "/", fmt.Sprintf("http://10.0.0.2:%d/", nodePort)} {
		if err := w.awaitAnswer(ctx, url); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	for _, name := range []string{"iptables", "iptables-nft", "iptables-legacy"} {
		if _, err := w.node("n1").Run(ctx, name, "-w", "-t", "nat", "-S", "KUBE-SERVICES"); err == nil {
			w.iptables = name
			return took, w.zero(ctx)
		}
	}
	return 0, errors.New("the Services answer, but no iptables command shows the chain KUBE-SERVICES on n1")
}

// prober is the pod that asks while there may be no rules. A packet that is sent then
// leaves an untranslated entry in the node's connection tracking, which swallows a
// later connection from the same address and port: the requests that are counted come
// from elsewhere.
func (w *world) prober() *lab.Host { return w.hosts["web-a"] }

// awaitAnswer waits until a request is answered.
func (w *world) awaitAnswer(ctx context.Context, url string) error {
	return w.await(ctx, "an answer from "+url, func() (bool, error) {
		// A SYN that is lost is sent again after a second: a new connection tells sooner.
		_, err := w.prober().Run(ctx, "curl", append(curlArgs(url, 1), "--connect-timeout", "0.2")...)
		return err == nil, nil
	})
}

// stopPod ends the server of a pod and takes its address out of the manifests.
func (w *world) stopPod(name string) error {
	server := w.servers[name]
	delete(w.servers, name)
	if err := server.id.end(grace); err != nil {
		return err
	}
	return w.writeManifests(func(text string) string { return dropEndpoint(text, w.addr(name)) })
}

// awaitGone waits until no rule on any node leads to a pod that was stopped.
func (w *world) awaitGone(ctx context.Context, name string) (time.Duration, error) {
	start := time.Now()
	err := w.await(ctx, "the rules of "+name+" to go", func() (bool, error) {
		has, err := w.ruled(ctx, name)
		return !slices.Contains(has, true), err
	})
	return time.Since(start), err
}

// restore brings back the pods that were stopped.
func (w *world) restore(ctx context.Context) error {
	for _, p := range webPods() {
		if w.servers[p.name] != nil {
			continue
		}
		if err := w.startPod(p.name); err != nil {
			return err
		}
	}
	if err := w.writeManifests(func(text string) string { return text }); err != nil {
		return err
	}
	for _, p := range webPods() {
		err := w.await(ctx, "the rules of "+p.name, func() (bool, error) {
			has, err := w.ruled(ctx, p.name)
			return !slices.Contains(has, false), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ruled reports for each node whether a rule there leads to the pod.
func (w *world) ruled(ctx context.Context, name string) ([]bool, error) {
	to := fmt.Sprintf("--to-destination %s:%d", w.addr(name), podPort)
	var has []bool
	for _, node := range w.cluster.Nodes {
		rules, err := node.Run(ctx, w.iptables, "-w", "-t", "nat", "-S")
		if err != nil {
			return nil, err
		}
		has = append(has, strings.Contains(rules, to))
	}
	return has, nil
}

// await asks again and again until done says so, an agent ends, or patience does.
func (w *world) await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %s for %s in vain", patience, what))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		for node, agent := range w.agents {
			if agent.ended() {
				return fmt.Errorf("the agent on %s ended: %s", node, agent.lastWords())
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// addr is the IPv4 address of a web pod.
func (w *world) addr(name string) string {
	for _, p := range webPods() {
		if p.name == name {
			return w.cluster.Node(p.node).Plan.PodAddrs(p.number)[0].String()
		}
	}
	return ""
}

// writeManifests writes the examples that the demo runs, each changed by edit. Each
// file is put in its place whole, so that an agent never reads half of one.
func (w *world) writeManifests(edit func(text string) string) error {
	for _, name := range examples.Demo() {
		text, err := examples.FS.ReadFile(name)
		if err != nil {
			return err
		}
		draft := filepath.Join(w.dir, name+".draft")
		if err := os.WriteFile(draft, []byte(edit(string(text))), 0o644); err != nil {
			return err
		}
		if err := os.Rename(draft, filepath.Join(w.manifests(), name)); err != nil {
			return err
		}
	}
	return nil
}

// dropEndpoint removes the lines of one endpoint from the text of a manifest, written
// the way the examples are, and leaves all else as it is.
func dropEndpoint(text, addr string) string {
	var kept []string
	dropping := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "  - addresses: ["+addr+"]"):
			dropping = true
		case !strings.HasPrefix(line, "    "):
			dropping = false
		}
		if !dropping {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
