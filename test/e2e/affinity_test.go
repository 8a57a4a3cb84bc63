package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// clientIP makes a client stay with its endpoint for so many seconds; 0 leaves the
// field to its default of three hours.
func clientIP(seconds int32) func(*v1.Service) {
	return func(svc *v1.Service) {
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = nil
		if seconds > 0 {
			svc.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
}

// manyClients is so many that they all choose the same of two pods, without affinity
// between them, once in 10^7 times.
const manyClients = 24

// clientRanges hold the addresses of the many clients, by family.
var clientRanges = map[int]netip.Prefix{4: netip.MustParsePrefix("10.9.10.0/24"), 6: netip.MustParsePrefix("fd00:9::a:0/112")}

// addClients gives the client outside more addresses, to be many clients, for the time
// of the case.
func (c *cluster) addClients(t *testing.T, family int) []netip.Addr {
	t.Helper()
	within := clientRanges[family]
	t.Cleanup(func() {
		flush := []string{fmt.Sprintf("-%d", family), "addr", "flush", "dev", lab.Uplink, "to", within.String()}
		if _, err := c.net.Client.Run(context.Background(), "ip", flush...); err != nil {
			t.Error(err)
		}
	})
	var addrs []netip.Addr
	var hosts []netip.Prefix
	for addr := within.Addr().Next(); len(addrs) < manyClients; addr = addr.Next() {
		addrs = append(addrs, addr)
		hosts = append(hosts, netip.PrefixFrom(addr, addr.BitLen()))
	}
	if err := c.net.Client.AddAddrs(lab.Uplink, hosts...); err != nil {
		t.Fatal(err)
	}
	return addrs
}

// sticksTo makes some connections from one of a host's addresses, all of which must
// lead to one pod, and returns that.
func sticksTo(t *testing.T, from *lab.Host, source netip.Addr, to netip.AddrPort) string {
	t.Helper()
	const connections = 6
	cmd := curlCommand(t.Context(), from, fmt.Sprintf("http://%s/[1-%d]", to, connections), "--interface", source.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseTransfers(string(out))
	if err != nil {
		t.Fatal(err)
	}
	counts, err := countAnswers(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != connections || len(counts) != 1 {
		t.Fatalf("%d connections from %s to %s were answered by %v, want %d by one pod", len(list), source, to, counts, connections)
	}
	return list[0].answer.Pod
}

// A client stays with its pod, under both policies and at each way in, and others
// choose for themselves; each port of a Service is a choice of its own.
func TestSessionAffinity(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		pods := []string{podA, podA2, podB, podB2}
		for _, pod := range pods {
			ns.pod(t, "s", pod)
		}
		svc := ns.service(t, "s", nodePort, clientIP(0), func(svc *v1.Service) {
			svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: "alt", Port: 81, TargetPort: intstr.FromInt32(podPort)})
		})
		c.waitForEndpoints(t, svc, pods...)
		clients := map[int][]netip.Addr{4: c.addClients(t, 4), 6: c.addClients(t, 6)}
		client, n := c.net.Client, c.nodes[n1]

		forEachFamily(t, func(t *testing.T, family int) {
			ip := clusterIP(t, svc, family)
			others := 0
			chosen := map[string]bool{}
			for _, addr := range clients[family] {
				pod := sticksTo(t, client, addr, ip)
				chosen[pod] = true
				// The choice is the Service port's, whatever address it was found by.
				if got := sticksTo(t, client, addr, nodePortAt(svc, n, family)); got != pod {
					t.Errorf("B-71 %s was answered by %s at the cluster IP and by %s at the node port", addr, pod, got)
				}
				if sticksTo(t, client, addr, netip.AddrPortFrom(ip.Addr(), 81)) != pod {
					others++
				}
			}
			if len(chosen) == 1 {
				t.Errorf("B-71 all of %d clients were given %v", manyClients, chosen)
			}
			if others == 0 {
				t.Errorf("B-73 all of %d clients have the same pod on both ports", manyClients)
			}
		})

		ns.update(t, "s", externalLocal)
		t.Run("B-71 policy Local", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				eventually(t, "the chain of the policy to be used", func() error {
					return n.hasRule(t, family, "-j "+chainName("KUBE-SVL-", portName(svc), "tcp"))
				})
				chosen := map[string]bool{}
				for _, addr := range clients[family] {
					chosen[sticksTo(t, client, addr, nodePortAt(svc, n, family))] = true
				}
				if !chosen[podA] || !chosen[podA2] || len(chosen) != 2 {
					t.Errorf("clients were given %v, want both pods of the node and no others", chosen)
				}
			})
		})
	})
}

// A client that was away for longer than the timeout chooses anew.
func TestSessionAffinityExpires(t *testing.T) {
	const seconds = 1
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		pods := []string{podA, podA2, podB, podB2}
		for _, pod := range pods {
			ns.pod(t, "s", pod)
		}
		svc := ns.service(t, "s", clientIP(seconds))
		c.waitForEndpoints(t, svc, pods...)
		to := clusterIP(t, svc, 4)
		t.Run("B-71 expiry", func(t *testing.T) {
			first, err := fetchOne(t.Context(), c.pods[podC].Host, to)
			if err != nil {
				t.Fatal(err)
			}
			// Each look renews the stay, so the pause between looks is the client's absence.
			away := time.NewTicker(2 * seconds * time.Second)
			defer away.Stop()
			// Without expiry the pod never changes; with it, it is the same one so many
			// times once in 10^12.
			for range 20 {
				<-away.C
				next, err := fetchOne(t.Context(), c.pods[podC].Host, to)
				if err != nil {
					t.Fatal(err)
				}
				if next.Pod != first.Pod {
					return
				}
			}
			t.Errorf("%s still answers", first.Pod)
		})
	})
}
