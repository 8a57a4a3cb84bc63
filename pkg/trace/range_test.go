package trace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

// family is what the kernel test needs to know of one IP family.
type family struct {
	name    string
	command string // iptables or ip6tables
	// outside and pods are addresses behind eth0 and pod0, services are nobody's.
	outside, pods, services []netip.Addr
	own                     []netip.Addr
	marker                  netip.Addr
	ethertype               uint16
	icmp, reject            string
	protocols               []int // of the sockets that see what the host keeps
}

var (
	ipv4 = family{
		name: "IPv4", command: "iptables", ethertype: unix.ETH_P_IP, icmp: "icmp", reject: "icmp-port-unreachable",
		outside: addrs("10.0.0.2", "10.9.9.9", "203.0.113.5"), pods: addrs("10.244.1.10", "10.244.1.11", "10.244.1.12"),
		services: addrs("10.96.0.80", "10.50.0.10"), own: addrs("10.0.0.1", "10.244.1.1", "127.0.0.1"),
		marker: netip.MustParseAddr("192.0.2.77"), protocols: []int{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP},
	}
	ipv6 = family{
		name: "IPv6", command: "ip6tables", ethertype: unix.ETH_P_IPV6, icmp: "ipv6-icmp", reject: "icmp6-port-unreachable",
		outside: addrs("fd00::2", "fd00:9::9", "2001:db8::5"), pods: addrs("fd00:244:1::10", "fd00:244:1::11", "fd00:244:1::12"),
		services: addrs("fd00:96::80", "fd00:50::10"), own: addrs("fd00::1", "fd00:244:1::1"),
		marker: netip.MustParseAddr("2001:db8:77::77"), protocols: []int{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMPV6},
	}
)

// rangeHost is the node of the shooting range.
var rangeHost = trace.Host{Interfaces: []trace.Interface{
	{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")}},
	{Name: "pod0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("fd00:244:1::1/64")}},
}}

// shootingRange is a node between two namespaces that send any packet to it and
// see every packet that leaves it.
type shootingRange struct {
	node *lab.Host
	// ends are the far ends of the node's interfaces.
	ends map[string]*end
	// raw sends packets of the host's own, kept sees those that it keeps.
	raw    map[uint16]int
	kept   map[uint16][]int
	number uint32
}

// end is a packet socket on the far end of an interface.
type end struct {
	socket int
	index  int
	mac    net.HardwareAddr // of the node's side
}

func newRange(t *testing.T) *shootingRange {
	t.Helper()
	l := labtest.New(t)
	r := &shootingRange{ends: map[string]*end{}, raw: map[uint16]int{}, kept: map[uint16][]int{}, number: 1 << 20}
	var err error
	if r.node, err = l.Host("node"); err != nil {
		t.Fatal(err)
	}
	for _, i := range rangeHost.Interfaces {
		far, err := l.Host("far-" + i.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Link(lab.End{Host: r.node, Name: i.Name, Addrs: i.Addrs}, lab.End{Host: far, Name: "far"}); err != nil {
			t.Fatal(err)
		}
		if r.ends[i.Name], err = r.open(t, far, i.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.configure(t); err != nil {
		t.Fatal(err)
	}
	for _, f := range []family{ipv4, ipv6} {
		if err := r.openHost(t, f); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// open makes the packet socket of a far end.
func (r *shootingRange) open(t *testing.T, far *lab.Host, name string) (*end, error) {
	e := &end{}
	err := r.node.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			e.mac = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, far.Do(func() error {
		i, err := net.InterfaceByName("far")
		if err != nil {
			return err
		}
		e.index = i.Index
		if e.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL))); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(e.socket) })
		if err := unix.SetsockoptInt(e.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
			return err
		}
		return unix.Bind(e.socket, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: e.index})
	})
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }

// openHost makes the sockets on the node for one family.
func (r *shootingRange) openHost(t *testing.T, f family) error {
	domain := unix.AF_INET
	if f.ethertype == unix.ETH_P_IPV6 {
		domain = unix.AF_INET6
	}
	return r.node.Do(func() error {
		for _, protocol := range append([]int{unix.IPPROTO_RAW}, f.protocols...) {
			s, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return fmt.Errorf("raw socket for protocol %d: %w", protocol, err)
			}
			t.Cleanup(func() { unix.Close(s) })
			if protocol == unix.IPPROTO_RAW {
				r.raw[f.ethertype] = s
				continue
			}
			if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
				return err
			}
			r.kept[f.ethertype] = append(r.kept[f.ethertype], s)
		}
		return nil
	})
}

// configure makes the node forward what it can, answer without limits, and know
// its neighbours.
func (r *shootingRange) configure(t *testing.T) error {
	err := r.node.Sysctl(
		lab.Setting{Path: "net/ipv4/ip_forward", Value: "1"},
		lab.Setting{Path: "net/ipv6/conf/all/forwarding", Value: "1"},
		lab.Setting{Path: "net/ipv4/conf/all/route_localnet", Value: "1"}, // 127.0.0.1 may be a source and a destination
		lab.Setting{Path: "net/ipv4/conf/all/accept_local", Value: "1"},
		lab.Setting{Path: "net/ipv4/icmp_ratemask", Value: "0"},
		lab.Setting{Path: "net/ipv4/icmp_ratelimit", Value: "0"},
		lab.Setting{Path: "net/ipv6/icmp/ratemask", Value: "2"},
		lab.Setting{Path: "net/ipv6/icmp/ratelimit", Value: "0"},
		lab.Setting{Path: "net/netfilter/nf_conntrack_tcp_loose", Value: "0"}, // an ACK without a SYN is INVALID
	)
	if err != nil {
		return err
	}
	for _, f := range []family{ipv4, ipv6} {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if f.ethertype == unix.ETH_P_IPV6 {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := r.node.AddRoutes(lab.Route{To: all, Dev: "eth0"}); err != nil {
			return err
		}
		for _, a := range append(append(append(f.outside[:len(f.outside):len(f.outside)], f.services...), f.pods...), f.marker) {
			// Any address will do for a packet socket, so the frames go to the sender.
			dev := rangeHost.Out(a)
			if _, err := r.node.Run(t.Context(), "ip", "neigh", "replace", a.String(), "lladdr", "02:00:00:00:00:01", "dev", dev, "nud", "permanent"); err != nil {
				return err
			}
		}
	}
	return nil
}

// load replaces the node's rules of a family.
func (r *shootingRange) load(t *testing.T, f family, backend string, rs ruleset.Ruleset) {
	t.Helper()
	cmd := r.node.Command(t.Context(), f.command+"-"+backend+"-restore")
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "xtables.lock"))
	text := string(rs.Append(nil))
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("load rules: %v\n%s\n%s", err, out, text)
	}
}

