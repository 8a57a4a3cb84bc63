package metrics

import (
	"net/http"

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_* and workqueue_*
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
)

// ProcessRegistry is the one registry on which client-go, the Go runtime and the
// process already record (rest_client_*, go_*, process_*, registered_metrics_total,
// kubernetes_build_info). Tests use a registry of their own.
type ProcessRegistry struct{}

// MustRegister registers metrics; it panics when a name is taken.
func (ProcessRegistry) MustRegister(cs ...k8smetrics.Registerable) {
	legacyregistry.MustRegister(cs...)
}

// CustomMustRegister registers collectors; it panics when a name is taken.
func (ProcessRegistry) CustomMustRegister(cs ...k8smetrics.StableCollector) {
	legacyregistry.CustomMustRegister(cs...)
}

// Handler serves everything on the registry in Prometheus' text format.
func (ProcessRegistry) Handler() http.Handler { return legacyregistry.Handler() }
