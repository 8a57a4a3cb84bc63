package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Flags are the command line's flags: kube-proxy's, by the same names, and a few of
// our own.
type Flags struct {
	fs *pflag.FlagSet
	// fields are those flags that have a field in the configuration, but for the
	// logging flags: a configuration file takes their place.
	fields *pflag.FlagSet
	// raw is filled in by fields and by the logging flags.
	raw *v1alpha1.KubeProxyConfiguration

	config           string
	writeConfigTo    string
	cleanup          bool
	initOnly         bool
	version          versionFlag
	hostnameOverride string
	master           string
	apiServers       []string
	manifests        string
	healthzPort      int32
	metricsPort      int32
}

// NewFlags registers the flags on fs, and makes fs take "_" for "-" in their names.
// Flags.Config gives their meaning after fs has parsed a command line. Others may
// register flags of their own on fs.
func NewFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{
		fs:          fs,
		fields:      pflag.NewFlagSet("fields", pflag.ContinueOnError),
		raw:         Defaults(),
		healthzPort: healthzPort,
		metricsPort: metricsPort,
	}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	f.addProcess()
	f.addClient()
	f.addServers()
	f.addRules()
	f.addConntrack()
	f.addOtherModes()
	fs.AddFlagSet(f.fields)
	logsapi.AddFlags(&f.raw.Logging, fs)
	return f
}

// Version is what --version asks for: "" not to print it, "true" for one line,
// "raw" for everything, or "v1.2.3" to run under that version.
func (f *Flags) Version() string { return string(f.version) }

// addProcess adds what the process is to do and where its objects come from. These
// hold beside a configuration file.
func (f *Flags) addProcess() {
	fs := f.fs
	fs.StringVar(&f.config, "config", "", "Path of a KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). It replaces all flags that have a field in it, but for --hostname-override and the logging flags.")
	fs.StringVar(&f.writeConfigTo, "write-config-to", "", "Write the configuration, defaults filled in, to this file and exit.")
	fs.BoolVar(&f.cleanup, "cleanup", false, "Remove all rules and chains of ours, then exit.")
	fs.BoolVar(&f.initOnly, "init-only", false, "Do only what needs full root (kernel modules, sysctls, and the rule that guards 127.0.0.0/8), then exit. Afterwards NET_ADMIN is enough to run.")
	fs.Var(&f.version, "version", "Print the version and exit (--version, --version=raw), or report another one (--version=v1.2.3).")
	fs.Lookup("version").NoOptDefVal = "true"
	fs.StringVar(&f.hostnameOverride, "hostname-override", "", "Name of the Node this runs on. Default: the variable NODE_NAME, then the host's name.")
	fs.StringVar(&f.master, "master", "", "Address of the API server; overrides the kubeconfig's.")
	fs.StringSliceVar(&f.apiServers, "api-servers", nil, "Addresses of API servers of one cluster, in order of preference; overrides the kubeconfig's. The next one is used when one cannot be reached.")
	fs.StringVar(&f.manifests, "manifests", "", "Directory (or file) of Service, EndpointSlice and Node manifests to use instead of an API server.")
}

// addClient adds how the API server is spoken to, and the rest of the process's
// settings.
func (f *Flags) addClient() {
	fs, raw := f.fields, f.raw
	fs.StringVar(&raw.ClientConnection.Kubeconfig, "kubeconfig", "", "Path of a kubeconfig file. Without one the pod's service account is used.")
	fs.StringVar(&raw.ClientConnection.ContentType, "kube-api-content-type", raw.ClientConnection.ContentType, "Media type of requests to the API server.")
	fs.Float32Var(&raw.ClientConnection.QPS, "kube-api-qps", raw.ClientConnection.QPS, "Requests per second to the API server; negative for no limit.")
	fs.Int32Var(&raw.ClientConnection.Burst, "kube-api-burst", raw.ClientConnection.Burst, "Requests to the API server that may be sent at once.")
	fs.DurationVar(&raw.ConfigSyncPeriod.Duration, "config-sync-period", raw.ConfigSyncPeriod.Duration, "How often all objects known are looked at again.")
	fs.Int32Var(raw.OOMScoreAdj, "oom-score-adj", *raw.OOMScoreAdj, "The process's oom_score_adj, -1000 to 1000.")
	fs.Var(cliflag.NewMapStringBool(&raw.FeatureGates), "feature-gates", "Feature gates to set, as name=true or name=false with commas between them.")
}

// addServers adds the flags of the health and metrics servers.
func (f *Flags) addServers() {
	fs, raw := f.fields, f.raw
	fs.StringVar(&raw.BindAddress, "bind-address", raw.BindAddress, "Overrides the node's primary address. Nothing is bound to it.")
	fs.StringVar(&raw.HealthzBindAddress, "healthz-bind-address", raw.HealthzBindAddress, "IP address and port of the health server; empty for none.")
	fs.StringVar(&raw.MetricsBindAddress, "metrics-bind-address", raw.MetricsBindAddress, "IP address and port of the metrics server (0.0.0.0:10249 or [::]:10249 for all interfaces).")
	fs.BoolVar(&raw.BindAddressHardFail, "bind-address-hard-fail", false, "Exit when one of these cannot be bound, instead of trying again.")
	fs.BoolVar(&raw.EnableProfiling, "profiling", false, "Serve /debug/pprof and /debug/flags/v on the metrics server.")
	fs.StringVar(&raw.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "The previous minor version (1.36) whose hidden metrics are to be shown.")
	fs.Int32Var(&f.healthzPort, "healthz-port", f.healthzPort, "Port of the health server; 0 for none. Deprecated: use --healthz-bind-address.")
	fs.Int32Var(&f.metricsPort, "metrics-port", f.metricsPort, "Port of the metrics server. Deprecated: use --metrics-bind-address.")
}

