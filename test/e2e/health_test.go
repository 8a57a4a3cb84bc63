package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The pages of the health server of an agent that works.
func TestHealthPages(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		tests := []struct {
			path   string
			fields []string
		}{
			{"/healthz", []string{"lastUpdated", "currentTime", "nodeEligible", "healthy", "status"}},
			{"/livez", []string{"lastUpdated", "currentTime", "healthy", "status"}},
			{"/readyz", []string{"currentTime", "ready", "status"}},
		}
		for _, tt := range tests {
			t.Run(tt.path[1:], func(t *testing.T) {
				p, err := n.get(t, healthAddr, tt.path)
				if err != nil {
					t.Fatal(err)
				}
				if p.status != http.StatusOK || p.header.Get("Content-Type") != "application/json" {
					t.Errorf("status %d, content type %q, want 200 and JSON", p.status, p.header.Get("Content-Type"))
				}
				var body map[string]json.RawMessage
				if err := json.Unmarshal([]byte(p.body), &body); err != nil {
					t.Fatalf("%v: %s", err, p.body)
				}
				for _, field := range tt.fields {
					if body[field] == nil {
						t.Errorf("no field %s in %s", field, p.body)
					}
				}
				if len(body) != len(tt.fields) {
					t.Errorf("got %s, want the fields %v", p.body, tt.fields)
				}
				for _, family := range []string{"IPv4", "IPv6"} {
					if !strings.Contains(string(body["status"]), family) {
						t.Errorf("nothing on %s in %s", family, p.body)
					}
				}
			})
		}
	})
}

// A node that the autoscaler is about to remove is unfit, and its agent is well (B-68).
func TestNodeToBeDeleted(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		steps := []struct {
			name   string
			taints []v1.Taint
			status int
		}{
			{"B-68 tainted", []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: v1.TaintEffectNoSchedule}}, http.StatusServiceUnavailable},
			{"B-68 taint gone", nil, http.StatusOK},
		}
		for _, step := range steps {
			c.changeNode(t, n1, func(obj *v1.Node) { obj.Spec.Taints = step.taints })
			t.Run(step.name, func(t *testing.T) {
				eventually(t, "/healthz", func() error { return n.answers(t, healthAddr, "/healthz", step.status) })
				if err := n.answers(t, healthAddr, "/livez", http.StatusOK); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// A health-check node port says whether the node has endpoints that new connections
// should go to (B-16).
func TestHealthCheckNodePort(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "s", podA2)
		svc := ns.service(t, "s", loadBalancer, externalLocal)
		first, second := c.nodes[n1], c.nodes[n2]
		t.Run("B-16 endpoints on one node", func(t *testing.T) {
			forEachFamily(t, func(t *testing.T, family int) {
				eventually(t, "the node with pods", func() error { return c.checked(t, svc, first, family, 2) })
				eventually(t, "the node without", func() error { return c.checked(t, svc, second, family, 0) })
			})
		})
		ns.deletePod(t, podA2)
		t.Run("B-16 one endpoint less", func(t *testing.T) {
			eventually(t, "the other one to count", func() error { return c.checked(t, svc, first, 4, 1) })
		})
		ns.terminate(t, podA)
		t.Run("B-16 only ending endpoints", func(t *testing.T) {
			eventually(t, "the balancer to be sent away", func() error { return c.checked(t, svc, first, 4, 0) })
			// Who comes all the same is served.
			checkWays(t, []wayIn{{c.keptClient(n1), nodePortAt(svc, first, 4)}}, podA)
		})
		ns.pod(t, "s", podB)
		ns.deletePod(t, podA)
		t.Run("B-16 endpoints move to the other node", func(t *testing.T) {
			eventually(t, "the other node", func() error { return c.checked(t, svc, second, 6, 1) })
			eventually(t, "the first node", func() error { return c.checked(t, svc, first, 6, 0) })
		})
		ns.deleteService(t, "s")
		t.Run("B-16 Service deleted", func(t *testing.T) {
			eventually(t, "the port to be closed", func() error {
				return refused(t.Context(), c.net.Client, netip.AddrPortFrom(second.addr(4), uint16(svc.Spec.HealthCheckNodePort)))
			})
		})
	})
}

// checked returns nil when a node's health-check node port, asked from outside, says
// that so many endpoints are there.
func (c *cluster) checked(t *testing.T, svc *v1.Service, n *node, family, endpoints int) error {
	t.Helper()
	at := netip.AddrPortFrom(n.addr(family), uint16(svc.Spec.HealthCheckNodePort))
	p, err := getFrom(t, c.net.Client, at.String(), "/")
	if err != nil {
		return err
	}
	var body struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	if err := json.Unmarshal([]byte(p.body), &body); err != nil {
		return fmt.Errorf("%w: %s", err, p.body)
	}
	want := http.StatusOK
	if endpoints == 0 {
		want = http.StatusServiceUnavailable
	}
	weight := p.header.Get("X-Load-Balancing-Endpoint-Weight")
	if p.status != want || weight != fmt.Sprint(endpoints) || body.LocalEndpoints != endpoints ||
		!body.ServiceProxyHealthy || body.Service.Namespace != svc.Namespace || body.Service.Name != svc.Name {
		return fmt.Errorf("status %d, weight %q, %s; want %d for %d endpoints of %s/%s", p.status, weight, p.body, want, endpoints, svc.Namespace, svc.Name)
	}
	return nil
}

