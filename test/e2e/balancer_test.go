package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// The addresses outside of the cluster that lead to n1, by family.
var (
	vips        = map[int]netip.Addr{4: netip.MustParseAddr("10.50.0.10"), 6: netip.MustParseAddr("fd00:50::10")}
	externalIPs = map[int]netip.Addr{4: netip.MustParseAddr("10.60.0.10"), 6: netip.MustParseAddr("fd00:60::10")}
)

// vip is the load balancer's address in a family with the Service's first port.
func vip(svc *v1.Service, family int) netip.AddrPort {
	return netip.AddrPortFrom(vips[family], uint16(svc.Spec.Ports[0].Port))
}

// externalIP is the external address in a family with the Service's first port.
func externalIP(svc *v1.Service, family int) netip.AddrPort {
	return netip.AddrPortFrom(externalIPs[family], uint16(svc.Spec.Ports[0].Port))
}

// loadBalancer makes the Service one that waits for a load balancer.
func loadBalancer(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeLoadBalancer }

// withExternalIPs gives the Service the external addresses of both families.
func withExternalIPs(svc *v1.Service) {
	svc.Spec.ExternalIPs = []string{externalIPs[4].String(), externalIPs[6].String()}
}

// externalLocal keeps traffic from outside on the node where it comes in.
func externalLocal(svc *v1.Service) {
	svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

// sourceRanges lets only these ranges use the load balancer; none lets in everybody.
func sourceRanges(ranges ...string) func(*v1.Service) {
	return func(svc *v1.Service) { svc.Spec.LoadBalancerSourceRanges = ranges }
}

// balance is what the cloud's controller does once a load balancer is there: it writes
// the ingress points into the Service's status.
func (ns *namespace) balance(t *testing.T, name string, ingress ...v1.LoadBalancerIngress) *v1.Service {
	t.Helper()
	services := ns.c.client().CoreV1().Services(ns.name)
	var svc *v1.Service
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if svc, err = services.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		svc.Status.LoadBalancer.Ingress = ingress
		svc, err = services.UpdateStatus(t.Context(), svc, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// ingress are the load balancer's addresses of both families in a mode of KEP-1860;
// the empty mode leaves the field to its default.
func ingress(mode v1.LoadBalancerIPMode) []v1.LoadBalancerIngress {
	var list []v1.LoadBalancerIngress
	for _, family := range families {
		point := v1.LoadBalancerIngress{IP: vips[family].String()}
		if mode != "" {
			point.IPMode = &mode
		}
		list = append(list, point)
	}
	return list
}

// balancer makes a Service with a load balancer that sends to the VIPs. It returns
// when all nodes know these.
func (ns *namespace) balancer(t *testing.T, name string, mutate ...func(*v1.Service)) *v1.Service {
	t.Helper()
	ns.service(t, name, append([]func(*v1.Service){loadBalancer}, mutate...)...)
	svc := ns.balance(t, name, ingress("")...)
	for _, n := range ns.c.nodes {
		for _, family := range families {
			eventually(t, fmt.Sprintf("%s to know the VIP", n.Plan.Name), func() error {
				return n.mentions(t, family, vips[family])
			})
		}
	}
	return svc
}

// keptClient is the client outside with its own address as the source that pods see:
// its packets come in through node and stay on it.
func (c *cluster) keptClient(through string) caller {
	own := c.net.Plan.Client
	return caller{
		name: "client through " + through, host: c.net.Client,
		source: func(a netip.Addr) bool {
			for _, p := range own {
				if p.Addr() == a {
					return true
				}
			}
			return false
		},
		want: fmt.Sprintf("the client's own, %v", own),
	}
}

// strangers are machines outside that no Service expects, by cluster.
var strangers = map[*cluster]*lab.Host{}

// stranger is a second machine outside, in the client's range: 10.9.8.8 and fd00:9::8.
// It routes VIPs and cluster IPs to n1, as the client does.
func (c *cluster) stranger(t *testing.T) *lab.Host {
	t.Helper()
	if h := strangers[c]; h != nil {
		return h
	}
	h, err := c.net.AddMachine("stranger", netip.MustParsePrefix("10.9.8.8/16"), netip.MustParsePrefix("fd00:9::8/32"))
	if err != nil {
		t.Fatal(err)
	}
	var routes []lab.Route
	for _, addr := range c.nodes[n1].Plan.Addrs {
		routes = append(routes, lab.Route{To: addr.Masked(), Dev: lab.Uplink})
		for _, to := range c.net.Plan.Virtual {
			if to.Addr().Is4() == addr.Addr().Is4() {
				routes = append(routes, lab.Route{To: to, Via: addr.Addr(), Dev: lab.Uplink})
			}
		}
	}
	if err := h.AddRoutes(routes...); err != nil {
		t.Fatal(err)
	}
	strangers[c] = h
	return h
}

// mentions returns nil when a node has a rule with an address in it.
func (n *node) mentions(t *testing.T, family int, addr netip.Addr) error {
	t.Helper()
	return n.hasRule(t, family, addr.String()+"/")
}

// hasRule returns nil when a rule of a node contains text.
func (n *node) hasRule(t *testing.T, family int, text string) error {
	t.Helper()
	rules, err := n.rulesWith(t, family, text)
	if err == nil && len(rules) == 0 {
		err = fmt.Errorf("no rule on %s has %q", n.Plan.Name, text)
	}
	return err
}

// hasNoRule returns nil when no rule of a node contains text.
func (n *node) hasNoRule(t *testing.T, family int, text string) error {
	t.Helper()
	rules, err := n.rulesWith(t, family, text)
	if err == nil && len(rules) > 0 {
		err = fmt.Errorf("%s has rules with %q: %q", n.Plan.Name, text, rules)
	}
	return err
}
