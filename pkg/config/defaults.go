package config

import (
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The ports that kube-proxy is asked on everywhere.
const (
	healthzPort = 10256
	metricsPort = 10249
)

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// Defaults returns the configuration that results from saying nothing: the values
// of kube-proxy v1.37.
func Defaults() *v1alpha1.KubeProxyConfiguration {
	c := &v1alpha1.KubeProxyConfiguration{}
	setDefaults(c)
	return c
}

// setDefaults fills in what c leaves empty. A zero duration counts as empty, as in
// kube-proxy, because installers write "minSyncPeriod: 0s" without meaning it; only
// a flag can ask for zero. The same holds for the two server addresses.
func setDefaults(c *v1alpha1.KubeProxyConfiguration) {
	c.APIVersion, c.Kind = apiVersion, kind
	setDefault(&c.BindAddress, "0.0.0.0")
	any, loopback := "0.0.0.0", "127.0.0.1"
	if addr, err := netip.ParseAddr(c.BindAddress); err == nil && addr.Unmap().Is6() {
		any, loopback = "[::]", "[::1]"
	}
	setDefault(&c.HealthzBindAddress, any)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthzPort)
	setDefault(&c.MetricsBindAddress, loopback)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metricsPort)

	setDefault(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	setDefault(&c.ClientConnection.QPS, 5)
	setDefault(&c.ClientConnection.Burst, 10)
	setDefault(&c.ConfigSyncPeriod.Duration, 15*time.Minute)

	setDefault(&c.IPTables.MasqueradeBit, new(int32(14)))
	setDefault(&c.IPTables.LocalhostNodePorts, new(true))
	setDefault(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	setDefault(&c.IPTables.MinSyncPeriod.Duration, time.Second)
	setDefault(&c.NFTables.MasqueradeBit, new(int32(14)))

	setDefault(&c.OOMScoreAdj, new(int32(-999)))
	setDefault(&c.Conntrack.MaxPerCore, new(int32(32<<10)))
	setDefault(&c.Conntrack.Min, new(int32(128<<10)))
	setDefault(&c.Conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	setDefault(&c.Conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})

	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// setDefault sets *v if it is the zero value.
func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// withPort appends port to an address that has none.
func withPort(address string, port int) string {
	bare := address
	if n := len(bare); n > 1 && bare[0] == '[' && bare[n-1] == ']' {
		bare = bare[1 : n-1]
	}
	addr, err := netip.ParseAddr(bare)
	if err != nil {
		return address
	}
	if addr.Is6() {
		bare = "[" + bare + "]"
	}
	return bare + ":" + strconv.Itoa(port)
}
