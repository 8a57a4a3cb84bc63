package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"sigs.k8s.io/yaml"
)

// environment is what a configuration takes from outside of flags and file.
type environment struct {
	getenv   func(string) string
	hostname func() (string, error)
}

// Config makes the configuration of the parsed flags and, if one is named, the
// configuration file. It reports everything that is wrong at once; each line of
// the error names a field or flag.
//
// The file replaces all flags that have a field in it, but for --hostname-override
// and the logging flags, as in kube-proxy: what is debugged on one node is its name
// and its verbosity.
func (f *Flags) Config() (*Config, error) {
	return f.configFrom(environment{getenv: os.Getenv, hostname: os.Hostname})
}

func (f *Flags) configFrom(env environment) (*Config, error) {
	if args := f.fs.Args(); len(args) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: flags begin with --, and a flag's value follows after =", args[0])
	}
	c := &Config{
		File: f.config, WriteConfigTo: f.writeConfigTo, Cleanup: f.cleanup, InitOnly: f.initOnly, Manifests: f.manifests,
	}
	if err := f.fill(c); err != nil {
		return nil, err
	}
	if f.hostnameOverride != "" {
		c.Raw.HostnameOverride = f.hostnameOverride
	}
	var p parser
	p.parse(c)
	c.API.Servers = p.servers(f.master, f.apiServers)
	err := joined(c.File, p.errs)
	name, nameErr := nodeName(c.Raw.HostnameOverride, env)
	if err := errors.Join(err, nameErr, f.conflicts()); err != nil {
		return nil, err
	}
	c.NodeName = name
	c.Warnings = append(c.Warnings, warnings(c)...)
	return c, nil
}

// fill sets c.Raw, and what only its source can tell.
func (f *Flags) fill(c *Config) error {
	if f.config == "" {
		f.deprecatedPorts()
		c.Raw = *f.raw.DeepCopy()
		c.MinSyncPeriodSet = f.fs.Changed("iptables-min-sync-period")
		c.ModeDefaulted = c.Raw.Mode == ""
		c.warnOf(f.set(isForIPVS), "no effect here, for IPVS mode only")
		c.warnOf(f.set(isDeprecated), "deprecated, use --healthz-bind-address and --metrics-bind-address")
		return nil
	}
	file, err := readFile(f.config)
	if err != nil {
		return err
	}
	c.Raw = *file.KubeProxyConfiguration
	c.MinSyncPeriodSet = file.minSyncPeriodSet
	c.ModeDefaulted = file.modeDefaulted
	c.Warnings = file.warnings
	copySetLogging(f, &c.Raw.Logging)
	c.warnOf(f.set(func(name string) bool { return f.fields.Lookup(name) != nil }), "ignored because of --config: set the fields in "+f.config)
	return nil
}

// warnOf adds one warning about the flags, if there are any.
func (c *Config) warnOf(flags []string, what string) {
	if len(flags) > 0 {
		c.Warnings = append(c.Warnings, strings.Join(flags, ", ")+": "+what)
	}
}

// deprecatedPorts lets --healthz-port and --metrics-port complete an address that
// has no port, or disable its server with 0.
func (f *Flags) deprecatedPorts() {
	complete := func(address *string, port int32) {
		if port == 0 {
			*address = ""
		} else if *address != "" {
			*address = withPort(*address, int(port))
		}
	}
	complete(&f.raw.HealthzBindAddress, f.healthzPort)
	complete(&f.raw.MetricsBindAddress, f.metricsPort)
}

func isDeprecated(name string) bool { return name == "healthz-port" || name == "metrics-port" }
func isForIPVS(name string) bool    { return strings.HasPrefix(name, "ipvs-") }

// copySetLogging copies those logging settings that were given as flags. The
// patterns of --vmodule come before those of the file, so that they win.
func copySetLogging(f *Flags, to *logsapi.LoggingConfiguration) {
	f.fs.Visit(func(flag *pflag.Flag) {
		if copyTo := loggingFlag(flag.Name); copyTo != nil {
			copyTo(to, &f.raw.Logging)
		}
	})
}

