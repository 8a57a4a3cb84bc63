package render

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

func TestHairpin(t *testing.T) {
	r := one(options(), service("s"), A)
	r.mustHave(t, "nat "+endpointChain(service("s").Name, A.Addr), `
		-s 10.244.1.10/32 -j KUBE-MARK-MASQ
		-p tcp -j DNAT --to-destination 10.244.1.10:8080`)
}

// B-02: without a way to tell pods from others there is no rule with an empty source.
func TestNoDetector(t *testing.T) {
	local := one(options(noDetector), service("s", loadBalancer, externalLocal), A)
	t.Run("B-02 cluster IP is not masqueraded", func(t *testing.T) {
		local.mustHave(t, "nat KUBE-SVC", "-j KUBE-SEP-A")
	})
	t.Run("B-02 no rule for pods", func(t *testing.T) {
		local.mustHave(t, "nat KUBE-EXT", `
			-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
			-m addrtype --src-type LOCAL -j KUBE-SVC
			-j KUBE-SVL`)
	})
	t.Run("B-02 external policy Cluster masquerades everybody", func(t *testing.T) {
		one(options(noDetector), service("s", externalIP), A).mustHave(t, "nat KUBE-EXT", `
			-j KUBE-MARK-MASQ
			-j KUBE-SVC`)
	})
}

func TestMasqueradeForeign(t *testing.T) {
	const toClusterIP = "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ"
	tests := []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"B-03 by range", func(*Options) {}, "! -s 10.244.0.0/16 " + toClusterIP},
		{"by bridge", func(o *Options) { o.Local = LocalTraffic{Interface: "cni0"} },
			"-d 10.96.0.80/32 ! -i cni0 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ"},
		{"by interface prefix", func(o *Options) { o.Local = LocalTraffic{Interface: "veth+"} },
			"-d 10.96.0.80/32 ! -i veth+ -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ"},
		{"B-03 masquerade all", func(o *Options) { o.MasqueradeAll = true }, toClusterIP},
		{"masquerade all without a detector", func(o *Options) { noDetector(o); o.MasqueradeAll = true }, toClusterIP},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			one(options(test.change), service("s"), A).mustHave(t, "nat KUBE-SVC", test.want+"\n-j KUBE-SEP-A")
			one(options(test.change), service("s", internalLocal, nodePort), A).mustHave(t, "nat KUBE-SVL", test.want+"\n-j KUBE-SEP-A")
		})
	}
}

// B-05: policy Local concerns who comes from outside; pods and the node itself reach
// endpoints everywhere.
func TestExternalLocalWithoutLocalEndpoint(t *testing.T) {
	r := one(options(), service("s", loadBalancer, externalLocal), B)
	r.mustHave(t, "nat KUBE-EXT", `
		-s 10.244.0.0/16 -j KUBE-SVC
		-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
		-m addrtype --src-type LOCAL -j KUBE-SVC`)
	r.mustHave(t, "nat KUBE-SVL", "(no chain)")
	r.mustHave(t, "filter KUBE-EXTERNAL-SERVICES", `
		-d 10.50.0.10/32 -p tcp -m tcp --dport 80 -j DROP
		-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP`)
	r.mustHave(t, "filter KUBE-SERVICES", "")
}

