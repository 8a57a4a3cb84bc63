package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// terminate begins to delete a pod: it runs on, and is ready or not, until deletePod.
func (ns *namespace) terminate(t *testing.T, name string) {
	t.Helper()
	err := ns.c.client().CoreV1().Pods(ns.name).Delete(t.Context(), name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// stopServing ends a pod's HTTP server after its last request, as a container does
// that is told to end. Whoever still comes is refused.
func (s *sandbox) stopServing(t *testing.T) {
	t.Helper()
	if err := s.http.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// serveAgain starts a server in the place of one that was stopped.
func (s *sandbox) serveAgain(t *testing.T) {
	t.Helper()
	l, err := s.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", podPort))
	if err != nil {
		t.Fatal(err)
	}
	s.http = &http.Server{Handler: s.http.Handler}
	s.http.SetKeepAlivesEnabled(false)
	go s.http.Serve(l) //nolint:errcheck // ends with Close
}

// replace puts a new pod in the place of an old one, in the order of a Deployment that
// may have a pod too many: the old one begins to end when the new one is in use, and
// stops serving when no rule leads to it any more.
func (ns *namespace) replace(t *testing.T, svc *v1.Service, old, successor string) {
	t.Helper()
	ns.pod(t, svc.Name, successor)
	ns.c.waitForEndpoints(t, svc, successor)
	ns.terminate(t, old)
	ns.end(t, old)
}

// end lets a terminating pod end once nobody is led to it.
func (ns *namespace) end(t *testing.T, name string) {
	t.Helper()
	s := ns.c.pods[name]
	for _, n := range ns.c.nodes {
		for _, family := range families {
			n.waitUntilGone(t, family, "-> "+s.addrPort(family).String())
		}
	}
	s.stopServing(t)
	ns.deletePod(t, name)
	s.serveAgain(t)
}

// A rolling update under load costs no request (B-15).
func TestRollingUpdate(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort)
		c.waitForEndpoints(t, svc, podA, podB)
		t.Run("B-15 every pod is replaced, twice", func(t *testing.T) {
			loads := []*load{
				startLoad(t, c, c.pods[podC].Host, clusterIP(t, svc, 4)),
				startLoad(t, c, c.net.Client, nodePortAt(svc, c.nodes[n1], 6)),
			}
			for range 2 {
				ns.replace(t, svc, podA, podA2)
				ns.replace(t, svc, podB, podB2)
				ns.replace(t, svc, podA2, podA)
				ns.replace(t, svc, podB2, podB)
			}
			for _, l := range loads {
				l.stop(t)
			}
		})
	})
}

// Where all pods that a scope may use are ending, those that still serve are used; the
// node and the cluster are judged apart (B-15).
func TestTerminatingEndpoints(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podB)
		svc := ns.service(t, "s", nodePort, externalLocal)
		c.waitForEndpoints(t, svc, podB)
		c.waitForEndpointsLocal(t, svc, podA)
		n := c.nodes[n1]
		outside := func(family int) wayIn { return wayIn{c.keptClient(n1), nodePortAt(svc, n, family)} }
		inside := func(family int) wayIn { return wayIn{c.podCaller(podC), clusterIP(t, svc, family)} }

		t.Run("B-15 the only pod of the node is replaced", func(t *testing.T) {
			l := startLoad(t, c, c.net.Client, nodePortAt(svc, n, 4))
			ns.terminate(t, podA)
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{inside(family)}, podB)
				checkWays(t, []wayIn{outside(family)}, podA)
			})
			ns.pod(t, "s", podA2)
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{inside(family)}, podA2, podB)
				checkWays(t, []wayIn{outside(family)}, podA2)
			})
			ns.end(t, podA)
			l.waitForMore(t, loadRate/2)
			l.stop(t)
		})
		t.Run("B-15 all pods are ending", func(t *testing.T) {
			ns.terminate(t, podA2)
			ns.terminate(t, podB)
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{inside(family)}, podA2, podB)
				checkWays(t, []wayIn{outside(family)}, podA2)
			})
		})
		t.Run("B-15 one that does not serve any more", func(t *testing.T) {
			ns.setReady(t, podA2, false)
			forEachFamily(t, func(t *testing.T, family int) {
				checkWays(t, []wayIn{inside(family)}, podB)
				eventually(t, "the client to be dropped", func() error {
					return dropped(t.Context(), c.net.Client, outside(family).to)
				})
			})
		})
	})
}