// loggingFlag returns what copies the setting of a logging flag; nil for another flag.
func loggingFlag(name string) func(to, from *logsapi.LoggingConfiguration) {
	type logging = logsapi.LoggingConfiguration
	switch name {
	case "logging-format":
		return func(to, from *logging) { to.Format = from.Format }
	case "log-flush-frequency":
		return func(to, from *logging) { to.FlushFrequency = from.FlushFrequency }
	case "v":
		return func(to, from *logging) { to.Verbosity = from.Verbosity }
	case "vmodule":
		return func(to, from *logging) {
			to.VModule = append(from.VModule[:len(from.VModule):len(from.VModule)], to.VModule...)
		}
	case "log-text-split-stream":
		return func(to, from *logging) { to.Options.Text.SplitStream = from.Options.Text.SplitStream }
	case "log-text-info-buffer-size":
		return func(to, from *logging) { to.Options.Text.InfoBufferSize = from.Options.Text.InfoBufferSize }
	case "log-json-split-stream":
		return func(to, from *logging) { to.Options.JSON.SplitStream = from.Options.JSON.SplitStream }
	case "log-json-info-buffer-size":
		return func(to, from *logging) { to.Options.JSON.InfoBufferSize = from.Options.JSON.InfoBufferSize }
	}
	return nil
}

// conflicts reports flags that exclude each other.
func (f *Flags) conflicts() error {
	var errs []error
	if f.master != "" && len(f.apiServers) > 0 {
		errs = append(errs, errors.New("--master and --api-servers exclude each other: put all addresses into --api-servers"))
	}
	if f.manifests != "" && (f.master != "" || len(f.apiServers) > 0) {
		errs = append(errs, errors.New("--manifests takes the place of an API server: leave out --master and --api-servers"))
	}
	return errors.Join(errs...)
}

// nodeName decides what the node is called: the override (flag before file), then
// NODE_NAME, which every manifest for such agents sets from spec.nodeName, then the
// host's name. Node objects have lower-case names; a name in another case would
// make every endpoint remote and drop the traffic of policy Local.
func nodeName(override string, env environment) (string, error) {
	source, name := "hostnameOverride", override
	if name == "" {
		source, name = "the variable NODE_NAME", env.getenv("NODE_NAME")
	}
	if name == "" {
		var err error
		source = "the host's name"
		if name, err = env.hostname(); err != nil {
			return "", fmt.Errorf("ask for the host's name: %w; set --hostname-override", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", fmt.Errorf("%s is blank: set --hostname-override to the name of this node's Node object", source)
	}
	return name, nil
}

// servers parses the addresses of API servers given as flags.
func (p *parser) servers(master string, list []string) []*url.URL {
	path := func(int) *field.Path { return field.NewPath("--master") }
	if master == "" {
		path = func(i int) *field.Path { return field.NewPath("--api-servers").Index(i) }
	} else {
		list = []string{master}
	}
	var servers []*url.URL
	for i, text := range list {
		server, err := parseServer(text)
		if err != nil {
			p.errs = append(p.errs, field.Invalid(path(i), text, err.Error()))
			continue
		}
		servers = append(servers, server)
	}
	return servers
}

// parseServer parses the address of an API server: a URL, or a host with or
// without a port, for which HTTPS and 6443 are assumed.
func parseServer(text string) (*url.URL, error) {
	text = strings.TrimSpace(text)
	if !strings.Contains(text, "://") {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() {
			text = "[" + text + "]"
		}
		text = "https://" + text
		if u, err := url.Parse(text); err == nil && u.Port() == "" {
			text += ":6443"
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("must be an address like https://10.0.0.1:6443 or control-plane:6443")
	}
	return u, nil
}

// warnings are what is allowed but probably not meant.
func warnings(c *Config) []string {
	raw, list := &c.Raw, []string(nil)
	warn := func(wrong bool, text string) {
		if wrong {
			list = append(list, text)
		}
	}
	warn(c.LocalDetector.Mode == LocalModeClusterCIDR && len(c.LocalDetector.ClusterCIDRs) == 0,
		"clusterCIDR is not set: traffic from outside the cluster to cluster IPs is not masqueraded")
	warn(len(raw.NodePortAddresses) == 0,
		"nodePortAddresses is not set: node ports are served on all addresses of the node; set it to [primary] if that is too many")
	warn(raw.PortRange != "", "portRange has no effect")
	defaults := Defaults()
	warn(!reflect.DeepEqual(raw.IPVS, defaults.IPVS) || !reflect.DeepEqual(raw.NFTables, defaults.NFTables),
		"ipvs and nftables have no effect: they are for other proxy modes")
	warn(raw.WindowsRunAsService || raw.Winkernel != defaults.Winkernel,
		"windowsRunAsService and winkernel have no effect: they are for Windows")
	return list
}

// YAML returns the configuration as --write-config-to writes it.
func (c *Config) YAML() ([]byte, error) {
	text, err := yaml.Marshal(&c.Raw)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	return text, nil
}