// B-07: source ranges hold for everybody, pods and nodes too, on the load balancer IP
// only.
func TestSourceRanges(t *testing.T) {
	const drop = "-d 10.50.0.10/32 -p tcp -m tcp --dport 80 -j DROP"
	t.Run("B-07 ranges before anything else", func(t *testing.T) {
		r := one(options(), service("s", loadBalancer, externalLocal, ranges("10.9.0.0/16")), A)
		r.mustHave(t, "nat KUBE-FW", "-s 10.9.0.0/16 -j KUBE-EXT\n(a comment)")
		r.mustHave(t, "filter KUBE-PROXY-FIREWALL", drop)
		r.mustHave(t, "nat KUBE-NODEPORTS", "-p tcp -m tcp --dport 30080 -j KUBE-EXT")
		if got := r.services(t); !strings.Contains(got, "-d 10.50.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-FW") {
			t.Errorf("KUBE-SERVICES does not lead to KUBE-FW:\n%s", got)
		}
	})
	t.Run("B-07 the node inside a range may use the VIP as its source", func(t *testing.T) {
		r := one(options(), service("s", loadBalancer, ranges("10.0.0.0/24")), A)
		if got := r.rules(t, "nat KUBE-FW"); !strings.Contains(got, "-s 10.50.0.10/32 -j KUBE-EXT") {
			t.Errorf("the VIP is not let in:\n%s", got)
		}
	})
	t.Run("B-08 ranges of the other family only", func(t *testing.T) {
		r := one(options(), service("s", loadBalancer), A)
		r.mustHave(t, "nat KUBE-FW", "(no chain)")
		r.mustHave(t, "filter KUBE-PROXY-FIREWALL", "")
	})
	t.Run("no endpoints: refused, not dropped", func(t *testing.T) {
		r := one(options(), service("s", loadBalancer, ranges("10.9.0.0/16")))
		r.mustHave(t, "filter KUBE-PROXY-FIREWALL", "")
		r.mustHave(t, "nat KUBE-FW", "(no chain)")
	})
	t.Run("B-10 no VIP, no firewall", func(t *testing.T) {
		r := one(options(), service("s", nodePort, ranges("10.9.0.0/16")), A)
		r.mustHave(t, "nat KUBE-FW", "(no chain)")
		r.mustHave(t, "filter KUBE-PROXY-FIREWALL", "")
	})
}

// B-11: what the node sends to its own node port must not leave with a source that
// nobody can answer to.
func TestNodePortLocalFromTheNode(t *testing.T) {
	r := one(options(), service("s", nodePort, externalLocal), A)
	r.mustHave(t, "nat KUBE-EXT", `
		-s 10.244.0.0/16 -j KUBE-SVC
		-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
		-m addrtype --src-type LOCAL -j KUBE-SVC
		-j KUBE-SVL`)
}

func TestLoopback(t *testing.T) {
	const guard = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
	closed := func(o *Options) { o.NodePorts.Loopback = false }
	t.Run("B-12 guarded where route_localnet is on", func(t *testing.T) {
		one(options(), service("s", nodePort), A).mustHave(t, "filter KUBE-FIREWALL", guard)
	})
	t.Run("B-12 left alone where it is off", func(t *testing.T) {
		r := one(options(closed), service("s", nodePort), A)
		r.mustHave(t, "filter KUBE-FIREWALL", "(no chain)")
		if got := r.rules(t, "nat KUBE-SERVICES"); !strings.HasSuffix(got, "! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS") {
			t.Errorf("node ports answer on loopback addresses:\n%s", got)
		}
	})
	t.Run("B-12 listed loopback address without localhost node ports", func(t *testing.T) {
		r := one(options(closed, func(o *Options) {
			o.NodePorts.All, o.NodePorts.Addresses = false, []netip.Addr{addr("10.0.0.1"), addr("127.0.0.1")}
		}), service("s", nodePort), A)
		if got := r.rules(t, "nat KUBE-SERVICES"); strings.Contains(got, "127.0.0.1") || !strings.HasSuffix(got, "-d 10.0.0.1/32 -j KUBE-NODEPORTS") {
			t.Errorf("node ports do not answer on 10.0.0.1 alone:\n%s", got)
		}
	})
	t.Run("item 5 no address, no node ports", func(t *testing.T) {
		r := one(options(func(o *Options) { o.NodePorts = NodePortAddresses{} }), service("s", nodePort), A)
		r.mustHave(t, "nat KUBE-SERVICES", "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-SVC")
	})
}

