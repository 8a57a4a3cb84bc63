package tracker

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// ports parses a Service that has one port, or none.
func ports(svc *corev1.Service, family model.Family) model.ServicePort {
	all := servicePorts(svc, family)
	if len(all) == 0 {
		return model.ServicePort{}
	}
	return all[0]
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestServiceFields(t *testing.T) {
	loadBalancer := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 32000
	}
	ingress := func(all ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = all }
	}
	ranges := func(all ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = all }
	}
	affinity := func(config *corev1.SessionAffinityConfig) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, config
		}
	}
	tests := []struct {
		name   string
		change func(*corev1.Service)
		got    func(model.ServicePort) any
		want   any
	}{
		{"B-08 ranges with spaces, and of the other family", ranges(" 10.9.0.0/16 ", "fd00:9::/64"),
			func(p model.ServicePort) any { return p.SourceRanges }, prefixes("10.9.0.0/16")},
		{"B-08 ranges of the other family only", ranges("fd00:9::/64"),
			func(p model.ServicePort) any { return len(p.SourceRanges) }, 0},
		{"B-08 ranges that are none", ranges("", "anything", "10.9.0.0", "10.9.0.0/33", "/"),
			func(p model.ServicePort) any { return len(p.SourceRanges) }, 0},
		{"range that holds everybody", ranges("10.9.0.0/16", "0.0.0.0/0"),
			func(p model.ServicePort) any { return len(p.SourceRanges) }, 0},
		{"range that holds everybody is one of the family", ranges("0.0.0.0/0"),
			func(p model.ServicePort) any { return p.RangesOfOtherFamily }, false},
		{"B-08 ranges of the other family only are none of this one", ranges("fd00:9::/64"),
			func(p model.ServicePort) any { return p.RangesOfOtherFamily }, true},
		{"range that holds everybody of the other family", ranges("10.9.0.0/16", "::/0"),
			func(p model.ServicePort) any { return p.SourceRanges }, prefixes("10.9.0.0/16")},
		{"item 13 range with host bits", ranges("10.9.1.2/16"),
			func(p model.ServicePort) any { return p.SourceRanges }, prefixes("10.9.0.0/16")},
		{"item 13 range with leading zeros", ranges("010.009.000.000/16"),
			func(p model.ServicePort) any { return p.SourceRanges }, prefixes("10.9.0.0/16")},
		{"item 13 range in IPv6 form", ranges("::ffff:10.9.0.0/112"),
			func(p model.ServicePort) any { return p.SourceRanges }, prefixes("10.9.0.0/16")},

		{"B-10 ipMode Proxy", ingress(corev1.LoadBalancerIngress{IP: "10.50.0.10", IPMode: new(corev1.LoadBalancerIPModeProxy)}),
			func(p model.ServicePort) any { return len(p.LoadBalancerVIPs) }, 0},
		{"B-10 ipMode VIP", ingress(corev1.LoadBalancerIngress{IP: "10.50.0.10", IPMode: new(corev1.LoadBalancerIPModeVIP)}),
			func(p model.ServicePort) any { return p.LoadBalancerVIPs }, addrs("10.50.0.10")},
		{"B-10 no ipMode, and a host name", ingress(corev1.LoadBalancerIngress{IP: "10.50.0.10"}, corev1.LoadBalancerIngress{Hostname: "lb.example"}),
			func(p model.ServicePort) any { return p.LoadBalancerVIPs }, addrs("10.50.0.10")},
		{"B-36 VIP of the other family", ingress(corev1.LoadBalancerIngress{IP: "fd00:50::10"}, corev1.LoadBalancerIngress{IP: "10.50.0.10"}),
			func(p model.ServicePort) any { return p.LoadBalancerVIPs }, addrs("10.50.0.10")},
		{"B-36 external IPs of the other family", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"fd00:60::10", "10.60.0.10"} },
			func(p model.ServicePort) any { return p.ExternalIPs }, addrs("10.60.0.10")},
		{"item 13 external IPs in old spellings", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"010.060.000.010", "::ffff:10.60.0.11"} },
			func(p model.ServicePort) any { return p.ExternalIPs }, addrs("10.60.0.10", "10.60.0.11")},
		{"item 13 cluster IP in an old spelling", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"010.096.000.080"} },
			func(p model.ServicePort) any { return p.ClusterIP }, addrs("10.96.0.80")[0]},

		{"no session affinity", func(*corev1.Service) {},
			func(p model.ServicePort) any { return p.AffinityTimeout }, time.Duration(0)},
		{"B-71 session affinity without a timeout", affinity(nil),
			func(p model.ServicePort) any { return p.AffinityTimeout }, 10800 * time.Second},
		{"B-71 session affinity with half a configuration", affinity(&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{}}),
			func(p model.ServicePort) any { return p.AffinityTimeout }, 10800 * time.Second},
		{"B-71 session affinity for 2 s", affinity(&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(2))}}),
			func(p model.ServicePort) any { return p.AffinityTimeout }, 2 * time.Second},

		{"health check node port", loadBalancer,
			func(p model.ServicePort) any { return p.HealthCheckNodePort }, uint16(32000)},
		{"health check node port of policy Cluster", func(s *corev1.Service) {
			loadBalancer(s)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}, func(p model.ServicePort) any { return p.HealthCheckNodePort }, uint16(0)},
		{"external Local", loadBalancer,
			func(p model.ServicePort) any { return p.ExternalLocal }, true},
		{"external Local of external IPs", func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"10.60.0.10"}
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, func(p model.ServicePort) any { return p.ExternalLocal }, true},
		{"external Local of a Service without external addresses", func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, func(p model.ServicePort) any { return p.ExternalLocal }, false},
		{"internal Local", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) },
			func(p model.ServicePort) any { return p.InternalLocal }, true},
		{"no protocol", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" },
			func(p model.ServicePort) any { return p.Name.Protocol }, model.TCP},
		{"creation time", func(s *corev1.Service) { s.CreationTimestamp = at(7) },
			func(p model.ServicePort) any { return p.Created.Equal(at(7).Time) }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.got(ports(newService(test.change), model.IPv4)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestServiceFamilies(t *testing.T) {
	dual := newService(func(s *corev1.Service) {
		s.Spec.ClusterIPs = []string{"fd00:96::80", "10.96.0.80"}
		s.Spec.LoadBalancerSourceRanges = []string{" 10.9.0.0/16 ", "fd00:9::/64"}
		s.Spec.ExternalIPs = []string{"10.60.0.10", "fd00:60::10"}
	})
	four, six := ports(dual, model.IPv4), ports(dual, model.IPv6)
	if four.ClusterIP != addrs("10.96.0.80")[0] || six.ClusterIP != addrs("fd00:96::80")[0] {
		t.Errorf("cluster IPs are %s and %s", four.ClusterIP, six.ClusterIP)
	}
	if got, want := six.SourceRanges, prefixes("fd00:9::/64"); !reflect.DeepEqual(got, want) {
		t.Errorf("B-08 IPv6 source ranges are %v, want %v", got, want)
	}
	if got, want := six.ExternalIPs, addrs("fd00:60::10"); !reflect.DeepEqual(got, want) {
		t.Errorf("IPv6 external IPs are %v, want %v", got, want)
	}
	single := newService(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"fd00:60::10"} })
	if got := servicePorts(single, model.IPv6); got != nil {
		t.Errorf("B-36 a Service without an IPv6 cluster IP has IPv6 ports %v", got)
	}
}

