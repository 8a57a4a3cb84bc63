package metrics

import (
	k8smetrics "k8s.io/component-base/metrics"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// The two prefixes of our metrics.
const (
	kubeproxy = "kubeproxy"
	miniproxy = "miniproxy"
)

// declare makes the metrics, not yet registered.
func declare() *Metrics {
	return &Metrics{
		syncDuration: histogram("sync_proxy_rules_duration_seconds",
			"How long a sync of the rules took, full or partial", syncBuckets()),
		fullSyncDuration: histogram("sync_full_proxy_rules_duration_seconds",
			"How long a full sync of the rules took", syncBuckets()),
		partialSyncDuration: histogram("sync_partial_proxy_rules_duration_seconds",
			"How long a partial sync of the rules took", syncBuckets()),
		programming: histogram("network_programming_duration_seconds",
			"Time from a change of endpoints in the cluster to rules in the kernel of this node", programmingBuckets()),
		lastSync: gauge(kubeproxy, "sync_proxy_rules_last_timestamp_seconds",
			"When the rules were last synced without failure", "ip_family"),
		lastQueued: gauge(kubeproxy, "sync_proxy_rules_last_queued_timestamp_seconds",
			"When a sync of the rules was last asked for", "ip_family"),
		syncs: counter(miniproxy, "syncs_total",
			"Syncs of the rules by what caused them", "ip_family", "trigger"),

		serviceChanges:   plainCounter("sync_proxy_rules_service_changes_total", "Changes of Services seen"),
		servicesPending:  plainGauge("sync_proxy_rules_service_changes_pending", "Changes of Services not yet synced"),
		endpointChanges:  plainCounter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices seen"),
		endpointsPending: plainGauge("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices not yet synced"),
		pending:          map[model.Family]pending{},

		applyProgress: gauge(miniproxy, "apply_progress_ratio",
			"Share of the Service ports that the sync in progress has handed to the kernel; 1 after one that succeeded", "ip_family"),
		rules: gauge(kubeproxy, "sync_proxy_rules_iptables_total",
			"Iptables rules owned by this agent", "table", "ip_family"),
		rulesWritten: gauge(kubeproxy, "sync_proxy_rules_iptables_last",
			"Iptables rules written by the last sync", "table", "ip_family"),
		restoreFailures: counter(kubeproxy, "sync_proxy_rules_iptables_restore_failures_total",
			"Iptables transactions that were refused", "ip_family"),
		partialRestoreFailures: counter(kubeproxy, "sync_proxy_rules_iptables_partial_restore_failures_total",
			"Partial syncs that failed and were followed by a full one", "ip_family"),
		noLocalEndpoints: gauge(kubeproxy, "sync_proxy_rules_no_local_endpoints_total",
			"Service ports of traffic policy Local with endpoints elsewhere only", "traffic_policy", "ip_family"),
		refused: gauge(miniproxy, "refused_service_ports",
			"Service ports whose rules the kernel does not take", "ip_family"),
		capability: gauge(miniproxy, "capability",
			"Whether the kernel and iptables have a feature that rules use: 1, or 0 where rules do without", "ip_family", "feature"),
		canaryRepairs: counter(miniproxy, "canary_repairs_total",
			"Tables repaired because another program had changed them", "ip_family", "table", "reason"),
		repairsDelayed: counter(miniproxy, "repairs_delayed_total",
			"Repairs put off because another program undoes them again and again", "ip_family"),
		inspections: counter(miniproxy, "inspections_total",
			"Comparisons of the rules in the kernel with what was written", "ip_family"),
		inspectionSeconds: counter(miniproxy, "inspection_seconds_total",
			"How long comparing the rules in the kernel with what was written took in all", "ip_family"),
		repairWait: gauge(miniproxy, "repair_wait_seconds",
			"How long a repair is put off now because another program undoes them again and again", "ip_family"),

		healthz: counter(kubeproxy, "proxy_healthz_total", "Answers of /healthz by HTTP status", "code"),
		livez:   counter(kubeproxy, "proxy_livez_total", "Answers of /livez by HTTP status", "code"),

		conntrackDuration: histogram("conntrack_reconciler_sync_duration_seconds",
			"How long it took to remove stale conntrack entries", syncBuckets()),
		conntrackDeleted: counter(kubeproxy, "conntrack_reconciler_deleted_entries_total",
			"Stale conntrack entries deleted", "ip_family"),
		failedOver: counter(miniproxy, "connections_failed_over_total",
			"TCP connections freed from waiting for an endpoint that had left", "ip_family"),
	}
}

// syncBuckets are 1 ms to 16 s in steps of two.
func syncBuckets() []float64 { return k8smetrics.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets are those of the network programming latency SLO: fine up to
// a minute, coarse up to five.
func programmingBuckets() []float64 {
	return k8smetrics.MergeBuckets(
		k8smetrics.LinearBuckets(0.25, 0.25, 2),
		k8smetrics.LinearBuckets(1, 1, 59),
		k8smetrics.LinearBuckets(60, 5, 12),
		k8smetrics.LinearBuckets(120, 30, 7),
	)
}

func histogram(name, help string, buckets []float64) *k8smetrics.HistogramVec {
	return k8smetrics.NewHistogramVec(&k8smetrics.HistogramOpts{
		Subsystem: kubeproxy, Name: name, Help: help, Buckets: buckets, StabilityLevel: k8smetrics.ALPHA,
	}, []string{"ip_family"})
}

func gauge(prefix, name, help string, labels ...string) *k8smetrics.GaugeVec {
	return k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{
		Subsystem: prefix, Name: name, Help: help, StabilityLevel: k8smetrics.ALPHA,
	}, labels)
}

func plainGauge(name, help string) *k8smetrics.Gauge {
	return k8smetrics.NewGauge(&k8smetrics.GaugeOpts{
		Subsystem: kubeproxy, Name: name, Help: help, StabilityLevel: k8smetrics.ALPHA,
	})
}

func counter(prefix, name, help string, labels ...string) *k8smetrics.CounterVec {
	return k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{
		Subsystem: prefix, Name: name, Help: help, StabilityLevel: k8smetrics.ALPHA,
	}, labels)
}

func plainCounter(name, help string) *k8smetrics.Counter {
	return k8smetrics.NewCounter(&k8smetrics.CounterOpts{
		Subsystem: kubeproxy, Name: name, Help: help, StabilityLevel: k8smetrics.ALPHA,
	})
}
