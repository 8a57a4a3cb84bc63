package e2e

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// SCTP is a protocol as the others, on the same port numbers, and rules for it are
// there only as long as a Service asks for it: they make the kernel load its part
// (B-75, B-87).
func TestSCTP(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		t.Run("B-75 nothing without a Service", func(t *testing.T) { checkNoSCTP(t, c) })

		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort, func(svc *v1.Service) {
			for _, protocol := range []v1.Protocol{v1.ProtocolSCTP, v1.ProtocolUDP} {
				svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{
					Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: 80,
					TargetPort: intstr.FromInt32(podPort), NodePort: sharedNodePort,
				})
			}
			svc.Spec.Ports[0].NodePort = sharedNodePort
		})
		c.waitForEndpoints(t, svc, podA)
		t.Run("B-75 rules", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				endpoint := c.pods[podA].addrPort(family)
				eventually(t, "the rules", func() error { return n.hasRule(t, family, "-p sctp") })
				for _, text := range []string{
					fmt.Sprintf("-d %s/%d -p sctp", clusterIP(t, svc, family).Addr(), endpoint.Addr().BitLen()),
					fmt.Sprintf("-m sctp --dport %d", sharedNodePort),
				} {
					if err := n.hasRule(t, family, text); err != nil {
						t.Error(err)
					}
				}
				chain := chainName("KUBE-SEP-", svc.Namespace+"/s:sctp", "sctp", endpoint.String())
				rules, err := n.rulesWith(t, family, "-A "+chain+" -p sctp")
				if err != nil {
					t.Fatal(err)
				}
				if len(rules) != 1 || !strings.Contains(rules[0], "-j DNAT --to-destination "+endpoint.String()) {
					t.Errorf("chain %s has %q, want a translation to %s", chain, rules, endpoint)
				}
			})
		})
		t.Run("B-75 packets", func(t *testing.T) {
			for _, way := range []wayIn{
				{c.podCaller(podC), clusterIP(t, svc, 4)},
				{maskedBy(n, "client through n1", c.net.Client), nodePortAt(svc, n, 4)},
			} {
				checkSCTP(t, way, c.pods[podA])
			}
		})
		t.Run("B-87 beside TCP and UDP", func(t *testing.T) {
			for _, to := range []netip.AddrPort{clusterIP(t, svc, 4), nodePortAt(svc, n, 4)} {
				from := maskedBy(n, "pod c", c.pods[podC].Host)
				if to.Port() == 80 {
					from = c.podCaller(podC)
				}
				checkWays(t, []wayIn{{from, to}}, podA)
				if _, err := askFrom(t, c.pods[podC].Host, to); err != nil {
					t.Errorf("udp %s: %v", to, err)
				}
			}
		})
		ns.deleteService(t, "s")
		t.Run("B-75 nothing afterwards", func(t *testing.T) { checkNoSCTP(t, c) })
	})
}

// sharedNodePort is the node port of several protocols.
const sharedNodePort = 30082

// checkNoSCTP waits until the nodes' rules do not know SCTP.
func checkNoSCTP(t *testing.T, c *cluster) {
	t.Helper()
	for _, n := range c.nodes {
		for _, family := range families {
			eventually(t, "no rule to know SCTP", func() error { return n.hasNoRule(t, family, "sctp") })
		}
	}
}

// checkSCTP sends a first packet of SCTP on a way in and waits until the pod has it,
// with the right source, on the port of the pod. The kernel need not have SCTP sockets.
func checkSCTP(t *testing.T, way wayIn, pod *sandbox) {
	t.Helper()
	const sourcePort = 40000
	listener, err := listenSCTP(t, pod.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sender, err := listenSCTP(t, way.host)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	if _, err := sender.WriteTo(sctpInit(sourcePort, way.to.Port()), &net.IPAddr{IP: way.to.Addr().AsSlice()}); err != nil {
		t.Fatal(err)
	}
	if err := listener.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 1500)
	size, from, err := listener.ReadFrom(packet)
	if err != nil {
		t.Fatalf("%s to %s: %v", way.name, way.to, err)
	}
	source, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
	if got := binary.BigEndian.Uint16(packet[2:]); size < 12 || got != podPort {
		t.Errorf("%s to %s arrived on port %d, want %d", way.name, way.to, got, podPort)
	}
	if !way.source(source.Unmap()) {
		t.Errorf("%s to %s: the pod saw %s as the source, want %s", way.name, way.to, source, way.want)
	}
}

// listenSCTP opens a raw socket for SCTP, protocol 132, over IPv4 on a host.
func listenSCTP(t *testing.T, h *lab.Host) (net.PacketConn, error) {
	t.Helper()
	return h.ListenPacket(t.Context(), "ip4:132", "0.0.0.0")
}

// sctpInit is a packet with an INIT chunk, see RFC 9260, section 3.3.2.
func sctpInit(source, destination uint16) []byte {
	const header, chunk, initType = 12, 20, 1
	b := make([]byte, header+chunk)
	binary.BigEndian.PutUint16(b[0:], source)
	binary.BigEndian.PutUint16(b[2:], destination)
	b[header] = initType
	binary.BigEndian.PutUint16(b[header+2:], chunk)
	binary.BigEndian.PutUint32(b[header+4:], 1)     // initiate tag
	binary.BigEndian.PutUint32(b[header+8:], 65536) // window
	binary.BigEndian.PutUint16(b[header+12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(b[header+14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(b[header+16:], 1)    // first TSN
	// The checksum is the only field of the other byte order.
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
