package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	k8smetrics "k8s.io/component-base/metrics"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// scrape is the text that Prometheus would get from the registry.
func scrape(t *testing.T, reg k8smetrics.KubeRegistry) string {
	t.Helper()
	w := httptest.NewRecorder()
	k8smetrics.HandlerFor(reg, k8smetrics.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: got %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// samples are the lines of a scrape that are neither comments nor buckets.
func samples(scraped string) string {
	var b strings.Builder
	for line := range strings.Lines(scraped) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "_bucket{") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestNewStartsCountersAtZero(t *testing.T) {
	reg := k8smetrics.NewKubeRegistry()
	New(reg).SetFamilies(model.IPv4, model.IPv6)
	const want = `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0
kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 0
kubeproxy_sync_proxy_rules_endpoint_changes_pending 0
kubeproxy_sync_proxy_rules_endpoint_changes_total 0
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 0
kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 0
kubeproxy_sync_proxy_rules_service_changes_pending 0
kubeproxy_sync_proxy_rules_service_changes_total 0
miniproxy_connections_failed_over_total{ip_family="IPv4"} 0
miniproxy_connections_failed_over_total{ip_family="IPv6"} 0
miniproxy_repair_wait_seconds{ip_family="IPv4"} 0
miniproxy_repair_wait_seconds{ip_family="IPv6"} 0
miniproxy_repairs_delayed_total{ip_family="IPv4"} 0
miniproxy_repairs_delayed_total{ip_family="IPv6"} 0
`
	if got := samples(scrape(t, reg)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestValues records every metric once and compares the whole scrape: names, types
// and labels are what other people's dashboards ask for.
func TestValues(t *testing.T) {
	reg := k8smetrics.NewKubeRegistry()
	m := New(reg)
	at := time.Unix(1700000000, 500_000_000)
	m.SyncQueued(model.IPv4, at)
	m.SyncDone(model.IPv4, true, "start", 1500*time.Millisecond)
	m.SyncDone(model.IPv4, false, "change", 2*time.Millisecond)
	m.SyncSucceeded(model.IPv6, at)
	m.Programmed(model.IPv4, 700*time.Millisecond)
	m.ServiceChanged()
	m.EndpointsChanged()
	m.Pending(model.IPv4, 3, 1)
	m.Pending(model.IPv6, 2, 5)
	m.Rules(model.IPv4, "nat", 120)
	m.RulesWritten(model.IPv4, "nat", 7)
	m.ApplyProgress(model.IPv4, 3, 4)
	m.RestoreFailed(model.IPv6)
	m.PartialSyncFailed(model.IPv6)
	m.NoLocalEndpoints(model.IPv4, Internal, 2)
	m.NoLocalEndpoints(model.IPv4, External, 3)
	m.CanaryRepaired(model.IPv4, "nat", "flushed")
	m.RepairDelayed(model.IPv4)
	m.RepairWait(model.IPv4, 4*time.Second)
	m.Inspected(model.IPv4, 1500*time.Millisecond)
	m.Healthz(200)
	m.Livez(503)
	m.ConntrackReconciled(model.IPv4, 4, time.Millisecond)
	m.ConnectionsFailedOver(model.IPv6, 6)
	RegisterAccounting(reg, counters{"inv": 9, "lo": 0}, "inv", "lo")

	const want = `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 4
kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family="IPv4"} 0.001
kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 1
kubeproxy_iptables_ct_state_invalid_dropped_packets_total 9
kubeproxy_iptables_localhost_nodeports_accepted_packets_total 0
kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 0.7
kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1
kubeproxy_proxy_healthz_total{code="200"} 1
kubeproxy_proxy_livez_total{code="503"} 1
kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 1.5
kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1
kubeproxy_sync_partial_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.002
kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1
kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 1.502
kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2
kubeproxy_sync_proxy_rules_endpoint_changes_pending 5
kubeproxy_sync_proxy_rules_endpoint_changes_total 1
kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"} 7
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 1
kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 1
kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 120
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.7000000005e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.7000000005e+09
kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 3
kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 2
kubeproxy_sync_proxy_rules_service_changes_pending 3
kubeproxy_sync_proxy_rules_service_changes_total 1
miniproxy_apply_progress_ratio{ip_family="IPv4"} 0.75
miniproxy_canary_repairs_total{ip_family="IPv4",reason="flushed",table="nat"} 1
miniproxy_connections_failed_over_total{ip_family="IPv6"} 6
miniproxy_inspection_seconds_total{ip_family="IPv4"} 1.5
miniproxy_inspections_total{ip_family="IPv4"} 1
miniproxy_repair_wait_seconds{ip_family="IPv4"} 4
miniproxy_repairs_delayed_total{ip_family="IPv4"} 1
miniproxy_syncs_total{ip_family="IPv4",trigger="change"} 1
miniproxy_syncs_total{ip_family="IPv4",trigger="start"} 1
`
	got := scrape(t, reg)
	if got := samples(got); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, line := range []string{
		`# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram`,
		`# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge`,
		`# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge`,
		`# TYPE kubeproxy_proxy_healthz_total counter`,
		`# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter`,
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.001"} 0`,
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"} 2`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 0`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="1"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="59"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="115"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="300"} 1`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("scrape lacks the line %s", line)
		}
	}
	// MergeBuckets adds a bucket of 0, in kube-proxy too, and there is one of infinity.
	if got, want := strings.Count(got, `kubeproxy_network_programming_duration_seconds_bucket{`), 1+2+59+12+7+1; got != want {
		t.Errorf("network programming has %d buckets, want %d", got, want)
	}
	if got, want := strings.Count(got, `kubeproxy_sync_proxy_rules_duration_seconds_bucket{`), 15+1; got != want {
		t.Errorf("sync duration has %d buckets, want %d", got, want)
	}
}

// counters are nfacct objects by name.
type counters map[string]uint64

var errNoObject = errors.New("no such object")

func (c counters) Packets(name string) (uint64, error) {
	n, ok := c[name]
	if !ok {
		return 0, errNoObject
	}
	return n, nil
}

// A kernel without nfacct must not look like one that dropped nothing.
func TestAccountingIsAbsentWithoutObjects(t *testing.T) {
	for _, tc := range []struct {
		name               string
		objects            counters
		invalid, localhost string
		want               string
	}{
		{name: "no objects wanted", objects: counters{"inv": 1}},
		{name: "object lost", objects: counters{}, invalid: "inv", localhost: "lo"},
		{name: "one of two", objects: counters{"lo": 3}, invalid: "inv", localhost: "lo",
			want: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 3\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg := k8smetrics.NewKubeRegistry()
			RegisterAccounting(reg, tc.objects, tc.invalid, tc.localhost)
			if got := samples(scrape(t, reg)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// registerOnce registers with the process, which can be done once in its life.
var registerOnce = sync.OnceFunc(func() { New(ProcessRegistry{}).SetFamilies(model.IPv4) })

// TestProcessRegistry asks the real registry for the names from outside this
// package that dashboards show beside ours.
func TestProcessRegistry(t *testing.T) {
	registerOnce()
	w := httptest.NewRecorder()
	ProcessRegistry{}.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, name := range []string{
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{", "kubernetes_build_info{", "registered_metrics_total{",
		"go_goroutines ", "go_memstats_alloc_bytes ", "process_cpu_seconds_total ", "process_resident_memory_bytes ",
		"process_start_time_seconds ",
	} {
		if !strings.Contains(w.Body.String(), "\n"+name) {
			t.Errorf("scrape lacks %s", name)
		}
	}
}
