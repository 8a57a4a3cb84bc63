package config

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// defaultService fills in what the API server would. What it would allocate (cluster
// IPs, node ports) nobody allocates here.
func defaultService(svc *v1.Service) {
	spec := &svc.Spec
	setDefault(&svc.Namespace, metav1.NamespaceDefault)
	setDefault(&spec.Type, v1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		port := &spec.Ports[i]
		setDefault(&port.Protocol, v1.ProtocolTCP)
		setDefault(&port.TargetPort, intstr.FromInt32(port.Port))
	}
	setDefault(&spec.SessionAffinity, v1.ServiceAffinityNone)
	if spec.SessionAffinity == v1.ServiceAffinityClientIP {
		setDefault(&spec.SessionAffinityConfig, &v1.SessionAffinityConfig{})
		setDefault(&spec.SessionAffinityConfig.ClientIP, &v1.ClientIPConfig{})
		setDefault(&spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, new(v1.DefaultClientIPServiceAffinitySeconds))
	}
	if spec.Type == v1.ServiceTypeExternalName {
		return
	}
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = familiesOf(spec.ClusterIPs)
	}
	setDefault(&spec.InternalTrafficPolicy, new(v1.ServiceInternalTrafficPolicyCluster))
	if hasExternalTraffic(spec) {
		setDefault(&spec.ExternalTrafficPolicy, v1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type == v1.ServiceTypeLoadBalancer {
		setDefault(&spec.AllocateLoadBalancerNodePorts, new(true))
		for i := range svc.Status.LoadBalancer.Ingress {
			if ingress := &svc.Status.LoadBalancer.Ingress[i]; ingress.IP != "" {
				setDefault(&ingress.IPMode, new(v1.LoadBalancerIPModeVIP))
			}
		}
	}
}

// hasExternalTraffic reports whether an external traffic policy has a meaning.
func hasExternalTraffic(spec *v1.ServiceSpec) bool {
	return spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer || len(spec.ExternalIPs) > 0
}

// familiesOf returns the families of those texts that are addresses.
func familiesOf(addresses []string) []v1.IPFamily {
	var families []v1.IPFamily
	for _, text := range addresses {
		switch addr, err := netip.ParseAddr(text); {
		case err != nil:
		case addr.Unmap().Is4():
			families = append(families, v1.IPv4Protocol)
		default:
			families = append(families, v1.IPv6Protocol)
		}
	}
	return families
}

// defaultSlice fills in what the API server would. Conditions stay unset: what that
// means is for the reader of the slice to know.
func defaultSlice(slice *discoveryv1.EndpointSlice) {
	setDefault(&slice.Namespace, metav1.NamespaceDefault)
	for i := range slice.Ports {
		setDefault(&slice.Ports[i].Name, new(""))
		setDefault(&slice.Ports[i].Protocol, new(v1.ProtocolTCP))
	}
}