// addRules adds what shapes the rules and when they are written.
func (f *Flags) addRules() {
	fs, raw := f.fields, f.raw
	fs.StringVar((*string)(&raw.Mode), "proxy-mode", "", "Only iptables, which is the default.")
	fs.Int32Var(raw.IPTables.MasqueradeBit, "iptables-masquerade-bit", *raw.IPTables.MasqueradeBit, "Bit of the packet mark, 0 to 31, that asks for masquerading.")
	fs.BoolVar(&raw.IPTables.MasqueradeAll, "masquerade-all", false, "Masquerade everything that is sent to a cluster IP.")
	fs.BoolVar(raw.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *raw.IPTables.LocalhostNodePorts, "Serve IPv4 node ports on 127.0.0.1 too (sets route_localnet).")
	fs.DurationVar(&raw.IPTables.SyncPeriod.Duration, "iptables-sync-period", raw.IPTables.SyncPeriod.Duration, "How often the rules are looked after: canaries and jump rules checked, failed work tried again.")
	fs.DurationVar(&raw.IPTables.MinSyncPeriod.Duration, "iptables-min-sync-period", raw.IPTables.MinSyncPeriod.Duration, "Least time between two writes of rules; 0 writes each change at once. If it is not set, the time follows from what a write costs.")
	fs.StringVar((*string)(&raw.DetectLocalMode), "detect-local-mode", "", "How traffic of pods is recognised: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix.")
	fs.StringVar(&raw.ClusterCIDR, "cluster-cidr", "", "Range of the cluster's pods, or one IPv4 and one IPv6 range with a comma between them, for --detect-local-mode=ClusterCIDR.")
	fs.StringVar(&raw.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "Name of the pods' bridge, for --detect-local-mode=BridgeInterface.")
	fs.StringVar(&raw.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "Beginning of the pods' interface names, for --detect-local-mode=InterfaceNamePrefix.")
	fs.StringSliceVar(&raw.NodePortAddresses, "nodeport-addresses", nil, "Node addresses that node ports are served on: CIDRs and the words primary, localhost, all. Default: all.")
}

// addConntrack adds the settings of the kernel's connection tracking.
func (f *Flags) addConntrack() {
	fs, ct := f.fields, &f.raw.Conntrack
	fs.Int32Var(ct.MaxPerCore, "conntrack-max-per-core", *ct.MaxPerCore, "Entries of the connection tracking table per CPU; 0 leaves the limit alone.")
	fs.Int32Var(ct.Min, "conntrack-min", *ct.Min, "Least number of entries, whatever --conntrack-max-per-core gives.")
	fs.DurationVar(&ct.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", ct.TCPEstablishedTimeout.Duration, "Timeout of idle established TCP connections; 0 leaves it alone.")
	fs.DurationVar(&ct.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", ct.TCPCloseWaitTimeout.Duration, "Timeout of TCP connections in CLOSE_WAIT; 0 leaves it alone.")
	fs.BoolVar(&ct.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Take TCP packets outside the window as valid.")
	fs.DurationVar(&ct.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Timeout of UDP flows without an answer; 0 leaves it alone.")
	fs.DurationVar(&ct.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Timeout of UDP flows in both directions; 0 leaves it alone.")
}

// addOtherModes adds the flags of IPVS mode. They are taken so that an old command
// line still starts, and have no effect.
func (f *Flags) addOtherModes() {
	fs, ipvs := f.fields, &f.raw.IPVS
	const usage = "Without effect: for IPVS mode."
	// Their defaults are kube-proxy's, kept out of the configuration that is written.
	syncPeriod, minSyncPeriod := f.raw.IPTables.SyncPeriod.Duration, f.raw.IPTables.MinSyncPeriod.Duration
	fs.DurationVar(&syncPeriod, "ipvs-sync-period", syncPeriod, usage)
	fs.DurationVar(&minSyncPeriod, "ipvs-min-sync-period", minSyncPeriod, usage)
	fs.StringVar(&ipvs.Scheduler, "ipvs-scheduler", "", usage)
	fs.StringSliceVar(&ipvs.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, usage)
	fs.BoolVar(&ipvs.StrictARP, "ipvs-strict-arp", false, usage)
	fs.DurationVar(&ipvs.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, usage)
	fs.DurationVar(&ipvs.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, usage)
	fs.DurationVar(&ipvs.UDPTimeout.Duration, "ipvs-udp-timeout", 0, usage)
}

// set returns the names of the flags on the command line for which is holds, in
// alphabetical order, each with its dashes.
func (f *Flags) set(is func(name string) bool) []string {
	var names []string
	f.fs.Visit(func(flag *pflag.Flag) {
		if is(flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	slices.SortFunc(names, cmp.Compare)
	return names
}

// versionFlag is the value of --version.
type versionFlag string

func (v *versionFlag) String() string   { return cmp.Or(string(*v), "false") }
func (v *versionFlag) Type() string     { return "version" }
func (v *versionFlag) IsBoolFlag() bool { return true }

// Set takes a boolean, "raw" or a version that begins with v.
func (v *versionFlag) Set(text string) error {
	if text == "raw" || strings.HasPrefix(text, "v") {
		*v = versionFlag(text)
		return nil
	}
	asked, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("must be true, false, raw or a version like v1.2.3")
	}
	*v = ""
	if asked {
		*v = "true"
	}
	return nil
}
