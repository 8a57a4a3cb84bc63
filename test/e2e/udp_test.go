package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// flow is a UDP client that keeps its source port, so that conntrack has one entry
// for all it sends.
type flow struct {
	net.Conn
	from *lab.Host
	to   netip.AddrPort
}

// newFlow opens a flow that goes with the test. Nothing is sent yet.
func newFlow(t *testing.T, from *lab.Host, to netip.AddrPort) *flow {
	t.Helper()
	conn, err := from.Dial(t.Context(), "udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &flow{Conn: conn, from: from, to: to}
}

// udpPatience is how long a packet's answer is waited for before the next is sent.
const udpPatience = 500 * time.Millisecond

// ask sends one packet and waits for an answer. A refusal is syscall.ECONNREFUSED, and
// silence is os.ErrDeadlineExceeded.
func (f *flow) ask() (answer, error) {
	if _, err := f.Write([]byte("?")); err != nil {
		return answer{}, err
	}
	if err := f.SetReadDeadline(time.Now().Add(udpPatience)); err != nil {
		return answer{}, err
	}
	packet := make([]byte, 1500)
	n, err := f.Read(packet)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal(packet[:n], &a); err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", packet[:n], err)
	}
	return a, nil
}

// askFrom is ask in a new flow.
func askFrom(t *testing.T, from *lab.Host, to netip.AddrPort) (answer, error) {
	t.Helper()
	conn, err := from.Dial(t.Context(), "udp", to.String())
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	return (&flow{Conn: conn, from: from, to: to}).ask()
}

// eventuallyAnsweredBy waits until a pod answers the flow.
func (f *flow) eventuallyAnsweredBy(t *testing.T, pod string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s to answer on the flow from %s to %s", pod, f.from.Name(), f.to), func() error {
		a, err := f.ask()
		if err == nil && a.Pod != pod {
			err = fmt.Errorf("answered by %s", a.Pod)
		}
		return err
	})
}

// fixedNodePort makes the Service's node port a given one.
func fixedNodePort(port int32) func(*v1.Service) {
	return func(svc *v1.Service) {
		nodePort(svc)
		svc.Spec.Ports[0].NodePort = port
	}
}

func TestUDP(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		// The same port number for TCP, which must not get in the way.
		svc := ns.service(t, "s", nodePort, udp, func(svc *v1.Service) {
			svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{
				Name: "dns-tcp", Protocol: v1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(podPort),
			})
		})
		forEachFamily(t, func(t *testing.T, family int) {
			vip := clusterIP(t, svc, family)
			for _, w := range []wayIn{
				{c.podCaller(podC), vip},
				{c.nodeCaller(n1), vip},
				{c.clientCaller(n1), vip},
				{c.clientCaller(n2), nodePortAt(svc, c.nodes[n2], family)},
				{c.nodeCaller(n1), nodePortAt(svc, c.nodes[n1], family)},
			} {
				for _, pod := range []string{podA, podB} {
					eventually(t, fmt.Sprintf("%s to reach %s at udp %s", w.name, pod, w.to), func() error {
						a, err := askFrom(t, w.host, w.to)
						if err != nil {
							return err
						}
						if !w.source(a.Client.Addr()) {
							return fmt.Errorf("pod %s saw %s as the source, want %s", a.Pod, a.Client.Addr(), w.want)
						}
						if a.Pod != pod {
							return fmt.Errorf("answered by %s", a.Pod)
						}
						return nil
					})
				}
			}
			checkWays(t, []wayIn{{c.podCaller(podC), vip}}, podA, podB)
		})
	})
}

