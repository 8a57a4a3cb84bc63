package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// caller is somebody who connects to a Service.
type caller struct {
	name string
	host *lab.Host
	// source reports whether the pod may see this address as the sender's.
	source func(netip.Addr) bool
	want   string // source in words
}

// podCaller is a pod whose address must be kept.
func (c *cluster) podCaller(name string) caller {
	s := c.pods[name]
	return caller{
		name: "pod " + name + " on " + s.node, host: s.Host,
		source: s.owns, want: fmt.Sprintf("the pod's own, %v", s.addrs),
	}
}

// nodeCaller is a process on a node.
func (c *cluster) nodeCaller(name string) caller {
	return maskedBy(c.nodes[name], "process on "+name, c.nodes[name].Host)
}

// clientCaller is the client outside, whose packets come in through a node.
func (c *cluster) clientCaller(through string) caller {
	return maskedBy(c.nodes[through], "client through "+through, c.net.Client)
}

// maskedBy is a caller on host for whom the pod must see an address of node n: with
// any other, the answer would find a way that does not lead back through n's conntrack.
func maskedBy(n *node, name string, host *lab.Host) caller {
	return caller{name: name, host: host, source: n.owns, want: "an address of " + n.Plan.Name}
}

// reaches checks that the caller gets answers at to, from all pods and no others, and
// that the pods see the sender that they must see.
func (k caller) reaches(ctx context.Context, to netip.AddrPort, pods ...string) error {
	if err := servedBy(ctx, k.host, to, pods...); err != nil {
		return err
	}
	list, err := fetch(ctx, k.host, to, 8)
	if err != nil {
		return err
	}
	for _, tr := range list {
		if tr.exit != 0 {
			return fmt.Errorf("exit status %d: %s", tr.exit, tr.message)
		}
		if got := tr.answer.Client.Addr(); !k.source(got) {
			return fmt.Errorf("pod %s saw %s as the source, want %s", tr.answer.Pod, got, k.want)
		}
	}
	return nil
}

// wayIn is one caller with one address to call.
type wayIn struct {
	caller
	to netip.AddrPort
}

// checkWays waits until every way in leads to exactly those pods.
func checkWays(t *testing.T, ways []wayIn, pods ...string) {
	t.Helper()
	for _, w := range ways {
		eventually(t, fmt.Sprintf("%s to reach %v at %s", w.name, pods, w.to), func() error {
			return w.reaches(t.Context(), w.to, pods...)
		})
	}
}
