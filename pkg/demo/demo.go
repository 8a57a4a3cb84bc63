// Package demo shows the agent's main job on a machine without a cluster: two nodes,
// four pods and a client in network namespaces of their own, the real agent on each
// node, real requests, and the rules that carried them.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// requests is how many times curl asks in one step: enough for shares that look like
// what they are, and done in a moment.
const requests = 1000

// Options are what the demo can be told.
type Options struct {
	// Out is where the story is told.
	Out io.Writer
	// Bold marks headings with a terminal's bold type.
	Bold bool
	// Pause is called between two steps; nil goes on at once. An error ends the demo.
	Pause func(context.Context) error
	// Keep leaves everything standing at the end, until Cleanup.
	Keep bool
	// Backend is the agent's --iptables-backend; empty leaves the choice to the agent.
	Backend string
}

// MissingError says what the machine lacks for the demo.
type MissingError struct {
	// Root says that the process is not root.
	Root bool
	// Commands are those that are not in PATH.
	Commands []string
}

// Error says in one line what to do.
func (e *MissingError) Error() string {
	var parts []string
	if len(e.Commands) > 0 {
		parts = append(parts, fmt.Sprintf("commands are missing: %s (run hack/setup.sh, or: apt-get install curl iproute2 iptables)",
			strings.Join(e.Commands, ", ")))
	}
	if e.Root {
		parts = append(parts, "it must be root to make network namespaces (run it with sudo)")
	}
	return "the demo cannot run: " + strings.Join(parts, "; ")
}

// check returns a MissingError when the machine lacks something.
func check() error {
	e := MissingError{Root: os.Geteuid() != 0}
	for _, name := range []string{"curl", "ip", "iptables"} {
		if _, err := exec.LookPath(name); err != nil {
			e.Commands = append(e.Commands, name)
		}
	}
	if e.Root || len(e.Commands) > 0 {
		return &e
	}
	return nil
}

// Run runs the demo from beginning to end. Whatever happens on the way, it removes
// what it has built, unless the demo came to its end and is to be kept.
func Run(ctx context.Context, opts Options) (err error) {
	if err := check(); err != nil {
		return err
	}
	if err := removeLeft(); err != nil {
		return err
	}
	r := &report{out: opts.Out, bold: opts.Bold}
	w, err := newWorld()
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		if closeErr := w.close(); closeErr != nil {
			err = errors.Join(err, closeErr)
			return
		}
		r.say("\nAll namespaces, rules and processes of the demo are removed.")
	}()
	if err := w.tell(ctx, r, opts); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("the demo was stopped: %w", context.Cause(ctx))
		}
		return err
	}
	if !opts.Keep {
		return nil
	}
	if err := w.keep(ctx, r); err != nil {
		return err
	}
	kept = true
	return nil
}

