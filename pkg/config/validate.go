package config

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// parser turns the text of a configuration into values and collects what is wrong
// with it, so that a user hears of all mistakes at once.
type parser struct {
	errs field.ErrorList
}

func (p *parser) invalid(path string, value any, format string, args ...any) {
	p.errs = append(p.errs, field.Invalid(field.NewPath(path), value, fmt.Sprintf(format, args...)))
}

// parse fills in everything of c that comes from c.Raw.
func (p *parser) parse(c *Config) {
	raw := &c.Raw
	p.mode(raw.Mode)
	c.BindAddress = p.addr("bindAddress", raw.BindAddress)
	if raw.HealthzBindAddress != "" {
		c.Healthz = p.addrPort("healthzBindAddress", raw.HealthzBindAddress)
	}
	c.Metrics = p.addrPort("metricsBindAddress", raw.MetricsBindAddress)
	c.BindAddressHardFail = raw.BindAddressHardFail
	c.Profiling = raw.EnableProfiling
	for _, err := range metrics.ValidateShowHiddenMetricsVersion(raw.ShowHiddenMetricsForVersion) {
		p.invalid("showHiddenMetricsForVersion", raw.ShowHiddenMetricsForVersion, "%v", err)
	}
	p.iptables(c, raw.IPTables)
	c.NodePortAddresses = p.nodePortAddresses(raw.NodePortAddresses)
	c.LocalDetector = p.localDetector(raw)
	c.Conntrack = p.conntrack(raw.Conntrack)
	c.OOMScoreAdj = p.within("oomScoreAdj", *raw.OOMScoreAdj, -1000, 1000)
	p.api(c, raw)
	p.gatesAndLogging(c, raw)
}

// mode accepts iptables only: rules of another mode would be silently missing.
func (p *parser) mode(mode v1alpha1.ProxyMode) {
	if mode != "" && mode != "iptables" {
		p.invalid("mode", string(mode), "miniproxy writes iptables rules only; set it to iptables or leave it empty")
	}
}

func (p *parser) iptables(c *Config, raw v1alpha1.KubeProxyIPTablesConfiguration) {
	c.MasqueradeMark = 1 << p.within("iptables.masqueradeBit", *raw.MasqueradeBit, 0, 31)
	c.MasqueradeAll = raw.MasqueradeAll
	c.LocalhostNodePorts = *raw.LocalhostNodePorts
	c.SyncPeriod = p.positive("iptables.syncPeriod", raw.SyncPeriod.Duration)
	c.MinSyncPeriod = p.notNegative("iptables.minSyncPeriod", raw.MinSyncPeriod.Duration)
	if c.MinSyncPeriodSet && c.MinSyncPeriod > c.SyncPeriod && c.SyncPeriod > 0 {
		p.invalid("iptables.minSyncPeriod", c.MinSyncPeriod.String(), "must not be longer than iptables.syncPeriod (%v)", c.SyncPeriod)
	}
}

func (p *parser) nodePortAddresses(raw []string) NodePortAddresses {
	a := NodePortAddresses{All: len(raw) == 0}
	keywords := map[string]*bool{"all": &a.All, "primary": &a.Primary, "localhost": &a.Localhost}
	for i, text := range raw {
		path := fmt.Sprintf("nodePortAddresses[%d]", i)
		if set, ok := keywords[text]; !ok {
			if prefix, err := netip.ParsePrefix(text); err != nil {
				p.invalid(path, text, "must be a CIDR (10.0.0.0/8) or one of the words primary, localhost, all")
			} else {
				a.CIDRs = append(a.CIDRs, prefix.Masked())
			}
		} else if *set {
			p.errs = append(p.errs, field.Duplicate(field.NewPath(path), text))
		} else {
			*set = true
		}
	}
	return a
}

// maxInterface is the longest name of an interface, in bytes: IFNAMSIZ in linux/if.h
// without the zero at the end. iptables refuses longer ones, and so every Service's
// rules; a prefix is written with a + behind it.
const maxInterface = 15

// notInInterface reports whether an interface's name cannot have a character, or a
// rule cannot.
func notInInterface(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`/:"`, r)
}

