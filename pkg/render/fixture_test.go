package render

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The address plan:
//
//	10.0.0.1, fd00::1                 n1, the node under test
//	10.244.1.0/24, fd00:244:1::/64    pods on n1: A is .10
//	10.244.2.0/24, fd00:244:2::/64    pods on n2: B is .10
//	10.96.0.0/16, fd00:96::/112       cluster IPs
//	10.50.0.10, fd00:50::10           load balancer IP (VIP)
//	10.60.0.10, fd00:60::10           external IP (EIP)
//	10.9.0.0/16, fd00:9::/32          clients outside that source ranges let in
var (
	vip = addr("10.50.0.10")
	eip = addr("10.60.0.10")
)

func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// options are those of n1: pods known by their range, node ports everywhere.
func options(changes ...func(*Options)) Options {
	o := Options{
		Family:         model.IPv4,
		Node:           model.NodeFacts{Name: "n1", Known: true, Zone: "zone-a", Addresses: []netip.Addr{addr("10.0.0.1")}},
		MasqueradeMark: 0x4000,
		RandomFully:    true,
		Local:          LocalTraffic{Range: prefix("10.244.0.0/16")},
		NodePorts:      NodePortAddresses{All: true, Loopback: true},
		DropInvalid:    true,
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func ipv6(o *Options) {
	o.Family = model.IPv6
	o.Node.Addresses = []netip.Addr{addr("fd00::1")}
	o.Local.Range = prefix("fd00:244::/32")
	o.NodePorts.Loopback = false
}

func noDetector(o *Options) { o.Local = LocalTraffic{} }

// service returns port http, TCP 80, of ns1/NAME at 10.96.0.80.
func service(name string, changes ...func(*model.ServicePort)) model.ServicePort {
	p := model.ServicePort{
		Name: model.ServicePortName{
			ServiceName: model.ServiceName{Namespace: "ns1", Name: name},
			Port:        "http",
			Protocol:    model.TCP,
		},
		ClusterIP: addr("10.96.0.80"),
		Port:      80,
		Created:   time.Unix(1_800_000_000, 0),
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func at(clusterIP string) func(*model.ServicePort) {
	return func(p *model.ServicePort) { p.ClusterIP = addr(clusterIP) }
}

func nodePort(p *model.ServicePort)      { p.NodePort = 30080 }
func externalIP(p *model.ServicePort)    { p.ExternalIPs = []netip.Addr{eip} }
func externalLocal(p *model.ServicePort) { p.ExternalLocal = true }
func internalLocal(p *model.ServicePort) { p.InternalLocal = true }
func affinity(p *model.ServicePort)      { p.AffinityTimeout = 10800 * time.Second }

func loadBalancer(p *model.ServicePort) {
	p.NodePort = 30080
	p.LoadBalancerVIPs = []netip.Addr{vip}
}

func ranges(texts ...string) func(*model.ServicePort) {
	return func(p *model.ServicePort) {
		for _, text := range texts {
			p.SourceRanges = append(p.SourceRanges, prefix(text))
		}
	}
}

// A runs on n1, B on n2; unready and draining say how they are.
var (
	A = endpoint("10.244.1.10:8080")
	B = endpoint("10.244.2.10:8080")
)

func endpoint(text string) model.Endpoint {
	return model.Endpoint{
		Addr:    netip.MustParseAddrPort(text),
		Local:   strings.HasPrefix(text, "10.244.1.") || strings.HasPrefix(text, "[fd00:244:1:"),
		Ready:   true,
		Serving: true,
	}
}

func unready(e model.Endpoint) model.Endpoint {
	e.Ready, e.Serving = false, false
	return e
}

func draining(e model.Endpoint) model.Endpoint {
	e.Ready, e.Terminating = false, true
	return e
}

// world is a snapshot that is put together port by port.
type world struct{ model.Snapshot }

func newWorld() world {
	return world{model.Snapshot{
		Services:  map[model.ServicePortName]model.ServicePort{},
		Endpoints: map[model.ServicePortName][]model.Endpoint{},
	}}
}

// with adds a Service port and its endpoints.
func (w world) with(port model.ServicePort, endpoints ...model.Endpoint) world {
	w.Services[port.Name] = port
	w.Endpoints[port.Name] = endpoints
	return w
}

// rendered is a snapshot as rules.
type rendered struct {
	ruleset.Ruleset
	chains    []ruleset.Chain
	conflicts []Conflict
}

func (w world) render(o Options) rendered {
	chains, conflicts := Snapshot(w.Snapshot, o)
	r := rendered{Ruleset: ruleset.Ruleset{}, chains: chains, conflicts: conflicts}
	for i := range chains {
		r.Ruleset[chains[i].ChainID] = &chains[i]
	}
	return r
}

// one renders a single Service.
func one(o Options, port model.ServicePort, endpoints ...model.Endpoint) rendered {
	return newWorld().with(port, endpoints...).render(o)
}

// rules returns the rules of a chain such as "nat KUBE-SERVICES" as lines. The chains
// of ns1/s are written by their prefixes: "nat KUBE-SVC" is its KUBE-SVC chain.
func (r rendered) rules(t *testing.T, chain string) string {
	t.Helper()
	table, name, _ := strings.Cut(chain, " ")
	if strings.Count(name, "-") == 1 && ruleset.Table(table) == ruleset.NAT && IsPerService(ruleset.ChainID{Table: ruleset.NAT, Name: name + "-"}) {
		name += "-" + serviceHash(service("s").Name)
	}
	c := r.Ruleset[ruleset.ChainID{Table: ruleset.Table(table), Name: name}]
	if c == nil {
		return "(no chain)"
	}
	var b strings.Builder
	for _, rule := range c.Rules {
		b.WriteString(short(rule.String()) + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// short leaves comments out of a rule and names the chains of ns1/s by their prefix,
// those of its endpoints A and B by theirs.
func short(rule string) string {
	if before, comment, ok := strings.Cut(rule, `-m comment --comment "`); ok {
		_, after, _ := strings.Cut(comment, `"`)
		rule = before + strings.TrimSpace(after)
	}
	if rule == "" {
		return "(a comment)"
	}
	name := service("s").Name
	return strings.NewReplacer(
		"-"+serviceHash(name), "",
		endpointChain(name, A.Addr), "KUBE-SEP-A",
		endpointChain(name, B.Addr), "KUBE-SEP-B",
	).Replace(rule)
}

// mustHave fails the test unless the chain's rules are the given lines, which may be
// indented.
func (r rendered) mustHave(t *testing.T, chain, want string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if got := r.rules(t, chain); got != strings.Join(lines, "\n") {
		t.Errorf("%s:\n%s\nwant:\n%s", chain, got, strings.Join(lines, "\n"))
	}
}

// services are the rules of KUBE-SERVICES but for its last one.
func (r rendered) services(t *testing.T) string {
	t.Helper()
	text := r.rules(t, "nat KUBE-SERVICES")
	if cut := strings.LastIndexByte(text, '\n'); cut >= 0 {
		return text[:cut]
	}
	return ""
}
