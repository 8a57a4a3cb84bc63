package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// familyPlan are the addresses of one family in the lab's default plan.
type familyPlan struct {
	fam                          model.Family
	restore                      string
	reject                       string
	node, cluster, vip, external netip.Addr
	podA, podB                   netip.Addr
}

var familyPlans = []familyPlan{
	{
		fam: model.IPv4, restore: "iptables-restore", reject: "icmp-port-unreachable",
		node: netip.MustParseAddr("10.0.0.1"), cluster: netip.MustParseAddr("10.96.0.53"),
		vip: netip.MustParseAddr("10.50.0.10"), external: netip.MustParseAddr("10.60.0.10"),
		podA: netip.MustParseAddr("10.244.1.10"), podB: netip.MustParseAddr("10.244.1.11"),
	},
	{
		fam: model.IPv6, restore: "ip6tables-restore", reject: "icmp6-port-unreachable",
		node: netip.MustParseAddr("fd00::1"), cluster: netip.MustParseAddr("fd00:96::53"),
		vip: netip.MustParseAddr("fd00:50::10"), external: netip.MustParseAddr("fd00:60::10"),
		podA: netip.MustParseAddr("fd00:244:1::10"), podB: netip.MustParseAddr("fd00:244:1::11"),
	},
}

const podPort = 5353

// site is a node with two pods that take UDP packets, and a client outside.
type site struct {
	familyPlan
	t       *testing.T
	node    *lab.Node
	client  *lab.Host
	a, b    net.PacketConn
	cleaner *Cleaner
}

func newSite(t *testing.T, p familyPlan) *site {
	if p.fam == model.IPv6 && !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	c := labtest.NewCluster(t)
	s := &site{familyPlan: p, t: t, node: c.Node("n1"), client: c.Client}
	s.a, s.b = s.pod("a", 10, p.podA), s.pod("b", 11, p.podB)
	s.restart()
	return s
}

func (s *site) pod(name string, number int, addr netip.Addr) net.PacketConn {
	pod, err := s.node.AddPod(name, number)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.listen(pod, netip.AddrPortFrom(addr, podPort))
}

func (s *site) listen(h *lab.Host, addr netip.AddrPort) net.PacketConn {
	conn, err := h.ListenPacket(s.t.Context(), "udp", addr.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// restart gives the site an agent without a memory.
func (s *site) restart() { s.cleaner = New(s.fam, Kernel{}, &record{}) }

// rules replaces the node's rules for the Service and what else is given.
func (s *site) rules(backend netip.AddrPort, more ...string) {
	s.t.Helper()
	lines := []string{"*nat", ":SVC - [0:0]", "-F PREROUTING", "-F OUTPUT", "-A PREROUTING -j SVC", "-A OUTPUT -j SVC"}
	if backend.IsValid() {
		for _, addr := range []netip.Addr{s.cluster, s.vip, s.external} {
			lines = append(lines, fmt.Sprintf("-A SVC -d %s -p udp --dport %d -j DNAT --to-destination %s", addr, servicePort, backend))
		}
		lines = append(lines, fmt.Sprintf("-A SVC -p udp --dport %d -m addrtype --dst-type LOCAL -j DNAT --to-destination %s", nodePort, backend))
	}
	lines = append(lines, more...)
	// The rule about INVALID packets is there because without a rule that needs it the
	// kernel stops tracking connections.
	lines = append(lines, "COMMIT", "*filter", "-F FORWARD", "-A FORWARD -m conntrack --ctstate INVALID -j DROP")
	if !backend.IsValid() {
		lines = append(lines, fmt.Sprintf("-A FORWARD -d %s -p udp --dport %d -j REJECT --reject-with %s", s.cluster, servicePort, s.reject))
	}
	lines = append(lines, "COMMIT", "")
	cmd := s.node.Command(s.t.Context(), s.restore, "--noflush")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", s.restore, err, out)
	}
}

func (s *site) toPod(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, podPort) }

// snapshot has the Service with these pods behind it; without the Service when
// there is no list.
func (s *site) snapshot(pods ...netip.Addr) model.Snapshot {
	snap := model.Snapshot{
		Services: map[model.ServicePortName]model.ServicePort{dns: {
			Name: dns, ClusterIP: s.cluster, Port: servicePort, NodePort: nodePort,
			ExternalIPs: []netip.Addr{s.external}, LoadBalancerVIPs: []netip.Addr{s.vip},
		}},
		Endpoints: map[model.ServicePortName][]model.Endpoint{},
	}
	for _, pod := range pods {
		snap.Endpoints[dns] = append(snap.Endpoints[dns], serving(s.toPod(pod))...)
	}
	return snap
}

