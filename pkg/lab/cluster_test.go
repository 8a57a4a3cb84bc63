package lab_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// world is the cluster of the default plan with pods a and b on n1 and c on n2. Each
// pod answers on port 8080 with its name and the address of the caller.
type world struct {
	*lab.Cluster
	a, b, c *lab.Host
}

func newWorld(t *testing.T) world {
	w := world{Cluster: labtest.NewCluster(t)}
	for _, p := range []struct {
		pod    **lab.Host
		name   string
		node   string
		number int
	}{
		{&w.a, "a", "n1", 11},
		{&w.b, "b", "n1", 12},
		{&w.c, "c", "n2", 11},
	} {
		pod, err := w.Node(p.node).AddPod(p.name, p.number)
		if err != nil {
			t.Fatal(err)
		}
		serve(t, pod)
		*p.pod = pod
	}
	return w
}

func serve(t *testing.T, pod *lab.Host) {
	l, err := pod.Listen(t.Context(), "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			caller := netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().Unmap()
			io.WriteString(conn, pod.Name()+" "+caller.String())
			conn.Close()
		}
	}()
}

func ask(t *testing.T, from *lab.Host, addr string) string {
	t.Helper()
	conn, err := dial(t, from, addr)
	if err != nil {
		t.Fatalf("from %s: %v", from.Name(), err)
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("from %s to %s: %v", from.Name(), addr, err)
	}
	return string(answer)
}

// dial gives up long before TCP does: a lost packet is a failure, not a long wait.
func dial(t *testing.T, from *lab.Host, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return from.Dial(ctx, "tcp", addr)
}