func (p *parser) localDetector(raw *v1alpha1.KubeProxyConfiguration) LocalDetector {
	d := LocalDetector{Mode: LocalMode(raw.DetectLocalMode)}
	needsName := func(path, name string, longest int) string {
		switch {
		case name == "":
			p.errs = append(p.errs, field.Required(field.NewPath(path), "detectLocalMode "+string(d.Mode)+" needs it"))
		case len(name) > longest || strings.ContainsFunc(name, notInInterface):
			p.invalid(path, name, "must be at most %d bytes, without blanks, quotes, / and :", longest)
		}
		return name
	}
	switch d.Mode {
	case "", LocalModeClusterCIDR:
		d.Mode = LocalModeClusterCIDR
		d.ClusterCIDRs = p.clusterCIDRs(raw.ClusterCIDR)
	case LocalModeNodeCIDR:
	case LocalModeBridgeInterface:
		d.Interface = needsName("detectLocal.bridgeInterface", raw.DetectLocal.BridgeInterface, maxInterface)
	case LocalModeInterfaceNamePrefix:
		d.Interface = needsName("detectLocal.interfaceNamePrefix", raw.DetectLocal.InterfaceNamePrefix, maxInterface-len("+"))
	default:
		p.errs = append(p.errs, field.NotSupported(field.NewPath("detectLocalMode"), d.Mode, []LocalMode{
			LocalModeClusterCIDR, LocalModeNodeCIDR, LocalModeBridgeInterface, LocalModeInterfaceNamePrefix,
		}))
	}
	return d
}

// clusterCIDRs parses one range, or one of each family with a comma between them.
func (p *parser) clusterCIDRs(raw string) []netip.Prefix {
	if strings.TrimSpace(raw) == "" {
		return nil
	}
	var cidrs []netip.Prefix
	for text := range strings.SplitSeq(raw, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			p.invalid("clusterCIDR", text, "must be a CIDR (10.244.0.0/16), or an IPv4 and an IPv6 one with a comma between them")
			return nil
		}
		cidrs = append(cidrs, prefix.Masked())
	}
	if len(cidrs) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4() {
		p.invalid("clusterCIDR", raw, "at most one CIDR of each family is possible")
	}
	return cidrs
}

func (p *parser) conntrack(raw v1alpha1.KubeProxyConntrackConfiguration) Conntrack {
	return Conntrack{
		MaxPerCore:            p.within("conntrack.maxPerCore", *raw.MaxPerCore, 0, math.MaxInt32),
		Min:                   p.within("conntrack.min", *raw.Min, 0, math.MaxInt32),
		TCPEstablishedTimeout: p.notNegative("conntrack.tcpEstablishedTimeout", raw.TCPEstablishedTimeout.Duration),
		TCPCloseWaitTimeout:   p.notNegative("conntrack.tcpCloseWaitTimeout", raw.TCPCloseWaitTimeout.Duration),
		UDPTimeout:            p.notNegative("conntrack.udpTimeout", raw.UDPTimeout.Duration),
		UDPStreamTimeout:      p.notNegative("conntrack.udpStreamTimeout", raw.UDPStreamTimeout.Duration),
		TCPBeLiberal:          raw.TCPBeLiberal,
	}
}

func (p *parser) api(c *Config, raw *v1alpha1.KubeProxyConfiguration) {
	c.API.Kubeconfig = raw.ClientConnection.Kubeconfig
	c.API.ContentType = raw.ClientConnection.ContentType
	c.API.AcceptContentTypes = raw.ClientConnection.AcceptContentTypes
	c.API.QPS = raw.ClientConnection.QPS
	c.API.Burst = p.within("clientConnection.burst", raw.ClientConnection.Burst, 0, math.MaxInt32)
	c.API.Resync = p.positive("configSyncPeriod", raw.ConfigSyncPeriod.Duration)
}

func (p *parser) gatesAndLogging(c *Config, raw *v1alpha1.KubeProxyConfiguration) {
	gates, err := featureGates(raw.FeatureGates)
	if err != nil {
		p.invalid("featureGates", raw.FeatureGates, "%v", err)
		return
	}
	c.FeatureGates = gates
	p.errs = append(p.errs, logsapi.Validate(&raw.Logging, gates, field.NewPath("logging"))...)
}

func (p *parser) addr(path, text string) netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		p.invalid(path, text, "must be an IP address")
	}
	return addr.Unmap()
}

func (p *parser) addrPort(path, text string) netip.AddrPort {
	addr, err := netip.ParseAddrPort(text)
	if err != nil || addr.Port() == 0 {
		p.invalid(path, text, "must be an IP address and a port from 1 to 65535 (127.0.0.1:10249, [::1]:10249)")
	}
	return addr
}

// within returns a value of the range, so that a wrong one can be reckoned with
// until all errors are collected.
func (p *parser) within(path string, value, least, most int32) int {
	if value < least || value > most {
		p.invalid(path, value, "must be from %d to %d", least, most)
	}
	return int(max(least, min(value, most)))
}

func (p *parser) positive(path string, d time.Duration) time.Duration {
	if d <= 0 {
		p.invalid(path, d.String(), "must be longer than 0s")
	}
	return d
}

func (p *parser) notNegative(path string, d time.Duration) time.Duration {
	if d < 0 {
		p.invalid(path, d.String(), "must not be negative")
	}
	return d
}
