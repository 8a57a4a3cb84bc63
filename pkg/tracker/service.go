package tracker

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// servicePorts returns what one family needs of a Service, by port; none for a
// Service that has no cluster IP of the family, is headless or only a name.
func servicePorts(svc *corev1.Service, family model.Family) []model.ServicePort {
	clusterIP := clusterIP(svc, family)
	if svc.Spec.Type == corev1.ServiceTypeExternalName || !clusterIP.IsValid() || !hasUsableName(svc) {
		return nil
	}
	given := ranges(svc.Spec.LoadBalancerSourceRanges, family)
	shared := model.ServicePort{
		UID:              string(svc.UID),
		ClusterIP:        clusterIP,
		ExternalIPs:      addresses(svc.Spec.ExternalIPs, family),
		LoadBalancerVIPs: loadBalancerVIPs(svc, family),
		SourceRanges:     sourceRanges(given),
		InternalLocal:    isInternalLocal(svc),
		ExternalLocal:    isExternalLocal(svc),
		AffinityTimeout:  affinityTimeout(svc),
		Created:          svc.CreationTimestamp.Time,

		RangesOfOtherFamily: len(svc.Spec.LoadBalancerSourceRanges) > 0 && len(given) == 0,
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && shared.ExternalLocal {
		shared.HealthCheckNodePort = portNumber(svc.Spec.HealthCheckNodePort)
	}
	ports := make([]model.ServicePort, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		number := portNumber(p.Port)
		if number == 0 || !isProtocol(p.Protocol) {
			continue
		}
		port := shared
		port.Name = model.ServicePortName{
			ServiceName: model.ServiceName{Namespace: svc.Namespace, Name: svc.Name},
			Port:        p.Name,
			Protocol:    protocol(p.Protocol),
		}
		port.Port = number
		port.NodePort = portNumber(p.NodePort)
		ports = append(ports, port)
	}
	return ports
}

func clusterIP(svc *corev1.Service, family model.Family) netip.Addr {
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	for _, addr := range addresses(ips, family) {
		return addr
	}
	return netip.Addr{}
}

// loadBalancerVIPs are the ingress addresses that nodes answer on themselves. With
// ipMode Proxy the load balancer wants to see the traffic first (KEP-1860); one
// that is known by a host name only is none of the node's business.
func loadBalancerVIPs(svc *corev1.Service, family model.Family) []netip.Addr {
	var ips []string
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IP != "" && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) {
			ips = append(ips, ingress.IP)
		}
	}
	return addresses(ips, family)
}

// sourceRanges are whom a load balancer IP lets in, of the ranges that are given. One
// that holds every address asks for no firewall, as if none were given.
func sourceRanges(given []netip.Prefix) []netip.Prefix {
	if slices.ContainsFunc(given, func(r netip.Prefix) bool { return r.Bits() == 0 }) {
		return nil
	}
	return given
}

func isInternalLocal(svc *corev1.Service) bool {
	policy := svc.Spec.InternalTrafficPolicy
	return policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
}

func isExternalLocal(svc *corev1.Service) bool {
	external := svc.Spec.Type == corev1.ServiceTypeLoadBalancer || svc.Spec.Type == corev1.ServiceTypeNodePort ||
		len(svc.Spec.ExternalIPs) > 0
	return external && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func affinityTimeout(svc *corev1.Service) time.Duration {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// Unfit says which parts of a Service get no rules although they ask for some. No API
// server lets such a Service in; if one comes all the same, no other Service is to
// suffer from it.
func Unfit(svc *corev1.Service) error {
	if !hasUsableName(svc) {
		return fmt.Errorf("the name %q in the namespace %q could be taken for that of another Service's port", svc.Name, svc.Namespace)
	}
	var errs []error
	for _, p := range svc.Spec.Ports {
		if portNumber(p.Port) == 0 || !isProtocol(p.Protocol) {
			errs = append(errs, fmt.Errorf("port %q: there is no %s port %d", p.Name, protocol(p.Protocol), p.Port))
		}
	}
	return errors.Join(errs...)
}

// hasUsableName reports whether "namespace/name:port", from which chains have their
// names, belongs to this Service alone.
func hasUsableName(svc *corev1.Service) bool {
	return !strings.ContainsAny(svc.Namespace, "/:") && !strings.ContainsAny(svc.Name, "/:")
}

// isProtocol reports whether rules can tell the protocol's ports apart.
func isProtocol(p corev1.Protocol) bool {
	switch protocol(p) {
	case model.TCP, model.UDP, model.SCTP:
		return true
	}
	return false
}

// protocol fills in the API's default.
func protocol(p corev1.Protocol) model.Protocol {
	if p == "" {
		return model.TCP
	}
	return model.Protocol(p)
}

// portNumber returns 0 for what is no port number.
func portNumber(n int32) uint16 {
	if n < 0 || n > 65535 {
		return 0
	}
	return uint16(n)
}

// addresses returns those of the texts that are addresses of the family.
func addresses(texts []string, family model.Family) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if addr := parseAddr(text); family.Has(addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// ranges returns those of the texts that are ranges of the family, masked.
func ranges(texts []string, family model.Family) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range texts {
		if prefix := parsePrefix(text); family.Has(prefix.Addr()) {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// parseAddr reads an address in any spelling that the API still holds: old
// releases took leading zeros, read as decimal, and IPv4 in IPv6 form. It returns
// the zero Addr for anything else.
func parseAddr(text string) netip.Addr {
	text = strings.TrimSpace(text)
	addr, err := netip.ParseAddr(text)
	if err != nil {
		addr, err = netip.ParseAddr(withoutLeadingZeros(text))
	}
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}
	}
	return addr.Unmap()
}

// parsePrefix does the same for a range.
func parsePrefix(text string) netip.Prefix {
	text = strings.TrimSpace(text)
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		prefix, err = netip.ParsePrefix(withoutLeadingZeros(text))
	}
	if err != nil {
		return netip.Prefix{}
	}
	if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked()
}

// withoutLeadingZeros spells 010.244.001.010 as 10.244.1.10.
func withoutLeadingZeros(text string) string {
	address, length, isRange := strings.Cut(text, "/")
	parts := strings.Split(address, ".")
	for i, part := range parts {
		for len(part) > 1 && part[0] == '0' {
			part = part[1:]
		}
		parts[i] = part
	}
	address = strings.Join(parts, ".")
	if isRange {
		address += "/" + length
	}
	return address
}
