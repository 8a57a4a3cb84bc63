package render

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/model"
)

func younger(p *model.ServicePort) { p.Created = p.Created.Add(time.Hour) }

// target returns where KUBE-SERVICES or KUBE-NODEPORTS leads what is for a frontend
// such as "-d 10.60.0.10/32".
func (r rendered) target(t *testing.T, chain, frontend string) string {
	t.Helper()
	var targets []string
	for line := range strings.Lines(r.rules(t, chain)) {
		if strings.Contains(line, frontend) {
			targets = append(targets, strings.TrimSpace(line[strings.LastIndex(line, " "):]))
		}
	}
	return strings.Join(targets, " ")
}

func TestConflict(t *testing.T) {
	// S and T claim the external IP and the node port.
	extS, extT := "KUBE-EXT", externalPrefix+serviceHash(service("t").Name)
	both := []func(*model.ServicePort){externalIP, nodePort}
	s := func(changes ...func(*model.ServicePort)) model.ServicePort {
		return service("s", append(both, changes...)...)
	}
	tt := func(changes ...func(*model.ServicePort)) model.ServicePort {
		return service("t", append(append(both, at("10.96.0.81")), changes...)...)
	}
	lost := func(winner, loser string) []string {
		return []string{
			"10.60.0.10:80/TCP: ns1/" + winner + ":http not ns1/" + loser + ":http",
			"node port 30080/TCP: ns1/" + winner + ":http not ns1/" + loser + ":http",
		}
	}
	tests := []struct {
		name      string
		world     world
		want      string
		conflicts []string
	}{
		{"by name when of one age", newWorld().with(s(), A).with(tt(), B), extS, lost("s", "t")},
		{"the older one", newWorld().with(s(younger), A).with(tt(), B), extT, lost("t", "s")},
		{"the other takes over", newWorld().with(tt(younger), B), extT, nil},
		{"another port of the Service", newWorld().with(s(), A).with(s(at("10.96.0.81"), func(p *model.ServicePort) { p.Name.Port = "web" }), B), extS, []string{
			"10.60.0.10:80/TCP: ns1/s:http not ns1/s:web",
			"node port 30080/TCP: ns1/s:http not ns1/s:web",
		}},
		{"the owner has no endpoints", newWorld().with(s()).with(tt(), B), "", lost("s", "t")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := test.world.render(options())
			if got := r.target(t, "nat KUBE-SERVICES", "-d 10.60.0.10/32"); got != test.want {
				t.Errorf("the external IP leads to %q, want %q", got, test.want)
			}
			if got := r.target(t, "nat KUBE-NODEPORTS", "--dport 30080"); got != test.want {
				t.Errorf("the node port leads to %q, want %q", got, test.want)
			}
			refused := r.rules(t, "filter KUBE-EXTERNAL-SERVICES")
			if isRefused := strings.Count(refused, "REJECT") == 2; isRefused != (test.want == "") {
				t.Errorf("served by %q, but refused as well or neither:\n%s", test.want, refused)
			}
			for name, port := range test.world.Services {
				if len(test.world.Endpoints[name]) > 0 && r.target(t, "nat KUBE-SERVICES", "-d "+port.ClusterIP.String()) == "" {
					t.Errorf("%s lost its own cluster IP", name)
				}
			}
			var conflicts []string
			for _, c := range r.conflicts {
				conflicts = append(conflicts, c.Frontend.String()+": "+c.Winner.String()+" not "+c.Loser.String())
			}
			if !slices.Equal(conflicts, test.conflicts) {
				t.Errorf("conflicts %q, want %q", conflicts, test.conflicts)
			}
		})
	}
}

// One of three goes, and each time the next one in line has the frontend.
func TestConflictOfThree(t *testing.T) {
	w := newWorld().
		with(service("s", externalIP, younger), A).
		with(service("t", externalIP, at("10.96.0.81")), A).
		with(service("u", externalIP, at("10.96.0.82"), younger), A)
	d := NewDispatcher()
	d.SetOptions(options())
	units := map[string]*Unit{}
	for name, port := range w.Services {
		unit := ServicePort(port, w.Endpoints[name], options())
		units[name.Name] = &unit
		d.Replace(nil, &unit)
	}
	owner := func() string {
		chains, _ := d.Chains()
		for _, chain := range chains {
			if chain.ChainID != NATServices.chain() {
				continue
			}
			for _, rule := range chain.Rules {
				if text := rule.String(); strings.Contains(text, eip.String()) {
					return strings.TrimPrefix(strings.Split(rule.Comment, ":")[0], "ns1/")
				}
			}
		}
		return ""
	}
	for _, want := range []string{"t", "s", "u"} {
		if got := owner(); got != want {
			t.Errorf("%q has the external IP, want %q", got, want)
		}
		d.Replace(units[want], nil)
	}
	if got := owner(); got != "" {
		t.Errorf("%q has the external IP after all are gone", got)
	}
	if len(d.claims) != 0 {
		t.Errorf("B-34 %d claims are left", len(d.claims))
	}
}

// A Service can have one address twice; that is no conflict, and both rules stand.
func TestOneServiceOneAddressTwice(t *testing.T) {
	r := one(options(), service("s", loadBalancer, func(p *model.ServicePort) { p.ExternalIPs = p.LoadBalancerVIPs }, ranges("10.9.0.0/16")), A)
	if len(r.conflicts) != 0 {
		t.Errorf("taken for a conflict: %v", r.conflicts)
	}
	if got, want := r.target(t, "nat KUBE-SERVICES", "-d 10.50.0.10/32"), "KUBE-EXT KUBE-FW"; got != want {
		t.Errorf("the address leads to %q, want %q", got, want)
	}
}

// Health check ports are a space of their own.
func TestHealthCheckPortIsNoNodePort(t *testing.T) {
	r := newWorld().
		with(service("s", loadBalancer, externalLocal, healthCheck), A).
		with(service("t", at("10.96.0.81"), func(p *model.ServicePort) { p.NodePort = 32000 }), B).
		render(options())
	if len(r.conflicts) != 0 {
		t.Errorf("taken for a conflict: %v", r.conflicts)
	}
}
