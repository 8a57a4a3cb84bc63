package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

const (
	// callers is how many clients connect at a time. Half of them use each endpoint of
	// two, and each uses one frontend.
	callers = 8
	// afterwards is how often each connects once the endpoint has left.
	afterwards = 4
	// patience is how long a client waits for a connection. Its SYNs are sent after 0,
	// 1, 3, and 7 seconds.
	patience = 10 * time.Second
)

// tcpSite is a node with two pods that take TCP connections and say their names, and
// a client outside.
type tcpSite struct {
	familyPlan
	t        testing.TB
	node     *lab.Node
	client   *lab.Host
	pods     map[netip.Addr]*lab.Host
	failover *Failover
	rec      *record
}

func newTCPSite(t testing.TB, p familyPlan) *tcpSite {
	if p.fam == model.IPv6 && !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	c := labtest.NewCluster(t)
	s := &tcpSite{familyPlan: p, t: t, node: c.Node("n1"), client: c.Client, pods: map[netip.Addr]*lab.Host{}}
	for i, addr := range []netip.Addr{p.podA, p.podB} {
		pod, err := s.node.AddPod(string(rune('a'+i)), 10+i)
		if err != nil {
			t.Fatal(err)
		}
		s.pods[addr] = pod
		s.serve(pod, netip.AddrPortFrom(addr, podPort))
	}
	s.restart(false)
	return s
}

