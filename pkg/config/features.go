package config

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

// Feature gates of kube-proxy that the agent knows, besides those for logging,
// metrics and the /flagz and /statusz pages.
const (
	// AllowServiceExternalIPs serves spec.externalIPs (KEP-5707). On by default.
	AllowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs"
	// PreferSameTrafficDistribution serves the hints of trafficDistribution
	// PreferSameZone and PreferSameNode (KEP-3015). Always on.
	PreferSameTrafficDistribution featuregate.Feature = "PreferSameTrafficDistribution"

	// These two are for other proxy modes: accepted, without effect.
	kubeProxyIPVS                       featuregate.Feature = "KubeProxyIPVS"
	kubeProxyNFTablesLocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
)

// kubernetesVersion is the kube-proxy whose feature gates and defaults are taken.
const kubernetesVersion = "1.37"

// featureGates returns the gates with the given ones set; an unknown gate is an
// error.
func featureGates(set map[string]bool) (featuregate.FeatureGate, error) {
	gates := featuregate.NewVersionedFeatureGate(version.MustParse(kubernetesVersion))
	err := gates.AddVersioned(map[featuregate.Feature]featuregate.VersionedSpecs{
		AllowServiceExternalIPs: {
			{Version: version.MustParse("1.0"), Default: true, PreRelease: featuregate.GA},
		},
		PreferSameTrafficDistribution: {
			{Version: version.MustParse("1.35"), Default: true, PreRelease: featuregate.GA, LockToDefault: true},
		},
		kubeProxyIPVS: {
			{Version: version.MustParse("1.0"), Default: true, PreRelease: featuregate.GA},
			{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Deprecated},
		},
		kubeProxyNFTablesLocalhostNodePorts: {
			{Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Alpha},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("register feature gates: %w", err)
	}
	for _, add := range []func(featuregate.MutableVersionedFeatureGate) error{
		logsapi.AddFeatureGates, zpagesfeatures.AddFeatureGates, metricsfeatures.AddFeatureGates,
	} {
		if err := add(gates); err != nil {
			return nil, fmt.Errorf("register feature gates: %w", err)
		}
	}
	// Its log lines come before logging is set up.
	if err := gates.SetFromMapWithLogger(logr.Discard(), set); err != nil {
		return nil, err
	}
	return gates, nil
}