// A sender that never pauses keeps its conntrack entry alive for ever, so the entry of
// an endpoint that has left must be removed (B-21, B-24).
func TestUDPFlowFollowsEndpoints(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", udp)
		c.waitForEndpoints(t, svc, podA)
		f := newFlow(t, c.pods[podC].Host, clusterIP(t, svc, 4))
		f.eventuallyAnsweredBy(t, podA)

		// The agent hears of nothing while its endpoint is replaced, and of both at once.
		if err := n.agent.signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ns.deletePod(t, podA)
		ns.pod(t, "s", podA2)
		c.nodes[n2].waitUntilGone(t, 4, "-> "+c.pods[podA].addrPort(4).String())
		if err := n.agent.signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		f.eventuallyAnsweredBy(t, podA2)

		// The same while the agent does not run at all.
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		ns.deletePod(t, podA2)
		ns.pod(t, "s", podB)
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		f.eventuallyAnsweredBy(t, podB)

		ns.deletePod(t, podB)
		eventually(t, "the flow without endpoints to be refused", func() error {
			a, err := f.ask()
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return errors.Join(fmt.Errorf("got answer %+v, want a refusal", a), err)
			}
			return nil
		})
	})
}

// waitUntilGone waits until no rule of a node has text in its comment.
func (n *node) waitUntilGone(t *testing.T, family int, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("no rule with a comment on %q", text), func() error {
		rules, err := n.iptables(t.Context(), tool(family)+"-save")
		if err == nil && strings.Contains(rules, text) {
			err = errors.New("there is one")
		}
		return err
	})
}

// The flow to a deleted Service does not go on to whoever gets the pod's address (B-22).
func TestUDPFlowEndsWithService(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", udp, nodePort)
		c.waitForEndpoints(t, svc, podA)
		flows := []*flow{
			newFlow(t, c.pods[podC].Host, clusterIP(t, svc, 4)),
			newFlow(t, c.net.Client, nodePortAt(svc, c.nodes[n1], 6)),
		}
		for _, f := range flows {
			f.eventuallyAnsweredBy(t, podA)
		}
		ns.deleteService(t, "s")
		for _, f := range flows {
			eventually(t, "the flow to end", func() error {
				a, err := f.ask()
				if err == nil {
					return fmt.Errorf("answered by %s", a.Pod)
				}
				return nil
			})
		}
	})
}

// A client that sends to a node port before it exists has an entry in conntrack that
// says "no translation", and gets through all the same once the port is there (B-23).
func TestUDPFlowFromBeforeTheService(t *testing.T) {
	const port = 30053
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		f := newFlow(t, c.net.Client, netip.AddrPortFrom(n.addr(4), port))
		if a, err := f.ask(); err == nil {
			t.Fatalf("answered by %s before there was a Service", a.Pod)
		}
		// Without a listener the node answers with an error, which ends a flow. With
		// one it stays silent.
		l, err := n.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(n.addr(4), port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := f.ask(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v from a silent listener, want a timeout", err)
		}
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.service(t, "s", udp, fixedNodePort(port))
		f.eventuallyAnsweredBy(t, podA)
	})
}

// Flows to endpoints that serve are left alone, by a restart as well (B-25).
func TestUDPFlowSurvivesRestart(t *testing.T) {
	// A flow that was cut would find its old pod by chance every other time.
	const flows = 20
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", udp)
		c.waitForEndpoints(t, svc, podA, podB)
		var open []*flow
		var pods []string
		for range flows {
			f := newFlow(t, c.pods[podC].Host, clusterIP(t, svc, 4))
			a, err := f.ask()
			if err != nil {
				t.Fatal(err)
			}
			open, pods = append(open, f), append(pods, a.Pod)
		}
		if err := n.killAgent(); err != nil {
			t.Fatal(err)
		}
		if err := n.startAgent(); err != nil {
			t.Fatal(err)
		}
		if err := c.settle(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i, f := range open {
			a, err := f.ask()
			if err != nil {
				t.Fatal(err)
			}
			if a.Pod != pods[i] {
				t.Errorf("flow %d: answered by %s, before the restart by %s", i, a.Pod, pods[i])
			}
		}
	})
}