// serve has the pod answer each line on a connection with its name.
func (s *tcpSite) serve(pod *lab.Host, addr netip.AddrPort) {
	listener, err := pod.Listen(s.t.Context(), "tcp", addr.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for b := make([]byte, 1); ; {
					if _, err := conn.Read(b); err != nil {
						return
					}
					if _, err := io.WriteString(conn, pod.Name()); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// restart gives the site an agent without a memory.
func (s *tcpSite) restart(dropEstablished bool) {
	s.rec = &record{}
	s.failover = NewFailover(s.fam, Kernel{}, s.rec, dropEstablished)
}

// pause has a pod take no packets any more, as one that was paused or whose machine
// has died.
func (s *tcpSite) pause(pod netip.Addr) {
	s.t.Helper()
	s.restore(s.pods[pod], "*filter", "-A INPUT -p tcp -j DROP", "COMMIT")
}

func (s *tcpSite) restore(h *lab.Host, lines ...string) {
	s.t.Helper()
	cmd := h.Command(s.t.Context(), s.familyPlan.restore, "--noflush")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", s.familyPlan.restore, err, out)
	}
}

// rules has new connections to the Service take turns between pods; without pods
// they are refused.
func (s *tcpSite) rules(pods ...netip.Addr) {
	s.t.Helper()
	lines := []string{"*nat", ":SVC - [0:0]", ":SEP - [0:0]", "-F PREROUTING", "-A PREROUTING -j SVC"}
	for _, addr := range []netip.Addr{s.cluster, s.vip, s.external} {
		lines = append(lines, fmt.Sprintf("-A SVC -d %s -p tcp --dport %d -j SEP", addr, servicePort))
	}
	lines = append(lines, fmt.Sprintf("-A SVC -p tcp --dport %d -m addrtype --dst-type LOCAL -j SEP", nodePort))
	for i, pod := range pods {
		lines = append(lines, fmt.Sprintf("-A SEP -p tcp -m statistic --mode nth --every %d --packet 0 -j DNAT --to-destination %s",
			len(pods)-i, netip.AddrPortFrom(pod, podPort)))
	}
	// Without the rule about INVALID the kernel stops tracking connections.
	lines = append(lines, "COMMIT", "*filter", "-F FORWARD", "-A FORWARD -m conntrack --ctstate INVALID -j DROP")
	if len(pods) == 0 {
		lines = append(lines, fmt.Sprintf("-A FORWARD -d %s -p tcp --dport %d -j REJECT --reject-with %s", s.cluster, servicePort, s.reject))
	}
	s.restore(s.node.Host, append(lines, "COMMIT")...)
}

// snapshot has the Service with these endpoints.
func (s *tcpSite) snapshot(eps ...model.Endpoint) model.Snapshot {
	return webSnapshot(eps, func(p *model.ServicePort) {
		p.ClusterIP, p.ExternalIPs, p.LoadBalancerVIPs = s.cluster, []netip.Addr{s.external}, []netip.Addr{s.vip}
	})
}

func (s *tcpSite) ready(pods ...netip.Addr) []model.Endpoint {
	var addrs []netip.AddrPort
	for _, pod := range pods {
		addrs = append(addrs, netip.AddrPortFrom(pod, podPort))
	}
	return serving(addrs...)
}

// clean is what the agent does after it has written the rules.
func (s *tcpSite) clean(eps ...model.Endpoint) {
	s.t.Helper()
	if err := s.node.Do(func() error {
		return s.failover.Clean(s.t.Context(), s.snapshot(eps...), []model.ServicePortName{web}, NodePorts{All: true, Loopback: true})
	}); err != nil {
		s.t.Fatal(err)
	}
}

// waiting counts the node's connections that wait for a pod's answer.
func (s *tcpSite) waiting(pod netip.Addr) int {
	n := 0
	if err := s.node.Do(func() error {
		return Kernel{}.Dump(s.t.Context(), s.fam, Filter{Protocol: unix.IPPROTO_TCP, Unreplied: true}, func(e Entry) error {
			if e.Waiting && e.ReplySource.Addr() == pod {
				n++
			}
			return nil
		})
	}); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *tcpSite) frontend(i int) string {
	frontends := []netip.AddrPort{
		netip.AddrPortFrom(s.cluster, servicePort), netip.AddrPortFrom(s.vip, servicePort),
		netip.AddrPortFrom(s.external, servicePort), netip.AddrPortFrom(s.familyPlan.node, nodePort),
	}
	return frontends[i%len(frontends)].String()
}

// ask connects, asks for the pod's name, and closes the connection.
func (s *tcpSite) ask(frontend string) (pod string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	start := time.Now()
	conn, err := s.client.Dial(ctx, "tcp", frontend)
	if err != nil {
		return "", time.Since(start), err
	}
	defer conn.Close()
	took = time.Since(start)
	pod, err = exchange(conn)
	return pod, took, err
}

func exchange(conn net.Conn) (answer string, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	b := make([]byte, 16)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// outcome is what clients got.
type outcome struct {
	answers map[string]int // by pod
	took    []time.Duration
	errs    []error
}

// crowd connects with many clients all the time. When every one of them waits for
// podA, which is dead, it calls leave, and has each connect a few more times.
func (s *tcpSite) crowd(leave func()) outcome {
	s.t.Helper()
	got := outcome{answers: map[string]int{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	left := make(chan struct{})
	for i := range callers {
		group.Go(func() {
			for rest := afterwards; rest > 0 && s.t.Context().Err() == nil; {
				pod, took, err := s.ask(s.frontend(i))
				mu.Lock()
				got.took = append(got.took, took)
				if err == nil {
					got.answers[pod]++
				} else {
					got.errs = append(got.errs, err)
				}
				mu.Unlock()
				select {
				case <-left:
					rest--
				default:
				}
			}
		})
	}
	s.await("every client waits for the dead pod", func() bool { return s.waiting(s.podA) == callers })
	leave()
	close(left)
	group.Wait()
	return got
}

// await waits until a condition holds.
func (s *tcpSite) await(what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func eachTCPFamily(t *testing.T, test func(*testing.T, *tcpSite)) {
	for _, p := range familyPlans {
		t.Run(p.fam.String(), func(t *testing.T) { test(t, newTCPSite(t, p)) })
	}
}

// TestClientsDoNotFeelADeadEndpoint has clients connect all the time by every kind of
// frontend while one of two pods dies and then leaves.
func TestClientsDoNotFeelADeadEndpoint(t *testing.T) {
	for _, tc := range []struct {
		name string
		// now is what becomes of the dead pod.
		now func(s *tcpSite) []model.Endpoint
		// clean says that the agent frees connections.
		clean bool
	}{
		{"removed", func(s *tcpSite) []model.Endpoint { return s.ready(s.podB) }, true},
		{"not ready", func(s *tcpSite) []model.Endpoint {
			return append(s.ready(s.podB), model.Endpoint{Addr: netip.AddrPortFrom(s.podA, podPort)})
		}, true},
		{"terminating", func(s *tcpSite) []model.Endpoint {
			return append(s.ready(s.podB), model.Endpoint{Addr: netip.AddrPortFrom(s.podA, podPort), Serving: true, Terminating: true})
		}, true},
		{"removed, without failover", func(s *tcpSite) []model.Endpoint { return s.ready(s.podB) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachTCPFamily(t, func(t *testing.T, s *tcpSite) {
				s.rules(s.podA, s.podB)
				s.clean(s.ready(s.podA, s.podB)...)
				s.pause(s.podA)
				got := s.crowd(func() {
					s.rules(s.podB)
					if tc.clean {
						s.clean(tc.now(s)...)
					}
				})
				wantFreed, wantErrs := callers, 0
				if !tc.clean {
					wantFreed, wantErrs = 0, callers
				}
				if s.rec.freed != wantFreed || len(got.errs) != wantErrs {
					t.Errorf("got %d connections freed and %d failed, want %d and %d; first errors: %v",
						s.rec.freed, len(got.errs), wantFreed, wantErrs, got.errs[:min(3, len(got.errs))])
				}
				if got.answers["a"] > 0 || got.answers["b"] < callers*(afterwards-1) {
					t.Errorf("got answers %v, want them from b, and at least %d", got.answers, callers*(afterwards-1))
				}
			})
		})
	}
}

// TestNoEndpointIsLeft: a client that waits for the last one, which is gone, is told
// with its next SYN.
func TestNoEndpointIsLeft(t *testing.T) {
	eachTCPFamily(t, func(t *testing.T, s *tcpSite) {
		s.rules(s.podA)
		s.clean(s.ready(s.podA)...)
		s.pause(s.podA)
		failed := make(chan error, 1)
		go func() {
			_, _, err := s.ask(s.frontend(0))
			failed <- err
		}()
		s.await("the client waits", func() bool { return s.waiting(s.podA) == 1 })
		s.rules()
		s.clean()
		if err := <-failed; !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("got %v, want the connection refused", err)
		}
	})
}

// TestEstablishedConnection: one to an endpoint that was removed goes on, unless it
// was asked for that it does not.
func TestEstablishedConnection(t *testing.T) {
	for _, dropEstablished := range []bool{false, true} {
		t.Run(fmt.Sprintf("drop %v", dropEstablished), func(t *testing.T) {
			eachTCPFamily(t, func(t *testing.T, s *tcpSite) {
				s.restart(dropEstablished)
				s.rules(s.podA)
				s.clean(s.ready(s.podA)...)
				conn, err := s.client.Dial(t.Context(), "tcp", s.frontend(0))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if answer, err := exchange(conn); answer != "a" || err != nil {
					t.Fatalf("got answer %q, %v", answer, err)
				}
				s.rules(s.podB)
				s.clean(append(s.ready(s.podB), model.Endpoint{Addr: netip.AddrPortFrom(s.podA, podPort), Serving: true, Terminating: true})...)
				if answer, err := exchange(conn); answer != "a" || err != nil {
					t.Fatalf("the endpoint is terminating: got answer %q, %v, want it to go on", answer, err)
				}
				s.clean(s.ready(s.podB)...)
				answer, err := exchange(conn)
				if !dropEstablished && (answer != "a" || err != nil) {
					t.Errorf("the endpoint was removed: got answer %q, %v, want it to go on", answer, err)
				}
				if dropEstablished && !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("the endpoint was removed: got answer %q, %v, want the connection reset", answer, err)
				}
			})
		})
	}
}

// The kernel leaves out what was answered: the agent would otherwise read all
// connections of the node whenever an endpoint leaves.
func TestDumpUnreplied(t *testing.T) {
	eachTCPFamily(t, func(t *testing.T, s *tcpSite) {
		s.rules(s.podB)
		if pod, _, err := s.ask(s.frontend(0)); pod != "b" || err != nil {
			t.Fatalf("got answer %q, %v", pod, err)
		}
		for _, unreplied := range []bool{false, true} {
			var got []Entry
			if err := s.node.Do(func() error {
				return Kernel{}.Dump(t.Context(), s.fam, Filter{Protocol: unix.IPPROTO_TCP, Unreplied: unreplied}, func(e Entry) error {
					got = append(got, e)
					return nil
				})
			}); err != nil {
				t.Fatal(err)
			}
			if found := slices.ContainsFunc(got, func(e Entry) bool { return e.ReplySource.Addr() == s.podB }); found == unreplied {
				t.Errorf("unreplied only is %v: got entries %v", unreplied, got)
			}
		}
	})
}

// BenchmarkConnect says how long clients wait for a connection while a dead endpoint
// leaves, with failover and without: those that it takes longest are the ones that
// were waiting for it. A failed one counts as long as its client's patience.
func BenchmarkConnect(b *testing.B) {
	for _, failover := range []bool{true, false} {
		b.Run(fmt.Sprintf("failover=%v", failover), func(b *testing.B) {
			var took []time.Duration
			failed := 0
			for b.Loop() {
				s := newTCPSite(b, familyPlans[0])
				s.rules(s.podA, s.podB)
				s.clean(s.ready(s.podA, s.podB)...)
				s.pause(s.podA)
				got := s.crowd(func() {
					s.rules(s.podB)
					if failover {
						s.clean(s.ready(s.podB)...)
					}
				})
				took = append(took, got.took...)
				failed += len(got.errs)
			}
			slices.Sort(took)
			at := func(percent int) float64 { return took[(len(took)-1)*percent/100].Seconds() * 1000 }
			b.ReportMetric(at(50), "p50-ms")
			b.ReportMetric(at(99), "p99-ms")
			b.ReportMetric(float64(failed)/float64(b.N), "failed/op")
			b.ReportMetric(float64(len(took))/float64(b.N), "connects/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}