// shoot sends the packets, one after the other, and returns what was seen of each:
// where, and what. It returns when every packet has come to its end.
func (r *shootingRange) shoot(ctx context.Context, f family, packets []trace.Packet) ([]map[string]sight, error) {
	first := r.number
	r.number += uint32(len(packets)) + 2
	seen := make([]map[string]sight, len(packets)+2)
	for i := range seen {
		seen[i] = map[string]sight{}
	}
	marker := trace.Packet{In: "eth0", Source: f.marker, Destination: f.pods[0], Protocol: "udp", SourcePort: 7, DestinationPort: 7}
	err := onOneCPU(func() error {
		for i, p := range packets {
			if err := r.send(f, p, first+uint32(i)); err != nil {
				return fmt.Errorf("send %s: %w", p, err)
			}
		}
		// What a packet sets off queues up behind it, on this CPU. A second marker is
		// behind what was set off by all that was before the first.
		for i := range 2 {
			at := len(packets) + i
			if err := r.send(f, marker, first+uint32(at)); err != nil {
				return err
			}
			if err := r.await(ctx, f, first, seen, at); err != nil {
				return err
			}
		}
		return nil
	})
	return seen[:len(packets)], err
}

// onOneCPU calls f on a thread that stays on one CPU, so that the packets that it
// sends are handled in order.
func onOneCPU(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its narrow affinity
		var one, all unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			done <- err
			return
		}
		for cpu := 0; one.Count() == 0; cpu++ {
			if all.IsSet(cpu) {
				one.Set(cpu)
			}
		}
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (r *shootingRange) send(f family, p trace.Packet, number uint32) error {
	b := build(p, number)
	if p.In != "" {
		e := r.ends[p.In]
		to := &unix.SockaddrLinklayer{Protocol: networkOrder(f.ethertype), Ifindex: e.index, Halen: 6}
		copy(to.Addr[:], e.mac)
		return unix.Sendto(e.socket, b, 0, to)
	}
	var to unix.Sockaddr
	if p.Destination.Is4() {
		to = &unix.SockaddrInet4{Addr: p.Destination.As4()}
	} else {
		to = &unix.SockaddrInet6{Addr: p.Destination.As16()}
	}
	err := unix.Sendto(r.raw[f.ethertype], b, 0, to)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ECONNREFUSED) {
		return nil // the sender is told of a DROP or REJECT
	}
	return err
}

// await collects what there is to see until the packet of an index has arrived.
func (r *shootingRange) await(ctx context.Context, f family, first uint32, seen []map[string]sight, index int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if err := r.collect(f, first, seen); err != nil {
			return err
		}
		if len(seen[index]) > 0 {
			return r.collect(f, first, seen) // from the sockets that were read before the marker came
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the marker does not arrive: %w", ctx.Err())
		}
		polled := []unix.PollFd{{Fd: int32(r.ends["pod0"].socket), Events: unix.POLLIN}}
		if _, err := unix.Poll(polled, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// collect reads every socket empty.
func (r *shootingRange) collect(f family, first uint32, seen []map[string]sight) error {
	note := func(where string, s sight) {
		if i := s.number - first; i < uint32(len(seen)) {
			if s.rejected {
				where = "rejected"
			}
			seen[i][where] = s
		}
	}
	buffer := make([]byte, 2048)
	for _, s := range r.kept[f.ethertype] {
		for {
			n, from, err := unix.Recvfrom(s, buffer, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if errors.Is(err, unix.ECONNREFUSED) {
				continue
			}
			if err != nil {
				return err
			}
			if seen, ok := parseKept(f, s, from, buffer[:n], r); ok {
				note("host", seen)
			}
		}
	}
	for _, name := range []string{"eth0", "pod0"} {
		for {
			n, from, err := unix.Recvfrom(r.ends[name].socket, buffer, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				return err
			}
			if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
				continue // sent from here
			}
			if seen, ok := parseIP(buffer[:n]); ok {
				note(name, seen)
			}
		}
	}
	return nil
}

// parseKept reads what a raw socket got: with the IP header in IPv4, without in IPv6.
func parseKept(f family, socket int, from unix.Sockaddr, b []byte, r *shootingRange) (sight, bool) {
	if f.ethertype == unix.ETH_P_IP {
		return parseIP(b)
	}
	protocol := byte(0)
	for i, s := range r.kept[f.ethertype] {
		if s == socket {
			protocol = byte(f.protocols[i])
		}
	}
	s, ok := parseSegment(protocol, b)
	if a, is6 := from.(*unix.SockaddrInet6); is6 {
		s.from = netip.AddrFrom16(a.Addr)
	}
	return s, ok
}