// tell is the story, step by step.
func (w *world) tell(ctx context.Context, r *report, opts Options) error {
	steps := []func(context.Context, *report) error{
		func(ctx context.Context, r *report) error { return w.build(ctx, r, opts.Backend) },
		w.clusterIP,
		w.nodePort,
		w.deletePod,
		w.flush,
	}
	for i, step := range steps {
		if i > 0 && opts.Pause != nil {
			if err := opts.Pause(ctx); err != nil {
				return err
			}
		}
		if err := step(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// build makes the cluster and waits until both Services answer.
func (w *world) build(ctx context.Context, r *report, backend string) error {
	r.heading("A cluster of network namespaces")
	if err := w.makeCluster(); err != nil {
		return err
	}
	if err := w.startAgents(ctx, backend); err != nil {
		return err
	}
	r.say(`  client 10.9.9.9 ──────┬───────────────────────────────┐
                        │                               │
              node n1 10.0.0.1                node n2 10.0.0.2
              agent: miniproxy                agent: miniproxy
                        │                               │
       ┌────────────────┼────────────────┐              │
  pod shell         pod web-a        pod web-b      pod web-c
  10.244.1.50      10.244.1.11      10.244.1.12    10.244.2.11

Each web pod answers with its name and the address it sees. Two Services stand for
the three web pods: web has the cluster IP %s, shop has port %d of each node too.
Nothing listens on either. The agents read the Services from manifests in
%s`, clusterIP, nodePort, w.manifests())
	took, err := w.awaitServices(ctx)
	if err != nil {
		return err
	}
	r.say("\nThe agents have written their rules: both Services answer after %s.", seconds(took))
	return nil
}

// clusterIP asks Service web from a pod.
func (w *world) clusterIP(ctx context.Context, r *report) error {
	r.heading("From a pod to a cluster IP")
	if _, err := w.askMany(ctx, r, w.shell, "http://"+clusterIP+"/", w.alive()); err != nil {
		return err
	}
	r.say("\nThe pods see the client pod's own address: only the destination was rewritten.")

	r.say("\nThe rules that did it, on n1. A > marks those that the requests met. The nat table\nsees only the first packet of a connection, so pkts counts connections.")
	services, svc, err := w.findWeb(ctx)
	if err != nil {
		return err
	}
	r.chain(services)
	r.say("It goes to the cluster IP, so it goes on in the chain of the Service:")
	sep, err := w.tellService(ctx, r, svc)
	if err != nil {
		return err
	}
	chain, err := w.list(ctx, sep)
	if err != nil {
		return err
	}
	r.chain(chain)
	r.say("The chain of one pod: DNAT makes the pod's address the destination. The line before\nis for a pod that is given itself; it must see another address than its own.")
	return nil
}

// nodePort asks Service shop from outside.
func (w *world) nodePort(ctx context.Context, r *report) error {
	r.heading("From outside to a node port")
	if _, err := w.askMany(ctx, r, w.cluster.Client, fmt.Sprintf("http://10.0.0.1:%d/", nodePort), w.alive()); err != nil {
		return err
	}
	r.say("\nThe pods do not see the client 10.9.9.9, but an address of node n1.")

	r.say("\nThe rules that did it, on n1:")
	services, err := w.list(ctx, "KUBE-SERVICES")
	if err != nil {
		return err
	}
	r.chain(services)
	r.say("The last line: no Service address, but an address of the node itself.")
	ports, err := w.list(ctx, "KUBE-NODEPORTS")
	if err != nil {
		return err
	}
	ext, err := ports.find(fmt.Sprintf("dpt:%d", nodePort))
	if err != nil {
		return err
	}
	r.chain(ports)
	r.say("The port names the Service.")
	external, err := w.list(ctx, ext.target)
	if err != nil {
		return err
	}
	r.chain(external)
	r.say("What comes from outside is marked, then goes on like a packet to the cluster IP:")
	svc, err := external.find("KUBE-SVC-")
	if err != nil {
		return err
	}
	if _, err := w.tellService(ctx, r, svc.target); err != nil {
		return err
	}
	masquerade, err := w.list(ctx, "KUBE-POSTROUTING")
	if err != nil {
		return err
	}
	r.chain(masquerade)
	r.say("What is marked leaves with n1's own address, so that the answer comes back to n1,\nwhich alone knows how to translate it back. That is why pods do not see the client.")
	return w.otherNode(ctx, r)
}

// otherNode asks the node port on n2, where one pod is.
func (w *world) otherNode(ctx context.Context, r *report) error {
	url := fmt.Sprintf("http://10.0.0.2:%d/", nodePort)
	got, err := ask(ctx, w.cluster.Client, url, requests)
	if err != nil {
		return err
	}
	if err := got.complete(w.alive()); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	r.say("\nNode n2 has the same rules. Its port %d answers too: %s.", nodePort, got.summary())
	return nil
}

// deletePod takes a pod away, as when it is deleted in a cluster.
func (w *world) deletePod(ctx context.Context, r *report) error {
	const name = "web-b"
	r.heading("A pod is deleted")
	r.say("The server of %s ends, and its address leaves the EndpointSlices of both Services.", name)
	if err := w.stopPod(name); err != nil {
		return err
	}
	took, err := w.awaitGone(ctx, name)
	if err != nil {
		return err
	}
	r.say("Both agents have rewritten their rules %s after the manifests changed.\n", seconds(took))
	if _, err := w.askMany(ctx, r, w.shell, "http://"+clusterIP+"/", w.alive()); err != nil {
		return err
	}
	_, svc, err := w.findWeb(ctx)
	if err != nil {
		return err
	}
	_, err = w.tellService(ctx, r, svc)
	return err
}

// flush empties the nat table behind the agent's back.
func (w *world) flush(ctx context.Context, r *report) error {
	r.heading("Somebody flushes the nat table")
	args := []string{"-w", "-t", "nat", "-F"}
	r.command("n1", w.iptables, args...)
	start := time.Now()
	if _, err := w.node("n1").Run(ctx, w.iptables, args...); err != nil {
		return fmt.Errorf("flush nat: %w", err)
	}
	if _, err := ask(ctx, w.prober(), "http://"+clusterIP+"/", 1); err != nil && ctx.Err() == nil {
		r.command(w.prober().Name(), "curl", curlArgs("http://"+clusterIP+"/", 1)...)
		r.say("  %s", err)
	}
	if err := w.awaitAnswer(ctx, "http://"+clusterIP+"/"); err != nil {
		return err
	}
	r.say("\nThe agent noticed, and wrote the rules again: the Service answers %s after the flush.\n(On nft the kernel tells the agent at once. On legacy it reads the size of each table once\na second.)\n",
		seconds(time.Since(start)))
	_, err := w.askMany(ctx, r, w.shell, "http://"+clusterIP+"/", w.alive())
	return err
}

// keep brings the deleted pod back and says how to look around.
func (w *world) keep(ctx context.Context, r *report) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := w.restore(ctx); err != nil {
		return err
	}
	_, svc, err := w.findWeb(ctx)
	if err != nil {
		return err
	}
	if err := w.record.keep(); err != nil {
		return err
	}
	n1, shell, client := w.node("n1").NetNS(), w.shell.NetNS(), w.cluster.Client.NetNS()
	r.heading("The cluster stands; all three web pods are there again")
	r.say(`Look around, as root:

  ip netns exec %[1]s %[4]s -t nat -L KUBE-SERVICES -n -v
  ip netns exec %[1]s %[4]s -t nat -L %[5]s -n -v
  ip netns exec %[1]s %[4]s-save -t nat
  ip netns exec %[1]s conntrack -L -d %[8]s
  ip netns exec %[2]s curl http://%[8]s/
  ip netns exec %[3]s curl http://10.0.0.1:%[9]d/
  ip netns exec %[3]s curl http://10.0.0.2:%[9]d/

The agents follow the manifests in %[6]s
and write their logs to %[7]s/n1.log and n2.log.

End it with:

  %[10]s demo --cleanup %[11]s`,
		n1, shell, client, w.iptables, svc, w.manifests(), w.dir, clusterIP, nodePort, self, w.record.Lab)
	return nil
}

// seconds spells a duration as people say it.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// node is the host of a node.
func (w *world) node(name string) *lab.Host { return w.cluster.Node(name).Host }