func TestClusterCarriesPackets(t *testing.T) {
	w := newWorld(t)
	n1 := w.Node("n1").Host
	tests := []struct {
		name string
		from *lab.Host
		to   string
		want string
	}{
		{"pod to pod on the same node", w.a, "10.244.1.12:8080", "b 10.244.1.11"},
		{"pod to pod on the other node", w.a, "10.244.2.11:8080", "c 10.244.1.11"},
		{"node to its own pod", n1, "10.244.1.11:8080", "a 10.244.1.1"},
		{"node to a pod on the other node", n1, "10.244.2.11:8080", "c 10.0.0.1"},
		{"pod to itself", w.a, "10.244.1.11:8080", "a 10.244.1.11"},
		{"pod to pod on the same node, IPv6", w.a, "[fd00:244:1::12]:8080", "b fd00:244:1::11"},
		{"pod to pod on the other node, IPv6", w.a, "[fd00:244:2::11]:8080", "c fd00:244:1::11"},
		{"node to a pod on the other node, IPv6", n1, "[fd00:244:2::11]:8080", "c fd00::1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ask(t, tt.from, tt.to); got != tt.want {
				t.Errorf("answer = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestVirtualAddresses sends packets to a cluster IP, first without any rule, then
// with a rule that translates it to a pod on the other node.
func TestVirtualAddresses(t *testing.T) {
	w := newWorld(t)
	n1 := w.Node("n1").Host
	for _, from := range []*lab.Host{w.Client, w.a, n1} {
		for _, addr := range []string{"10.96.0.80:80", "[fd00:96::80]:80"} {
			_, err := dial(t, from, addr)
			if !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
				t.Errorf("from %s to %s without rules: %v, want unreachable", from.Name(), addr, err)
			}
		}
	}

	translate(t, n1, "iptables", "10.96.0.80", "10.244.2.11:8080")
	translate(t, n1, "ip6tables", "fd00:96::80", "[fd00:244:2::11]:8080")
	for _, tt := range []struct {
		from     *lab.Host
		to, want string
	}{
		{w.Client, "10.96.0.80:80", "c 10.0.0.1"},
		{w.a, "10.96.0.80:80", "c 10.0.0.1"},
		{n1, "10.96.0.80:80", "c 10.0.0.1"},
		{w.Client, "[fd00:96::80]:80", "c fd00::1"},
		{w.a, "[fd00:96::80]:80", "c fd00::1"},
	} {
		if got := ask(t, tt.from, tt.to); got != tt.want {
			t.Errorf("from %s to %s: answer = %q, want %q", tt.from.Name(), tt.to, got, tt.want)
		}
	}
}

// TestHairpin has pods reach themselves and their neighbour through a cluster IP.
func TestHairpin(t *testing.T) {
	w := newWorld(t)
	n1 := w.Node("n1").Host
	translate(t, n1, "iptables", "10.96.0.80", "10.244.1.11:8080")
	translate(t, n1, "ip6tables", "fd00:96::80", "[fd00:244:1::11]:8080")
	for _, from := range []*lab.Host{w.a, w.b} {
		if got, want := ask(t, from, "10.96.0.80:80"), "a 10.244.1.1"; got != want {
			t.Errorf("from %s: answer = %q, want %q", from.Name(), got, want)
		}
		if got, want := ask(t, from, "[fd00:96::80]:80"), "a fd00:244:1::1"; got != want {
			t.Errorf("from %s: answer = %q, want %q", from.Name(), got, want)
		}
	}
}

// translate sends what goes to addr to an endpoint, from the node's own address.
func translate(t *testing.T, node *lab.Host, iptables, addr, endpoint string) {
	t.Helper()
	for _, rule := range [][]string{
		{"PREROUTING", "-d", addr, "-p", "tcp", "-j", "DNAT", "--to-destination", endpoint},
		{"OUTPUT", "-d", addr, "-p", "tcp", "-j", "DNAT", "--to-destination", endpoint},
		{"POSTROUTING", "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE"},
	} {
		args := append([]string{"-w", "-t", "nat", "-A"}, rule...)
		if _, err := node.Run(t.Context(), iptables, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLabIsClosedOff checks the promise that nothing leads out of a lab.
func TestLabIsClosedOff(t *testing.T) {
	before := links(t)
	c := labtest.NewCluster(t)
	pod, err := c.Node("n1").AddPod("p", 11)
	if err != nil {
		t.Fatal(err)
	}
	if got := links(t); got != before {
		t.Errorf("links of the machine with a lab = %s, want %s", got, before)
	}
	for _, h := range []*lab.Host{c.Underlay, c.Client, c.Nodes[0].Host, c.Nodes[1].Host} {
		for _, family := range []string{"-4", "-6"} {
			out, err := h.Run(t.Context(), "ip", family, "route", "show", "default")
			if err != nil {
				t.Fatal(err)
			}
			if out != "" {
				t.Errorf("%s has a default route: %s", h.Name(), out)
			}
		}
	}
	// A pod's default route ends at its node.
	_, err = dial(t, pod, "192.0.2.1:80")
	if !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("dial from a pod to the world: %v, want unreachable", err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	before := links(t)
	l := labtest.New(t)
	c, err := lab.NewCluster(l, lab.DefaultPlan())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Node("n1").AddPod("p", 11); err != nil {
		t.Fatal(err)
	}
	if got := namespaces(t, l.Name()); got != 5 {
		t.Errorf("%d namespaces of the lab stand, want 5: underlay, n1, n2, client, p", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := namespaces(t, l.Name()); got != 0 {
		t.Errorf("%d namespaces of the lab stand after Close, want 0", got)
	}
	if got := links(t); got != before {
		t.Errorf("links of the machine after Close = %s, want %s", got, before)
	}
}

// TestCloseAfterFailure breaks the building half way and checks that Close removes
// what was built.
func TestCloseAfterFailure(t *testing.T) {
	l := labtest.New(t)
	plan := lab.DefaultPlan()
	plan.Nodes[1].Addrs = []netip.Prefix{netip.MustParsePrefix("224.0.0.1/24")}
	if _, err := lab.NewCluster(l, plan); err == nil {
		t.Fatal("a cluster with a multicast address for a node was built, want an error")
	}
	if got := namespaces(t, l.Name()); got == 0 {
		t.Error("nothing was built before the failure: the test proves nothing")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := namespaces(t, l.Name()); got != 0 {
		t.Errorf("%d namespaces of the lab stand after Close, want 0", got)
	}
}

func links(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

func namespaces(t *testing.T, labName string) int {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), "ip", "netns", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count("\n"+string(out), "\n"+labName+"-")
}