// B-13: nothing anywhere is refused, nothing here is dropped.
func TestRefusal(t *testing.T) {
	const (
		clusterIP = "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j "
		toEIP     = "-d 10.60.0.10/32 -p tcp -m tcp --dport 80 -j "
		reject    = "REJECT --reject-with icmp-port-unreachable"
	)
	tests := []struct {
		name               string
		port               model.ServicePort
		endpoints          []model.Endpoint
		internal, external string
	}{
		{"B-13 internal Local, endpoint elsewhere", service("s", internalLocal), []model.Endpoint{B}, clusterIP + "DROP", ""},
		{"B-13 internal Local, none", service("s", internalLocal), nil, clusterIP + reject, ""},
		{"B-13 external Local, endpoint elsewhere", service("s", externalIP, externalLocal), []model.Endpoint{B}, "", toEIP + "DROP"},
		{"B-13 external Local, none", service("s", externalIP, externalLocal), nil, clusterIP + reject, toEIP + reject},
		{"B-14 unready only", service("s", externalIP), []model.Endpoint{unready(A)}, clusterIP + reject, toEIP + reject},
		{"B-14 ready again", service("s", externalIP), []model.Endpoint{A}, "", ""},
		{"B-15 draining only", service("s", externalIP, externalLocal, internalLocal), []model.Endpoint{draining(A)}, "", ""},
		{"B-15 draining elsewhere", service("s", externalIP, externalLocal, internalLocal), []model.Endpoint{draining(B)}, clusterIP + "DROP", toEIP + "DROP"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := one(options(), test.port, test.endpoints...)
			r.mustHave(t, "filter KUBE-SERVICES", test.internal)
			r.mustHave(t, "filter KUBE-EXTERNAL-SERVICES", test.external)
			if isServed, isRefused := strings.Contains(r.services(t), "10.96.0.80"), test.internal != ""; isServed == isRefused {
				t.Errorf("cluster IP served %v, refused %v", isServed, isRefused)
			}
		})
	}
}

// B-14: what is not used has no chain.
func TestChainsOfUsedEndpointsOnly(t *testing.T) {
	name := service("s").Name
	tests := []struct {
		name      string
		port      model.ServicePort
		endpoints []model.Endpoint
		want      []model.Endpoint
	}{
		{"B-14 unready", service("s"), []model.Endpoint{unready(A), B}, []model.Endpoint{B}},
		{"B-14 unready only", service("s", affinity), []model.Endpoint{unready(A)}, nil},
		{"internal Local only", service("s", internalLocal), []model.Endpoint{A, B}, []model.Endpoint{A}},
		{"draining beside ready", service("s"), []model.Endpoint{draining(A), B}, []model.Endpoint{B}},
		{"draining here, ready there", service("s", nodePort, externalLocal), []model.Endpoint{draining(A), B}, []model.Endpoint{A, B}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := one(options(), test.port, test.endpoints...)
			want := map[string]bool{}
			for _, ep := range test.want {
				want[endpointChain(name, ep.Addr)] = true
			}
			for id := range r.Ruleset {
				if strings.HasPrefix(id.Name, endpointPrefix) {
					if !want[id.Name] {
						t.Errorf("chain %s is for no endpoint in use", id.Name)
					}
					delete(want, id.Name)
				}
			}
			if len(want) > 0 {
				t.Errorf("no chains %v", want)
			}
		})
	}
}

// B-71: a client keeps its endpoint in every policy's chain, for the whole timeout.
func TestAffinity(t *testing.T) {
	r := one(options(), service("s", affinity, nodePort, externalLocal), A, B)
	const check = "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-X --mask 255.255.255.255 --rsource -j KUBE-SEP-X\n"
	checkA, checkB := strings.ReplaceAll(check, "X", "A"), strings.ReplaceAll(check, "X", "B")
	r.mustHave(t, "nat KUBE-SVC", "! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n"+
		checkA+checkB+"-m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-A\n-j KUBE-SEP-B")
	r.mustHave(t, "nat KUBE-SVL", checkA+"-j KUBE-SEP-A")
	r.mustHave(t, "nat "+endpointChain(service("s").Name, A.Addr), `
		-s 10.244.1.10/32 -j KUBE-MARK-MASQ
		-p tcp -m recent --set --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.10:8080`)
}

// B-75 and B-87: one port number of three protocols is three node ports.
func TestProtocolsShareANodePort(t *testing.T) {
	r := newWorld().
		with(service("s", nodePort, externalLocal), A).
		with(service("t", at("10.96.0.81"), nodePort, udp), B).
		with(service("u", at("10.96.0.82"), nodePort, sctp), B).
		render(options())
	if len(r.conflicts) != 0 {
		t.Errorf("B-87 taken for conflicts: %v", r.conflicts)
	}
	chain := func(name string, change func(*model.ServicePort)) string {
		return externalPrefix + serviceHash(service(name, change).Name)
	}
	r.mustHave(t, "nat KUBE-NODEPORTS", `
		-p tcp -m tcp --dport 30080 -j KUBE-EXT
		-p udp -m udp --dport 30080 -j `+chain("t", udp)+`
		-p sctp -m sctp --dport 30080 -j `+chain("u", sctp))
	if text := string(one(options(), service("s", nodePort), A).text()); strings.Contains(text, "sctp") {
		t.Errorf("B-75 sctp matches without an SCTP Service:\n%s", text)
	}
}

