package render

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestCost pins how many rules a Service costs, so that a change of it is seen.
func TestCost(t *testing.T) {
	base := one(options(), service("none", func(p *model.ServicePort) { p.ClusterIP = addr("10.96.255.255") }), A)
	baseline := map[ruleset.Table]int{ruleset.NAT: -5} // what that Service itself costs
	for id, chain := range base.Ruleset {
		baseline[id.Table] += len(chain.Rules)
	}
	tests := []struct {
		name        string
		port        model.ServicePort
		nat, filter func(endpoints int) int
	}{
		{"cluster IP", service("s"), perEndpoint(2, 3), none},
		{"cluster IP with affinity", service("s", affinity), perEndpoint(2, 4), none},
		{"node port", service("s", nodePort), perEndpoint(5, 3), none},
		{"node port, Local", service("s", nodePort, externalLocal), perEndpoint(7, 4), none},
		{"load balancer", service("s", loadBalancer), perEndpoint(6, 3), none},
		{"load balancer with a source range", service("s", loadBalancer, ranges("10.9.0.0/16")), perEndpoint(8, 3), func(int) int { return 1 }},
		{"everything, Local", service("s", loadBalancer, externalIP, externalLocal, healthCheck, ranges("10.9.0.0/16")), perEndpoint(11, 4), func(int) int { return 2 }},
	}
	for _, test := range tests {
		for _, endpoints := range []int{1, 2, 30} {
			t.Run(fmt.Sprintf("%s, %d endpoints", test.name, endpoints), func(t *testing.T) {
				r := one(options(), test.port, localPods(endpoints)...)
				cost := map[ruleset.Table]int{}
				for id, chain := range r.Ruleset {
					cost[id.Table] += len(chain.Rules)
				}
				nat, filter := cost[ruleset.NAT]-baseline[ruleset.NAT], cost[ruleset.Filter]-baseline[ruleset.Filter]
				if nat != test.nat(endpoints) || filter != test.filter(endpoints) {
					t.Errorf("%d rules in nat and %d in filter, want %d and %d", nat, filter, test.nat(endpoints), test.filter(endpoints))
				}
			})
		}
	}
}

func perEndpoint(fixed, each int) func(int) int {
	return func(endpoints int) int { return fixed + each*endpoints }
}

func none(int) int { return 0 }

// localPods are n endpoints on this node.
func localPods(n int) []model.Endpoint {
	var all []model.Endpoint
	for i := range n {
		all = append(all, endpoint(fmt.Sprintf("10.244.1.%d:8080", i+10)))
	}
	return all
}

// TestNoEndpointsCost: a Service that has nowhere to go costs one rule per frontend.
func TestNoEndpointsCost(t *testing.T) {
	r := one(options(), service("s", loadBalancer, externalIP, ranges("10.9.0.0/16")))
	for id, chain := range r.Ruleset {
		if IsPerService(id) {
			t.Errorf("chain %s exists", id)
		}
		for _, rule := range chain.Rules {
			if id.Table == ruleset.NAT && strings.Contains(rule.Comment, "ns1/s") {
				t.Errorf("rule in %s: %s", id, rule)
			}
		}
	}
	filter := len(r.Ruleset[filterChain(servicesChain)].Rules) + len(r.Ruleset[filterChain(externalServicesChain)].Rules)
	if filter != 4 {
		t.Errorf("%d rules refuse its 4 frontends", filter)
	}
}

// TestPacketCost pins how many rules the slowest packet for a Service meets on its
// way through KUBE-SERVICES, flat and as a tree.
func TestPacketCost(t *testing.T) {
	w := newWorld()
	const services = 4000
	for i := range services {
		w.with(service(fmt.Sprint("s", i), at(fmt.Sprintf("10.96.%d.%d", i/250, i%250))), A)
	}
	longest := func(flatDispatch int) int {
		r := w.render(options(func(o *Options) { o.FlatDispatch = flatDispatch }))
		most := 0
		for _, port := range w.Services {
			most = max(most, r.rulesMet(natChain(servicesChain), port))
		}
		return most
	}
	if got := longest(services + 1); got != services {
		t.Errorf("flat: the last of %d entries is met after %d rules", services, got)
	}
	if got := longest(0); got > 48 {
		t.Errorf("tree: a packet meets up to %d rules, want 48 at most", got)
	}
}

// rulesMet counts the rules of dispatch chains that a packet for a Service's cluster
// IP is held against, up to the one that leads to the Service.
func (r rendered) rulesMet(id ruleset.ChainID, port model.ServicePort) int {
	met := 0
	for _, rule := range r.Ruleset[id].Rules {
		met++
		target := ruleset.ChainID{Table: id.Table, Name: rule.Target()}
		to, _ := rule.Matches[0].(ruleset.Destination)
		switch {
		case !to.Prefix.Contains(port.ClusterIP):
		case target.Name == clusterPrefix+serviceHash(port.Name):
			return met
		default:
			return met + r.rulesMet(target, port)
		}
	}
	return met
}