func (s *site) clean(snap model.Snapshot) {
	s.t.Helper()
	if err := s.node.Do(func() error {
		return s.cleaner.Clean(s.t.Context(), snap, NodePorts{All: true, Loopback: true})
	}); err != nil {
		s.t.Fatal(err)
	}
}

// entries are the node's UDP entries for a frontend.
func (s *site) entries(frontend netip.AddrPort) []Entry {
	s.t.Helper()
	var found []Entry
	if err := s.node.Do(func() error {
		return Kernel{}.Dump(s.t.Context(), s.fam, Filter{Protocol: unix.IPPROTO_UDP}, func(e Entry) error {
			if e.Destination == frontend {
				found = append(found, e)
			}
			return nil
		})
	}); err != nil {
		s.t.Fatal(err)
	}
	return found
}

// udpFlow sends packets from one source port to one frontend.
type udpFlow struct {
	s        *site
	conn     net.Conn
	frontend netip.AddrPort
	sent     int
}

func (s *site) flow(frontend netip.AddrPort) *udpFlow {
	s.t.Helper()
	conn, err := s.client.Dial(s.t.Context(), "udp", frontend.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return &udpFlow{s: s, conn: conn, frontend: frontend}
}

// send sends one packet. An earlier one may have come back refused; that is told
// with the next write, which then has to be repeated.
func (f *udpFlow) send() string {
	f.s.t.Helper()
	f.sent++
	text := fmt.Sprintf("%s %s %d", f.conn.LocalAddr(), f.frontend, f.sent)
	for range 3 {
		_, err := f.conn.Write([]byte(text))
		if err == nil {
			return text
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			f.s.t.Fatal(err)
		}
	}
	f.s.t.Fatal("every packet was refused")
	return ""
}

// reaches sends a packet and fails unless it arrives at that pod.
func (f *udpFlow) reaches(pod net.PacketConn) {
	f.s.t.Helper()
	want := f.send()
	buf := make([]byte, 512)
	for {
		if err := pod.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			f.s.t.Fatal(err)
		}
		n, _, err := pod.ReadFrom(buf)
		if err != nil {
			f.s.t.Fatalf("packet %q did not arrive at %s: %v; entries %v", want, pod.LocalAddr(), err, f.s.entries(f.frontend))
		}
		if string(buf[:n]) == want {
			return
		}
	}
}

// refused sends packets until one comes back refused.
func (f *udpFlow) refused() {
	f.s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		f.send()
		if err := f.conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			f.s.t.Fatal(err)
		}
		if _, err := f.conn.Read(make([]byte, 1)); errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
	f.s.t.Fatal("packets to the frontend are not refused")
}

func eachFamily(t *testing.T, test func(*testing.T, *site)) {
	for _, p := range familyPlans {
		t.Run(p.fam.String(), func(t *testing.T) { test(t, newSite(t, p)) })
	}
}

func (s *site) frontends() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(s.cluster, servicePort), netip.AddrPortFrom(s.vip, servicePort),
		netip.AddrPortFrom(s.external, servicePort), netip.AddrPortFrom(s.familyPlan.node, nodePort),
	}
}

// B-24: an endpoint is replaced and nobody saw it leave. Each kind of frontend.
func TestFlowMovesToLiveEndpoint(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		s.rules(s.toPod(s.podA))
		for _, frontend := range s.frontends() {
			flow := s.flow(frontend)
			s.rules(s.toPod(s.podA))
			flow.reaches(s.a)
			s.rules(s.toPod(s.podB))
			flow.reaches(s.a) // this is what the removal is for
			s.clean(s.snapshot(s.podB))
			flow.reaches(s.b)
		}
	})
}

// B-25: a restarted agent keeps its hands off flows that go where they should.
func TestFlowSurvivesRestart(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		s.rules(s.toPod(s.podA))
		for _, frontend := range s.frontends() {
			s.flow(frontend).reaches(s.a)
			before := s.entries(frontend)
			if len(before) != 1 {
				t.Fatalf("got entries %v, want one", before)
			}
			s.restart()
			s.clean(s.snapshot(s.podA, s.podB))
			if after := s.entries(frontend); !slices.Equal(after, before) {
				t.Errorf("got entries %v after the restart, want the same as before: %v", after, before)
			}
		}
	})
}

// B-21: without endpoints a one-way sender must not go on to the dead one.
func TestFlowIsRefusedWithoutEndpoints(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		s.rules(s.toPod(s.podA))
		flow := s.flow(netip.AddrPortFrom(s.cluster, servicePort))
		flow.reaches(s.a)
		s.rules(netip.AddrPort{})
		flow.reaches(s.a)
		s.clean(s.snapshot())
		flow.refused()
	})
}