// Item 15: the health check port is open whatever node ports are, and without local
// endpoints all the more.
func TestHealthCheckNodePort(t *testing.T) {
	for _, endpoints := range [][]model.Endpoint{{A}, {B}, nil} {
		r := one(options(func(o *Options) { o.NodePorts = NodePortAddresses{} }), service("s", loadBalancer, externalLocal, healthCheck), endpoints...)
		r.mustHave(t, "filter KUBE-NODEPORTS", "-p tcp -m tcp --dport 32000 -j ACCEPT")
	}
	// The port is the Service's, and its ports share it.
	two := newWorld().
		with(service("s", loadBalancer, externalLocal, healthCheck), A).
		with(service("s", loadBalancer, externalLocal, healthCheck, func(p *model.ServicePort) { p.Name.Port, p.Port, p.NodePort = "web", 81, 30081 }), A).
		render(options())
	two.mustHave(t, "filter KUBE-NODEPORTS", "-p tcp -m tcp --dport 32000 -j ACCEPT")
	if len(two.conflicts) != 0 {
		t.Errorf("two ports of one Service are taken for a conflict: %v", two.conflicts)
	}
}

func TestFixedChains(t *testing.T) {
	t.Run("B-48 forwarded Service traffic is accepted", func(t *testing.T) {
		newWorld().render(options()).mustHave(t, "filter KUBE-FORWARD", `
			-m conntrack --ctstate INVALID -j DROP
			-m mark --mark 0x4000/0x4000 -j ACCEPT
			-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`)
	})
	t.Run("B-49 INVALID is let through where conntrack is liberal", func(t *testing.T) {
		newWorld().render(options(func(o *Options) { o.DropInvalid = false })).mustHave(t, "filter KUBE-FORWARD", `
			-m mark --mark 0x4000/0x4000 -j ACCEPT
			-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`)
	})
	t.Run("B-50 the mark is cleared before masquerading", func(t *testing.T) {
		newWorld().render(options()).mustHave(t, "nat KUBE-POSTROUTING", `
			-m mark ! --mark 0x4000/0x4000 -j RETURN
			-j MARK --set-xmark 0x4000/0x0
			-j MASQUERADE --random-fully`)
	})
	t.Run("B-51 without --random-fully", func(t *testing.T) {
		r := newWorld().render(options(func(o *Options) { o.RandomFully, o.MasqueradeMark = false, 0x8000 }))
		r.mustHave(t, "nat KUBE-POSTROUTING", `
			-m mark ! --mark 0x8000/0x8000 -j RETURN
			-j MARK --set-xmark 0x8000/0x0
			-j MASQUERADE`)
		r.mustHave(t, "nat KUBE-MARK-MASQ", "-j MARK --set-xmark 0x8000/0x8000")
	})
	t.Run("B-55 every chain jumped to is declared", func(t *testing.T) {
		r := newWorld().render(options())
		for _, name := range []string{servicesChain, nodePortsChain, markMasqChain, postroutingChain} {
			if r.Ruleset[natChain(name)] == nil {
				t.Errorf("B-55 no chain %s in nat", name)
			}
		}
	})
}

// The filter table is asked about new connections only, but for KUBE-FORWARD and the
// health checks.
func TestHooksKeepOpenConnections(t *testing.T) {
	for _, hook := range Hooks() {
		if hook.From.Table != ruleset.Filter {
			continue
		}
		text := hook.Rule.String()
		isNew := strings.Contains(text, "--ctstate NEW")
		switch hook.Rule.Target() {
		case forwardChain, nodePortsChain, FirewallChain:
			if isNew {
				t.Errorf("%s: %s is asked about new connections only", hook.From, text)
			}
		default:
			if !isNew {
				t.Errorf("%s: %s is asked about open connections", hook.From, text)
			}
		}
	}
}