// While the rules of one family cannot be written, the other family goes on, health
// says so, and what was missed is made up for (B-16, B-39, B-67, B-70).
func TestRefusedRestores(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", loadBalancer, externalLocal)
		c.waitForEndpointsLocal(t, svc, podA)
		c.restoreAgent(t, n)
		broken := filepath.Join(t.TempDir(), "broken")
		n.restartAs(t, n.wrap(t, fmt.Sprintf(`[[ -e %s ]] && { cat >/dev/null; echo "no luck" >&2; exit 4; }; real "$@"`, broken), "ip6tables-restore"))
		n.waitReady(t)

		if err := os.WriteFile(broken, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		ns.pod(t, "t", podA2)
		other := ns.serviceUnseen(t, "t")
		t.Run("B-70 the other family goes on", func(t *testing.T) {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, other, 4)}}, podA2)
			checkWays(t, []wayIn{{c.keptClient(n1), nodePortAt(svc, n, 6)}}, podA)
		})
		t.Run("B-67 health", func(t *testing.T) {
			for _, path := range []string{"/readyz", "/healthz", "/livez"} {
				eventually(t, path+" to say so", func() error { return n.answers(t, healthAddr, path, http.StatusServiceUnavailable) })
			}
		})
		t.Run("B-16 health-check node port", func(t *testing.T) {
			at := netip.AddrPortFrom(n.addr(4), uint16(svc.Spec.HealthCheckNodePort)).String()
			if err := n.answers(t, at, "/", http.StatusServiceUnavailable); err != nil {
				t.Error(err)
			}
		})
		t.Run("B-70 metrics", func(t *testing.T) {
			const name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
			p, err := n.get(t, metricsAddr, "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			if v6, v4 := sample(p.body, name+`{ip_family="IPv6"}`), sample(p.body, name+`{ip_family="IPv4"}`); v6 == "" || v6 == "0" || v4 != "0" {
				t.Errorf("%s is %q for IPv6 and %q for IPv4, want some and 0", name, v6, v4)
			}
		})
		if err := os.Remove(broken); err != nil {
			t.Fatal(err)
		}
		t.Run("B-39 made up for", func(t *testing.T) {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, other, 6)}}, podA2)
			for _, path := range []string{"/readyz", "/healthz", "/livez"} {
				eventually(t, path+" to be well", func() error { return n.answers(t, healthAddr, path, http.StatusOK) })
			}
		})
	})
}

// sample is the value of a metric in Prometheus text, empty if there is none.
func sample(text, series string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Everything that is watched by name is there, on the node's own address only.
func TestMetricsPages(t *testing.T) {
	names := []string{
		"kubeproxy_sync_proxy_rules_duration_seconds_count",
		"kubeproxy_sync_full_proxy_rules_duration_seconds_count",
		"kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
		"kubeproxy_network_programming_duration_seconds_count",
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total",
		"kubeproxy_sync_proxy_rules_service_changes_pending",
		"kubeproxy_sync_proxy_rules_service_changes_total",
		"kubeproxy_sync_proxy_rules_iptables_total",
		"kubeproxy_sync_proxy_rules_iptables_last",
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"kubeproxy_proxy_healthz_total",
		"kubeproxy_proxy_livez_total",
		"kubeproxy_conntrack_reconciler_sync_duration_seconds_count",
		"kubeproxy_conntrack_reconciler_deleted_entries_total",
		"miniproxy_syncs_total",
		"kubernetes_build_info",
		"rest_client_requests_total",
		"rest_client_request_duration_seconds_count",
		"process_cpu_seconds_total",
		"go_goroutines",
	}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		// UDP, so that there are flows to look after.
		svc := ns.service(t, "s", udp)
		c.waitForEndpoints(t, svc, podA)
		for _, path := range []string{"/healthz", "/livez"} {
			if err := n.answers(t, healthAddr, path, http.StatusOK); err != nil {
				t.Fatal(err)
			}
		}
		p, err := n.get(t, metricsAddr, "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if !strings.Contains(p.body, "\n"+name+"{") && !strings.Contains(p.body, "\n"+name+" ") {
				t.Errorf("no metric %s", name)
			}
		}
		t.Run("B-14 rules are counted", func(t *testing.T) { n.checkRuleCount(t) })
		for path, text := range map[string]string{
			"/proxyMode": "iptables",
			"/configz":   `"kubeproxy.config.k8s.io"`,
			"/healthz":   "ok",
			"/statusz":   "miniproxy",
			"/flagz":     "iptables-sync-period=" + syncPeriod,
		} {
			p, err := n.get(t, metricsAddr, path)
			if err != nil {
				t.Fatal(err)
			}
			if p.status != http.StatusOK || !strings.Contains(p.body, text) {
				t.Errorf("%s: status %d, want %q in\n%s", path, p.status, text, p.body)
			}
		}
		if err := refused(t.Context(), c.net.Client, netip.AddrPortFrom(n.addr(4), 10249)); err != nil {
			t.Error(err)
		}
	})
}

// checkRuleCount compares what the metric says with the lines in the kernel, but for
// that of the canary, which no Service needs.
func (n *node) checkRuleCount(t *testing.T) {
	t.Helper()
	eventually(t, "the metric to be the number of rules", func() error {
		var errs []error
		for _, family := range families {
			for _, table := range []string{"nat", "filter"} {
				save, err := n.iptables(t.Context(), tool(family)+"-save", "-t", table)
				if err != nil {
					return err
				}
				p, err := n.get(t, metricsAddr, "/metrics")
				if err != nil {
					return err
				}
				want := fmt.Sprint(strings.Count(save, "\n-A KUBE-") - strings.Count(save, "\n-A KUBE-PROXY-CANARY "))
				series := fmt.Sprintf(`kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv%d",table=%q}`, family, table)
				if got := sample(p.body, series); got != want {
					errs = append(errs, fmt.Errorf("%s is %q, the kernel has %s", series, got, want))
				}
			}
		}
		return errors.Join(errs...)
	})
}
