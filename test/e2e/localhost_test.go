package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// route_localnet lets packets to 127.0.0.0/8 in from the network; a rule has to keep
// out all but those that are for a node port (B-12, CVE-2020-8558).
func TestLocalhostIsClosedToTheNetwork(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		// Set after the rule is there that makes it safe.
		eventually(t, "route_localnet, which node ports on 127.0.0.1 need", func() error {
			value, err := n.Run(t.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
			if got := strings.TrimSpace(value); err == nil && got != "1" {
				err = fmt.Errorf("it is %s, want 1", got)
			}
			return err
		})

		private := netip.MustParseAddrPort("127.0.0.1:9000")
		public := netip.AddrPortFrom(n.addr(4), 9000)
		listener, err := n.ListenPacket(t.Context(), "udp", "0.0.0.0:9000")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()

		neighbour := c.neighbour(t, n)
		dropsBefore := n.dropped(t)
		for _, to := range []netip.AddrPort{private, public} {
			conn, err := neighbour.Dial(t.Context(), "udp", to.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(to.String())); err != nil {
				t.Fatal(err)
			}
		}
		// Packets keep their order on this way: once the second one is here, the first
		// one would be here too.
		if err := listener.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		packet := make([]byte, 100)
		size, _, err := listener.ReadFrom(packet)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(packet[:size]); got != public.String() {
			t.Errorf("a neighbour's packet to %s arrived at the node", got)
		}
		if got := n.dropped(t); got != dropsBefore+1 {
			t.Errorf("the rule of KUBE-FIREWALL has dropped %d packets, want %d", got, dropsBefore+1)
		}
	})
}

// neighbour is a machine on the nodes' network that looks for 127.0.0.1 on n.
func (c *cluster) neighbour(t *testing.T, n *node) *lab.Host {
	t.Helper()
	if c.outcast != nil {
		return c.outcast
	}
	const addr = "10.0.0.66"
	host, err := c.net.AddMachine("neighbour", netip.MustParsePrefix(addr+"/24"))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"addr", "del", "127.0.0.1/8", "dev", "lo"},
		{"route", "add", "127.0.0.0/8", "via", n.addr(4).String(), "dev", lab.Uplink, "src", addr},
	} {
		if _, err := host.Run(t.Context(), "ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := host.Sysctl(lab.Setting{Path: "net/ipv4/conf/all/route_localnet", Value: "1"}); err != nil {
		t.Fatal(err)
	}
	c.outcast = host
	return host
}

var firewallCounter = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A KUBE-FIREWALL .*127\.0\.0\.0/8.* -j DROP$`)

// dropped is how many packets the rule that guards 127.0.0.0/8 has dropped.
func (n *node) dropped(t *testing.T) int {
	t.Helper()
	return n.counter(t, firewallCounter)
}

// counter is the packet counter of the one IPv4 rule in filter that matches form.
func (n *node) counter(t *testing.T, form *regexp.Regexp) int {
	t.Helper()
	rules, err := n.iptables(t.Context(), "iptables-save", "-c", "-t", "filter")
	if err != nil {
		t.Fatal(err)
	}
	found := form.FindAllStringSubmatch(rules, -1)
	if len(found) != 1 {
		t.Fatalf("%d rules match %s, want one, in\n%s", len(found), form, rules)
	}
	packets, err := strconv.Atoi(found[0][1])
	if err != nil {
		t.Fatal(err)
	}
	return packets
}
