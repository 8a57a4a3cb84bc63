// Package metrics holds every metric of the agent and the pages of the metrics
// server (port 10249).
//
// The kubeproxy_ names, types, labels and buckets are kube-proxy's, so that
// dashboards and alerts written for it work here; what kube-proxy has no name for
// is under miniproxy_.
//
// How the agent uses it: main makes one Metrics on ProcessRegistry and hands it
// around; who records something declares a small interface of the methods it
// calls. For each family main calls SyncQueued when a change comes in, RestoreFailed
// for each transaction that is refused, SyncDone, Rules and RulesWritten when a sync
// has ended either way, and if it ended well SyncSucceeded, Refused, NoLocalEndpoints,
// and Programmed for each endpoint change that carried a trigger time.
package metrics

import (
	"strconv"
	"sync"
	"time"

	k8smetrics "k8s.io/component-base/metrics"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// Registerer is what metrics are registered with: a KubeRegistry of component-base,
// or ProcessRegistry.
type Registerer interface {
	MustRegister(...k8smetrics.Registerable)
	CustomMustRegister(...k8smetrics.StableCollector)
}

// Policy is a traffic policy as the label traffic_policy spells it.
type Policy string

// The two traffic policies of a Service.
const (
	Internal Policy = "internal"
	External Policy = "external"
)

// Metrics are the agent's own metrics. Its methods can be called concurrently.
type Metrics struct {
	syncDuration        *k8smetrics.HistogramVec
	fullSyncDuration    *k8smetrics.HistogramVec
	partialSyncDuration *k8smetrics.HistogramVec
	programming         *k8smetrics.HistogramVec
	lastSync            *k8smetrics.GaugeVec
	lastQueued          *k8smetrics.GaugeVec
	syncs               *k8smetrics.CounterVec

	serviceChanges   *k8smetrics.Counter
	servicesPending  *k8smetrics.Gauge
	endpointChanges  *k8smetrics.Counter
	endpointsPending *k8smetrics.Gauge
	mu               sync.Mutex
	pending          map[model.Family]pending

	applyProgress          *k8smetrics.GaugeVec
	rules                  *k8smetrics.GaugeVec
	rulesWritten           *k8smetrics.GaugeVec
	restoreFailures        *k8smetrics.CounterVec
	partialRestoreFailures *k8smetrics.CounterVec
	noLocalEndpoints       *k8smetrics.GaugeVec
	refused                *k8smetrics.GaugeVec
	capability             *k8smetrics.GaugeVec
	canaryRepairs          *k8smetrics.CounterVec
	repairsDelayed         *k8smetrics.CounterVec
	inspections            *k8smetrics.CounterVec
	inspectionSeconds      *k8smetrics.CounterVec
	repairWait             *k8smetrics.GaugeVec

	healthz *k8smetrics.CounterVec
	livez   *k8smetrics.CounterVec

	conntrackDuration *k8smetrics.HistogramVec
	conntrackDeleted  *k8smetrics.CounterVec
	failedOver        *k8smetrics.CounterVec
}

type pending struct{ services, endpoints int }

// New registers the metrics and returns them.
func New(reg Registerer) *Metrics {
	m := declare()
	reg.MustRegister(
		m.syncDuration, m.fullSyncDuration, m.partialSyncDuration, m.programming, m.lastSync, m.lastQueued, m.syncs,
		m.serviceChanges, m.servicesPending, m.endpointChanges, m.endpointsPending,
		m.applyProgress, m.rules, m.rulesWritten, m.restoreFailures, m.partialRestoreFailures, m.noLocalEndpoints, m.refused, m.capability, m.canaryRepairs,
		m.repairsDelayed, m.repairWait, m.inspections, m.inspectionSeconds,
		m.healthz, m.livez, m.conntrackDuration, m.conntrackDeleted, m.failedOver,
	)
	return m
}

// SetFamilies makes the counters of the families exist, at zero: an alert on their rate
// would miss the first failure of a counter that appears with it.
func (m *Metrics) SetFamilies(families ...model.Family) {
	for _, fam := range families {
		m.restoreFailures.WithLabelValues(fam.String())
		m.partialRestoreFailures.WithLabelValues(fam.String())
		m.conntrackDeleted.WithLabelValues(fam.String())
		m.failedOver.WithLabelValues(fam.String())
		m.repairsDelayed.WithLabelValues(fam.String())
		m.repairWait.WithLabelValues(fam.String())
	}
}

// SyncQueued records that a sync of the family was asked for at that time. Far
// ahead of the last good sync for long, it says that something hangs.
func (m *Metrics) SyncQueued(fam model.Family, at time.Time) {
	m.lastQueued.WithLabelValues(fam.String()).Set(seconds(at))
}

// SyncDone records a sync that ended, well or not: whether it was a full one, what
// caused it and how long it took. Triggers are a small fixed set of words.
func (m *Metrics) SyncDone(fam model.Family, full bool, trigger string, took time.Duration) {
	m.syncDuration.WithLabelValues(fam.String()).Observe(took.Seconds())
	kind := m.partialSyncDuration
	if full {
		kind = m.fullSyncDuration
	}
	kind.WithLabelValues(fam.String()).Observe(took.Seconds())
	m.syncs.WithLabelValues(fam.String(), trigger).Inc()
}

// SyncSucceeded records that at that time everything known was in the kernel.
func (m *Metrics) SyncSucceeded(fam model.Family, at time.Time) {
	m.lastSync.WithLabelValues(fam.String()).Set(seconds(at))
}

// Programmed records how long it took from a change in the cluster (the annotation
// endpoints.kubernetes.io/last-change-trigger-time) to rules in the kernel. It
// includes the difference between two machines' clocks, and less than nothing counts
// as nothing: a sum that falls looks like a restart to whoever draws its rate.
func (m *Metrics) Programmed(fam model.Family, took time.Duration) {
	m.programming.WithLabelValues(fam.String()).Observe(max(took, 0).Seconds())
}

// ServiceChanged counts an event about a Service. It is called once for an event,
// not once for each family.
func (m *Metrics) ServiceChanged() { m.serviceChanges.Inc() }

// EndpointsChanged counts an event about an EndpointSlice, once for all families.
func (m *Metrics) EndpointsChanged() { m.endpointChanges.Inc() }

// Pending says how many changed Services and EndpointSlices the family has not
// taken up yet. kube-proxy's gauges know no family; they show the one that is
// further behind.
func (m *Metrics) Pending(fam model.Family, services, endpoints int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[fam] = pending{services, endpoints}
	var most pending
	for _, p := range m.pending {
		most = pending{max(most.services, p.services), max(most.endpoints, p.endpoints)}
	}
	m.servicesPending.Set(float64(most.services))
	m.endpointsPending.Set(float64(most.endpoints))
}

// ApplyProgress says for how many of so many Service ports the rules were handed to the
// kernel, all of them after a sync that succeeded.
func (m *Metrics) ApplyProgress(fam model.Family, written, of int) {
	m.applyProgress.WithLabelValues(fam.String()).Set(float64(written) / float64(max(of, 1)))
}

// Rules says how many rules of ours the family's table holds.
func (m *Metrics) Rules(fam model.Family, table string, n int) {
	m.rules.WithLabelValues(table, fam.String()).Set(float64(n))
}

// RulesWritten says how many rules the last sync wrote to the family's table.
func (m *Metrics) RulesWritten(fam model.Family, table string, n int) {
	m.rulesWritten.WithLabelValues(table, fam.String()).Set(float64(n))
}

// RestoreFailed counts a transaction that iptables-restore or the kernel refused.
func (m *Metrics) RestoreFailed(fam model.Family) {
	m.restoreFailures.WithLabelValues(fam.String()).Inc()
}

// PartialSyncFailed counts a partial sync that failed, so that the next one is full.
func (m *Metrics) PartialSyncFailed(fam model.Family) {
	m.partialRestoreFailures.WithLabelValues(fam.String()).Inc()
}

// NoLocalEndpoints says how many Service ports of traffic policy Local have
// endpoints, but none on this node.
func (m *Metrics) NoLocalEndpoints(fam model.Family, policy Policy, n int) {
	m.noLocalEndpoints.WithLabelValues(string(policy), fam.String()).Set(float64(n))
}

// Refused says how many Service ports are left out because the kernel does not take
// their rules.
func (m *Metrics) Refused(fam model.Family, n int) {
	m.refused.WithLabelValues(fam.String()).Set(float64(n))
}

// Capability says whether the family's kernel and iptables have a feature. Features are
// a small fixed set of words; one that was not asked for is absent.
func (m *Metrics) Capability(fam model.Family, feature string, there bool) {
	value := 0.0
	if there {
		value = 1
	}
	m.capability.WithLabelValues(fam.String(), feature).Set(value)
}

// CanaryRepaired counts a table of the family that somebody else had damaged and that
// was written again, or the damaged chains in it. Reasons are a small fixed set of words,
// each counted once for each repair.
func (m *Metrics) CanaryRepaired(fam model.Family, table, reason string) {
	m.canaryRepairs.WithLabelValues(fam.String(), table, reason).Inc()
}

// RepairDelayed counts a repair that was put off, because somebody undoes repairs again
// and again.
func (m *Metrics) RepairDelayed(fam model.Family) {
	m.repairsDelayed.WithLabelValues(fam.String()).Inc()
}

// Inspected records that what the kernel holds of the family was compared with what was
// written, and how long that took.
func (m *Metrics) Inspected(fam model.Family, took time.Duration) {
	m.inspections.WithLabelValues(fam.String()).Inc()
	m.inspectionSeconds.WithLabelValues(fam.String()).Add(took.Seconds())
}

// RepairWait says how long a repair would be put off now, 0 unless somebody undoes
// repairs again and again.
func (m *Metrics) RepairWait(fam model.Family, wait time.Duration) {
	m.repairWait.WithLabelValues(fam.String()).Set(wait.Seconds())
}

// Healthz counts an answer of /healthz by its HTTP status.
func (m *Metrics) Healthz(code int) { m.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// Livez counts an answer of /livez by its HTTP status.
func (m *Metrics) Livez(code int) { m.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// ConntrackReconciled records one removal of stale flows: how long it took and how
// many entries it deleted.
func (m *Metrics) ConntrackReconciled(fam model.Family, deleted int, took time.Duration) {
	m.conntrackDuration.WithLabelValues(fam.String()).Observe(took.Seconds())
	m.conntrackDeleted.WithLabelValues(fam.String()).Add(float64(deleted))
}

// ConnectionsFailedOver counts TCP connections that were freed from waiting for an
// endpoint that had left.
func (m *Metrics) ConnectionsFailedOver(fam model.Family, n int) {
	m.failedOver.WithLabelValues(fam.String()).Add(float64(n))
}

// seconds is a time as Prometheus has it: seconds since the epoch, with fractions.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