func TestServicesWithoutRules(t *testing.T) {
	tests := []struct {
		name   string
		change func(*corev1.Service)
	}{
		{"headless", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		}},
		{"no cluster IP yet", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }},
		{"ExternalName", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }},
		{"no ports", func(s *corev1.Service) { s.Spec.Ports = nil }},
		{"port 0", func(s *corev1.Service) { s.Spec.Ports[0].Port = 0 }},
		{"port beyond all ports", func(s *corev1.Service) { s.Spec.Ports[0].Port = 65536 + 80 }},
		{"cluster IP that is none", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0"} }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, family := range model.Families {
				if got := servicePorts(newService(test.change), family); len(got) != 0 {
					t.Errorf("%s ports %v, want none", family, got)
				}
			}
		})
	}
	old := newService(func(s *corev1.Service) { s.Spec.ClusterIPs = nil })
	if got := ports(old, model.IPv4).ClusterIP; got != addrs("10.96.0.80")[0] {
		t.Errorf("cluster IP of a Service from before clusterIPs is %s", got)
	}
}

func TestParseAddr(t *testing.T) {
	tests := []struct{ text, want string }{
		{"10.244.1.10", "10.244.1.10"},
		{" 10.244.1.10\n", "10.244.1.10"},
		{"010.244.001.010", "10.244.1.10"},
		{"000.000.000.000", "0.0.0.0"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"fd00::1", "fd00::1"},
		{"FD00:0::0001", "fd00::1"},
		{"", ""},
		{"...", ""},
		{"10.0.0.", ""},
		{"10.0.0.256", ""},
		{"10.0.0.0256", ""},
		{"10.0.0.1/24", ""},
		{"10.0.0.1:80", ""},
		{"fe80::1%eth0", ""},
		{"None", ""},
	}
	for _, test := range tests {
		got := ""
		if addr := parseAddr(test.text); addr.IsValid() {
			got = addr.String()
		}
		if got != test.want {
			t.Errorf("parseAddr(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}

func ExampleTracker() {
	tracker := New(model.IPv4, "n1")
	tracker.ServiceChanged(nil, newService())
	tracker.EndpointSliceChanged(nil, newSlice("s-1", ready("10.244.1.10")))
	snapshot, changes := tracker.Take()
	fmt.Println(changes.ServicePorts, "->", snapshot.Endpoints[changes.ServicePorts[0]][0].Addr)
	// Output: [ns1/s:http] -> 10.244.1.10:8080
}