// B-22: the frontends of a deleted Service let go of the pod's address.
func TestDeletedService(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		s.rules(s.toPod(s.podA))
		s.clean(s.snapshot(s.podA))
		for _, frontend := range s.frontends() {
			s.flow(frontend).reaches(s.a)
		}
		s.rules(netip.AddrPort{})
		s.clean(model.Snapshot{})
		for _, frontend := range s.frontends() {
			if left := s.entries(frontend); len(left) > 0 {
				t.Errorf("entries of the deleted Service are left: %v", left)
			}
		}
	})
}

// B-23: packets to a node port came before its rule and keep it from being seen.
func TestFlowFromBeforeTheRule(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		frontend := netip.AddrPortFrom(s.familyPlan.node, nodePort)
		s.rules(netip.AddrPort{})
		// A program on the node has the port at first, so that the packets are taken.
		program := s.listen(s.node.Host, frontend)
		flow := s.flow(frontend)
		flow.reaches(program)

		s.clean(s.snapshot())
		if got := s.entries(frontend); len(got) != 1 {
			t.Fatalf("no endpoints yet: got entries %v, want the program's one left alone", got)
		}
		s.rules(s.toPod(s.podA))
		flow.reaches(program)
		s.clean(s.snapshot(s.podA))
		flow.reaches(s.a)
	})
}

// B-27: a port number or an address in common is not enough.
func TestOtherFlowsAreLeftAlone(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		otherPort, otherAddr := netip.AddrPortFrom(s.vip, servicePort+1), netip.AddrPortFrom(s.cluster.Next(), nodePort)
		dnat := "-A SVC -d %s -p udp --dport %d -j DNAT --to-destination %s"
		s.rules(s.toPod(s.podA),
			fmt.Sprintf(dnat, otherPort.Addr(), otherPort.Port(), s.toPod(s.podB)),
			fmt.Sprintf(dnat, otherAddr.Addr(), otherAddr.Port(), s.toPod(s.podB)))
		others := []netip.AddrPort{otherPort, otherAddr}
		for _, frontend := range others {
			s.flow(frontend).reaches(s.b)
		}
		s.clean(s.snapshot(s.podA))
		s.clean(s.snapshot())
		s.clean(model.Snapshot{})
		for _, frontend := range others {
			if got := s.entries(frontend); len(got) != 1 {
				t.Errorf("got entries %v for %s, want the one of another's flow", got, frontend)
			}
		}
	})
}

// An entry is named by its number as well, so that a new flow with the same
// addresses is not taken for the old one.
func TestDeleteNamesTheEntry(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *site) {
		frontend := netip.AddrPortFrom(s.cluster, servicePort)
		s.rules(s.toPod(s.podA))
		s.flow(frontend).reaches(s.a)
		entry := s.entries(frontend)[0]
		other := entry
		other.ID++
		for _, step := range []struct {
			entries []Entry
			want    int
		}{{[]Entry{other}, 0}, {[]Entry{other, entry, entry}, 1}} {
			var deleted int
			if err := s.node.Do(func() (err error) {
				deleted, err = Kernel{}.Delete(t.Context(), step.entries)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if deleted != step.want {
				t.Errorf("deleting %v: got %d deleted, want %d", step.entries, deleted, step.want)
			}
		}
	})
}

func TestHostAddresses(t *testing.T) {
	for _, p := range familyPlans {
		t.Run(p.fam.String(), func(t *testing.T) {
			s := newSite(t, p)
			var got []netip.Prefix
			if err := s.node.Do(func() (err error) { got, err = HostAddresses(p.fam); return err }); err != nil {
				t.Fatal(err)
			}
			for _, want := range []netip.Prefix{p.fam.Loopback(), netip.PrefixFrom(p.node, p.node.BitLen())} {
				if !slices.Contains(got, want) {
					t.Errorf("got %v, want it to contain %s", got, want)
				}
			}
			if slices.ContainsFunc(got, func(a netip.Prefix) bool { return a.Contains(p.podA) }) {
				t.Errorf("got %v, which has a pod's address in it", got)
			}
		})
	}
}

// Without the right to look nothing is concluded.
func TestDumpWithoutPrivilege(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this test is for a process without CAP_NET_ADMIN")
	}
	err := Kernel{}.Dump(context.Background(), model.IPv4, Filter{Protocol: unix.IPPROTO_UDP}, func(Entry) error { return nil })
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v, want EPERM", err)
	}
}
