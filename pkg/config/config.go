// Package config holds what the agent is told: its own configuration, and the
// Services, EndpointSlices and Node it works from.
//
// The configuration is a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1)
// from a file or from kube-proxy's flags, with defaults, made into one validated
// Config. The objects come from a Source: the API server (Cluster) or a directory
// of manifests (Manifests). Both deliver the same Events, so nothing behind them
// knows which one is in use.
package config

import (
	"net/netip"
	"net/url"
	"time"

	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Config is the agent's configuration, parsed and checked. It is made once, by
// Flags.Config, and never changed afterwards.
type Config struct {
	// NodeName is the name of the Node that the agent runs on, trimmed and
	// lower-cased.
	NodeName string
	// BindAddress overrides the node's primary address of its family; nothing is
	// bound to it. It is 0.0.0.0 or :: when it overrides nothing.
	BindAddress netip.Addr
	// Healthz is where /healthz and /livez are served. The zero value disables them.
	Healthz netip.AddrPort
	// Metrics is where /metrics and its companions are served.
	Metrics netip.AddrPort
	// BindAddressHardFail makes a server address that cannot be bound fatal.
	BindAddressHardFail bool
	// Profiling serves pprof, and lets the log level be changed, on Metrics.
	Profiling bool

	// MasqueradeMark is the packet mark that means "masquerade me": one bit.
	MasqueradeMark uint32
	// MasqueradeAll masquerades everything that is sent to a cluster IP.
	MasqueradeAll bool
	// LocalhostNodePorts serves IPv4 node ports on 127.0.0.1 as well.
	LocalhostNodePorts bool
	// NodePortAddresses are the node's addresses that node ports are served on.
	NodePortAddresses NodePortAddresses
	// LocalDetector tells traffic of pods in the cluster, or on the node, from other
	// traffic.
	LocalDetector LocalDetector

	// SyncPeriod is how often the rules are looked after: canaries and jump rules
	// checked, failed work tried again.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two syncs; 0 syncs every change at
	// once. It counts only if MinSyncPeriodSet.
	MinSyncPeriod time.Duration
	// MinSyncPeriodSet says that somebody chose MinSyncPeriod. Otherwise the agent
	// paces itself by what a sync costs.
	MinSyncPeriodSet bool

	// Conntrack is what is asked of the kernel's connection tracking.
	Conntrack Conntrack
	// OOMScoreAdj is the process's oom_score_adj, -1000 to 1000.
	OOMScoreAdj int

	// API is how the API server is reached. It is not used with Manifests.
	API API
	// Manifests is a directory or file of manifests that takes the place of the API
	// server; empty without one.
	Manifests string

	// File is the path of the configuration file; empty when the flags were used.
	File string
	// WriteConfigTo is where the configuration is to be written instead of running.
	WriteConfigTo string
	// Cleanup asks to remove the rules and exit.
	Cleanup bool
	// InitOnly asks for the part that needs full root (sysctls), and to exit.
	InitOnly bool

	// FeatureGates answers which feature gates are on.
	FeatureGates featuregate.FeatureGate
	// ModeDefaulted says that nobody chose a proxy mode.
	ModeDefaulted bool
	// Warnings are what a user should hear about this configuration, one line each.
	// They are collected here because logging is set up from the same configuration.
	Warnings []string
	// Raw is the configuration with defaults filled in, for /configz.
	Raw v1alpha1.KubeProxyConfiguration
}

// NodePortAddresses says on which of the node's addresses node ports are served:
// those that match any part. The answer is per family, as in kube-proxy: a family
// for which no part is given serves on all its addresses.
type NodePortAddresses struct {
	// All is every address. It is set when nothing was configured.
	All bool
	// Primary is the node's primary address of each family.
	Primary bool
	// Localhost is 127.0.0.0/8 and ::1/128.
	Localhost bool
	// CIDRs are ranges of either family, masked.
	CIDRs []netip.Prefix
}

// LocalMode is a way to recognise the traffic of pods.
type LocalMode string

// The ways to recognise the traffic of pods.
const (
	// LocalModeClusterCIDR recognises it by a source in LocalDetector.ClusterCIDRs.
	LocalModeClusterCIDR LocalMode = "ClusterCIDR"
	// LocalModeNodeCIDR recognises it by a source in the Node's podCIDRs.
	LocalModeNodeCIDR LocalMode = "NodeCIDR"
	// LocalModeBridgeInterface recognises it by the bridge it comes from.
	LocalModeBridgeInterface LocalMode = "BridgeInterface"
	// LocalModeInterfaceNamePrefix recognises it by how the interface's name begins.
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// LocalDetector describes how the traffic of pods is recognised.
type LocalDetector struct {
	Mode LocalMode
	// ClusterCIDRs are the pods' ranges, masked, at most one of each family. Mode
	// ClusterCIDR recognises nothing in a family without one.
	ClusterCIDRs []netip.Prefix
	// Interface is the bridge's name, or the prefix of the interfaces' names.
	Interface string
}

// Conntrack is what is asked of the kernel's connection tracking. A zero value
// leaves the kernel's setting alone.
type Conntrack struct {
	// MaxPerCore is the number of entries per CPU, and Min the least number for the
	// node. MaxPerCore 0 leaves the limit alone whatever Min is.
	MaxPerCore, Min int
	// The timeouts of the kernel's sysctls of these names.
	TCPEstablishedTimeout, TCPCloseWaitTimeout, UDPTimeout, UDPStreamTimeout time.Duration
	// TCPBeLiberal accepts TCP packets outside the window; no packet is INVALID then.
	TCPBeLiberal bool
}

// API is how the API server is reached.
type API struct {
	// Servers are the addresses given by --master or --api-servers, in order of
	// preference.
	Servers []*url.URL
	// Kubeconfig is the path of a kubeconfig file.
	Kubeconfig string
	// ContentType and AcceptContentTypes are the media types spoken.
	ContentType, AcceptContentTypes string
	// QPS and Burst limit the agent's requests. A negative QPS does not limit.
	QPS   float32
	Burst int
	// Resync is how often everything known is delivered again.
	Resync time.Duration
}

// SetUpLogging makes the process log as configured. It can be done once.
func (c *Config) SetUpLogging() error {
	logging := c.Raw.Logging
	return logsapi.ValidateAndApply(&logging, c.FeatureGates)
}
