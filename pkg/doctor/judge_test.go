package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

var (
	agentHere  = Process{PID: 10, Name: "miniproxy", Args: []string{"/bin/miniproxy", "--config=x"}, Network: NetworkSame}
	agentHere2 = Process{PID: 11, Name: "miniproxy", Args: []string{"miniproxy", "run"}, Network: NetworkSame}
	agentAway  = Process{PID: 12, Name: "miniproxy", Args: []string{"miniproxy"}, Network: NetworkOther}
	agentMaybe = Process{PID: 13, Name: "miniproxy", Args: []string{"miniproxy"}}
	notAgent   = Process{PID: 14, Name: "miniproxy", Args: []string{"miniproxy", "doctor"}, Network: NetworkSame}
	sshd       = Process{PID: 20, Name: "sshd", Args: []string{"sshd"}, Network: NetworkSame}
)

func process(name string, network Network) Process {
	return Process{PID: 7, Name: name, Network: network}
}

func at(protocol, address string, owner *Process) Socket {
	return Socket{Protocol: protocol, Address: netip.MustParseAddrPort(address), Owner: owner}
}

func number(n int) *int { return &n }

// Every check, with what each of its answers depends on.
func TestJudgements(t *testing.T) {
	input := ruleset.ChainID{Table: ruleset.Filter, Name: "INPUT"}
	healthz := netip.MustParseAddrPort("0.0.0.0:10256")
	web := map[PortUse]string{{"TCP", 30080}: "default/web"}
	shop := map[PortUse]string{{"TCP", 31000}: "default/shop"}
	tests := []struct {
		name  string
		got   []Finding
		level Level
		found string // what the findings say, in part
	}{
		{"backend", []Finding{Backend(iptables.Choice{Backend: iptables.NFT, Reason: "it is nice"})}, OK, "nft: it is nice"},
		{"no backend", []Finding{NoBackend(errors.New("no programs"))}, Bad, "no programs"},

		{"programs", []Finding{Programs(model.IPv4, iptables.NFT, "1.8.9")}, OK, "iptables 1.8.9 for nft"},
		{"programs of tomorrow", []Finding{Programs(model.IPv4, iptables.NFT, "2.0.0")}, OK, "2.0.0"},
		{"programs that race", []Finding{Programs(model.IPv4, iptables.Legacy, "1.6.1")}, Warn, "--random-fully"},
		{"programs old enough for legacy", []Finding{Programs(model.IPv4, iptables.Legacy, "1.6.2")}, OK, ""},
		{"programs that lose rules", []Finding{Programs(model.IPv4, iptables.NFT, "1.8.2")}, Warn, "lose rules"},
		{"programs that lose rules, but not on legacy", []Finding{Programs(model.IPv4, iptables.Legacy, "1.8.2")}, OK, ""},
		{"a family without programs", []Finding{FamilyUnsupported(model.IPv6, errors.New("no nat"))}, Warn, "no nat"},

		{"rules where they belong", []Finding{InUse(Usage{iptables.NFT, 84, 12})}, OK, "rules: 84, chains of a Service proxy: 12"},
		{"no rules of ours", []Finding{InUse(Usage{iptables.NFT, 84, 0})}, Warn, "proxy: 0"},
		{"the other backend is empty", []Finding{NotInUse(Usage{Backend: iptables.Legacy})}, OK, "none"},
		{"the other backend has others' rules", []Finding{NotInUse(Usage{iptables.Legacy, 3, 0})}, Warn, "rules: 3"},
		{"the other backend has ours", []Finding{NotInUse(Usage{iptables.Legacy, 3, 1})}, Bad, "miniproxy cleanup --iptables-backend=legacy"},

		{"all jump rules", []Finding{Jumps(model.IPv4, nil)}, OK, "all in place"},
		{"a jump rule is lost", []Finding{Jumps(model.IPv4, []audit.Difference{{Kind: audit.Jump, Chain: input, Why: "missing"}})}, Bad, "filter/INPUT missing"},
		{"a jump rule is out of reach", []Finding{Jumps(model.IPv4, []audit.Difference{{
			Kind: audit.Jump, Chain: input, Why: string(iptables.JumpOutOfReach),
			Lines: []ruleset.LineDiff{{Op: '+', Text: "-j A"}, {Op: ' ', Text: "-j DROP"}, {Op: '-', Text: "-j A"}},
		}})}, Bad, "in the way: -A INPUT -j DROP"},

		{"all capabilities", []Finding{Capabilities(model.IPv4, nil)}, OK, ""},
		{"something lacks", []Finding{Capabilities(model.IPv4, map[string]string{"recent": "no affinity"})}, Warn, "no recent: no affinity"},

		{"forwarding", []Finding{Forwarding(1)}, OK, ""},
		{"no forwarding", []Finding{Forwarding(0)}, Bad, "net.ipv4.ip_forward=1"},
		{"IPv6 forwarding", []Finding{ForwardingIPv6(1, true)}, OK, ""},
		{"no IPv6 forwarding", []Finding{ForwardingIPv6(0, true)}, Bad, "forwarding is 0"},
		{"no IPv6 forwarding, and no need", []Finding{ForwardingIPv6(0, false)}, OK, "off"},

		{"route_localnet as wanted", []Finding{RouteLocalnet(true, true)}, OK, "on"},
		{"route_localnet off as wanted", []Finding{RouteLocalnet(false, false)}, OK, "off"},
		{"route_localnet missing", []Finding{RouteLocalnet(false, true)}, Warn, "127.0.0.1"},
		{"route_localnet unguarded", []Finding{RouteLocalnet(true, false)}, Warn, "neighbours"},

		{"rp_filter loose", []Finding{ReversePath(map[string]int{"all": 2, "default": 1, "eth0": 1, "lo": 1})}, OK, ""},
		{"rp_filter off", []Finding{ReversePath(map[string]int{"all": 0, "eth0": 0, "lo": 1})}, OK, ""},
		{"rp_filter strict by all", []Finding{ReversePath(map[string]int{"all": 1, "eth0": 0, "eth1": 2})}, Warn, "strict on eth0:"},
		{"rp_filter strict by its own", []Finding{ReversePath(map[string]int{"all": 0, "eth0": 1})}, Warn, "strict on eth0:"},

		{"no bridge", []Finding{Bridges(nil, nil)}, OK, ""},
		{"a bridge that is shown", []Finding{Bridges([]string{"cni0"}, number(1))}, OK, "cni0"},
		{"a bridge that is not shown", []Finding{Bridges([]string{"cni0"}, number(0))}, Warn, "bridge-nf-call-iptables is 0"},
		{"a bridge without br_netfilter", []Finding{Bridges([]string{"cni0"}, nil)}, Warn, "modprobe br_netfilter"},

		{"conntrack size", []Finding{ConntrackSize(1000, 1000)}, OK, ""},
		{"conntrack size as it is", []Finding{ConntrackSize(1000, 0)}, OK, ""},
		{"conntrack size too small", []Finding{ConntrackSize(1000, 2000)}, Warn, "asks for 2000"},
		{"conntrack empty", []Finding{ConntrackFill(0, 100)}, OK, "0%"},
		{"conntrack busy", []Finding{ConntrackFill(75, 100)}, Warn, "75%"},
		{"conntrack full", []Finding{ConntrackFill(95, 100)}, Bad, "95%"},
		{"conntrack without a limit", []Finding{ConntrackFill(95, 0)}, OK, "without a limit"},
		{"liberal as wanted", []Finding{BeLiberal(true, true)}, OK, "on"},
		{"not liberal as wanted", []Finding{BeLiberal(false, false)}, OK, "off"},
		{"liberal by somebody", []Finding{BeLiberal(true, false)}, OK, "on"},
		{"not liberal", []Finding{BeLiberal(false, true)}, Warn, "is 0"},

		{"no IPVS", []Finding{Interfaces([]string{"lo", "eth0"})}, OK, ""},
		{"IPVS", []Finding{Interfaces([]string{"lo", "kube-ipvs0"})}, Bad, "kube-ipvs0"},
		{"no nft tables", []Finding{OtherTables(nil)}, OK, ""},
		{"an nft table", []Finding{OtherTables([]string{"inet filter"})}, Warn, "inet filter"},
		{"kube-proxy's nft table", []Finding{OtherTables([]string{"inet filter", "ip kube-proxy"})}, Bad, "nft delete table ip kube-proxy"},
		{"an nft table of like name", []Finding{OtherTables([]string{"inet my-kube-proxy"})}, Warn, ""},

		{"no agent", []Finding{Agents([]Process{agentAway, notAgent, sshd})}, Warn, "no miniproxy"},
		{"one agent", []Finding{Agents([]Process{agentHere, agentAway, agentMaybe, notAgent})}, OK, "pid 10"},
		{"two agents", []Finding{Agents([]Process{agentHere, agentHere2})}, Bad, "miniproxy (pid 10), miniproxy (pid 11)"},
		{"perhaps an agent", []Finding{Agents([]Process{agentMaybe})}, Warn, "perhaps"},
		{"no kube-proxy", []Finding{KubeProxy([]Process{process("kube-proxy", NetworkOther)})}, OK, ""},
		{"kube-proxy", []Finding{KubeProxy([]Process{process("kube-proxy", NetworkSame)})}, Bad, "kube-proxy (pid 7)"},
		{"perhaps kube-proxy", []Finding{KubeProxy([]Process{process("kube-proxy", NetworkUnknown)})}, Warn, "perhaps"},
		{"no other writers", OtherWriters([]Process{sshd, process("firewalld", NetworkOther)}), OK, "none"},
		{"firewalld", OtherWriters([]Process{process("firewalld", NetworkSame)}), Warn, "firewalld (pid 7)"},
		{"docker", OtherWriters([]Process{process("dockerd", NetworkSame)}), OK, "dockerd (pid 7)"},
		{"no ufw", []Finding{UFW([]string{"INPUT", "DOCKER"})}, OK, ""},
		{"ufw", []Finding{UFW([]string{"INPUT", "ufw-before-input"})}, Warn, "DEFAULT_FORWARD_POLICY"},
		{"lock free", []Finding{Lock(iptables.Legacy, nil)}, OK, ""},
		{"lock held", []Finding{Lock(iptables.Legacy, &sshd)}, Bad, "sshd (pid 20)"},
		{"lock held on nft", []Finding{Lock(iptables.NFT, &sshd)}, OK, "stops nobody"},

		{"server off", []Finding{ServerPort("healthz", netip.AddrPort{}, nil, false)}, OK, "off"},
		{"server's port is free", []Finding{ServerPort("healthz", healthz, []Socket{at("UDP", "0.0.0.0:10256", &sshd), at("TCP", "0.0.0.0:1", &sshd)}, false)}, OK, "free"},
		{"server's port is the agent's", []Finding{ServerPort("healthz", healthz, []Socket{at("TCP", "[::]:10256", &agentHere)}, true)}, OK, "pid 10"},
		{"server's port is another's", []Finding{ServerPort("healthz", healthz, []Socket{at("TCP", "127.0.0.1:10256", &sshd)}, true)}, Bad, "sshd (pid 20)"},
		{"server's port is another's, of another address", []Finding{ServerPort("m", netip.MustParseAddrPort("127.0.0.1:10256"), []Socket{at("TCP", "127.0.0.2:10256", &sshd)}, false)}, OK, "free"},
		{"server's port is somebody's", []Finding{ServerPort("healthz", healthz, []Socket{at("TCP", "0.0.0.0:10256", nil)}, false)}, Warn, "somebody"},
		{"server's port is somebody's, and an agent runs", []Finding{ServerPort("healthz", healthz, []Socket{at("TCP", "0.0.0.0:10256", nil)}, true)}, OK, "in use"},
		{"an agent without a server", []Finding{ServerPort("healthz", healthz, nil, true)}, Warn, "nobody"},

		{"node ports", NodePorts([]Socket{at("TCP", "0.0.0.0:22", &sshd), at("UDP", "0.0.0.0:30080", &agentHere)}, web, shop), OK, "1 in use"},
		{"a node port is taken", NodePorts([]Socket{at("TCP", "0.0.0.0:30080", &sshd)}, web, shop), Bad, "sshd (pid 20) on TCP 0.0.0.0:30080, a node port of default/web"},
		{"a node port of another protocol", NodePorts([]Socket{at("UDP", "0.0.0.0:30080", &sshd)}, web, shop), Warn, "UDP"},
		{"a health-check port is taken", NodePorts([]Socket{at("TCP", "0.0.0.0:31000", &sshd)}, web, shop), Bad, "health-check node port of default/shop"},
		{"a health-check port is the agent's", NodePorts([]Socket{at("TCP", "0.0.0.0:31000", &agentHere)}, web, shop), OK, ""},
		{"a health-check port is somebody's", NodePorts([]Socket{at("TCP", "0.0.0.0:31000", nil)}, web, shop), OK, ""},
		{"a port of the range", NodePorts([]Socket{at("TCP", "0.0.0.0:32767", &sshd)}, web, shop), Warn, "32767"},
		{"a port of the range on loopback", NodePorts([]Socket{at("TCP", "127.0.0.1:32767", &sshd)}, web, shop), OK, ""},

		{"cluster", Cluster{Source: "https://10.0.0.1:6443", Node: "n1", HasNode: true, Services: 3}.Judge(), OK, "3 Service ports"},
		{"the cluster's loop", Cluster{Err: errors.New("no way"), IsLoop: true}.Judge(), Bad, "--api-servers"},
		{"no cluster", Cluster{Err: errors.New("no way")}.Judge(), Bad, "no way"},
		{"the loop to come", Cluster{Source: "https://10.96.0.1", IsServiceAddress: true, HasNode: true}.Judge(), Warn, "not after the next boot"},
		{"no Node", Cluster{Source: "x", Node: "n1"}.Judge(), Bad, `none called "n1"`},

		{"health off", []Finding{Health("", 0, "", nil, true)}, OK, "off"},
		{"healthy", []Finding{Health("h:1", 200, "ok", nil, true)}, OK, "200"},
		{"unhealthy", []Finding{Health("h:1", 503, "late", nil, true)}, Bad, "503: late"},
		{"no answer and no agent", []Finding{Health("h:1", 0, "", errors.New("refused"), false)}, Warn, "refused"},
		{"no answer from the agent", []Finding{Health("h:1", 0, "", errors.New("refused"), true)}, Bad, "refused"},

		{"no rights", []Finding{CouldNotLook("x", fmt.Errorf("list: %w", fs.ErrPermission))}, Warn, "could not look: needs root"},
		{"an error", []Finding{CouldNotLook("x", errors.New("broken\npipe"))}, Warn, "could not look: broken; pipe"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var text strings.Builder
			if err := Print(&text, test.got); err != nil {
				t.Fatal(err)
			}
			if got := worst(test.got); got != test.level || !strings.Contains(text.String(), test.found) {
				t.Errorf("got %s, want %s and %q in:\n%s", got, test.level, test.found, &text)
			}
			for _, f := range test.got {
				if f.Level == Bad && f.Do == "" {
					t.Errorf("%s: bad, and nothing to do", f.Check)
				}
			}
		})
	}
}

func worst(findings []Finding) Level {
	level := OK
	for _, f := range findings {
		if f.Level == Bad || f.Level == Warn && level == OK {
			level = f.Level
		}
	}
	return level
}

func TestPrint(t *testing.T) {
	findings := []Finding{
		{OK, "a", "fine", ""},
		{Warn, "longer name", "two\nlines", "this"},
		{Bad, "b", "broken", "that"},
	}
	var got strings.Builder
	if err := Print(&got, findings); err != nil {
		t.Fatal(err)
	}
	const want = "ok    a            fine\n" +
		"warn  longer name  two; lines; to do: this\n" +
		"bad   b            broken; to do: that\n"
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
	if !AnyBad(findings) || AnyBad(findings[:2]) {
		t.Errorf("bad ones: got %t and %t, want true and false", AnyBad(findings), AnyBad(findings[:2]))
	}
}
