package config

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The words the API takes.
var (
	serviceTypes     = []v1.ServiceType{v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName}
	protocols        = []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}
	affinities       = []v1.ServiceAffinity{v1.ServiceAffinityNone, v1.ServiceAffinityClientIP}
	internalPolicies = []v1.ServiceInternalTrafficPolicy{v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal}
	externalPolicies = []v1.ServiceExternalTrafficPolicy{v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal}
	addressTypes     = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}
)

// validateService finds what the API server would refuse, as far as it matters for
// the rules, and what only an API server would fill in.
func validateService(svc *v1.Service, path *field.Path) field.ErrorList {
	spec, specPath := &svc.Spec, path.Child("spec")
	errs := validateName(svc.Namespace, svc.Name, path)
	errs = append(errs, oneOf(specPath.Child("type"), spec.Type, serviceTypes)...)
	if spec.Type == v1.ServiceTypeExternalName {
		return errs
	}
	errs = append(errs, validateClusterIPs(spec, specPath)...)
	errs = append(errs, validateServicePorts(spec, specPath)...)
	errs = append(errs, oneOf(specPath.Child("sessionAffinity"), spec.SessionAffinity, affinities)...)
	if spec.SessionAffinity == v1.ServiceAffinityClientIP {
		errs = append(errs, within(specPath.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, 1, 86400)...)
	}
	errs = append(errs, oneOf(specPath.Child("internalTrafficPolicy"), *spec.InternalTrafficPolicy, internalPolicies)...)
	if hasExternalTraffic(spec) {
		errs = append(errs, oneOf(specPath.Child("externalTrafficPolicy"), spec.ExternalTrafficPolicy, externalPolicies)...)
	}
	errs = append(errs, within(specPath.Child("healthCheckNodePort"), spec.HealthCheckNodePort, 0, 65535)...)
	for i, text := range spec.ExternalIPs {
		errs = append(errs, validateIP(specPath.Child("externalIPs").Index(i), text)...)
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validateCIDR(specPath.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(text))...)
	}
	for i, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			errs = append(errs, validateIP(path.Child("status", "loadBalancer", "ingress").Index(i).Child("ip"), ingress.IP)...)
		}
	}
	return errs
}

func validateClusterIPs(spec *v1.ServiceSpec, path *field.Path) field.ErrorList {
	if spec.ClusterIP == v1.ClusterIPNone {
		return nil
	}
	if spec.ClusterIP == "" {
		return field.ErrorList{field.Required(path.Child("clusterIP"), "there is no API server to allocate one: write an address, for example 10.96.0.80, or None")}
	}
	var errs field.ErrorList
	list := path.Child("clusterIPs")
	if spec.ClusterIPs[0] != spec.ClusterIP {
		errs = append(errs, field.Invalid(list.Index(0), spec.ClusterIPs[0], "must be the same as spec.clusterIP"))
	}
	for i, text := range spec.ClusterIPs {
		errs = append(errs, validateIP(list.Index(i), text)...)
	}
	families := familiesOf(spec.ClusterIPs)
	if len(spec.ClusterIPs) > 2 || len(families) == 2 && families[0] == families[1] {
		errs = append(errs, field.Invalid(list, spec.ClusterIPs, "at most one address of each family is possible"))
	}
	return errs
}

func validateServicePorts(spec *v1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := path.Child("ports")
	if len(spec.Ports) == 0 && spec.ClusterIP != v1.ClusterIPNone {
		errs = append(errs, field.Required(list, "a Service needs a port"))
	}
	type number struct {
		protocol v1.Protocol
		port     int32
	}
	names, numbers := map[string]bool{}, map[number]bool{}
	for i, port := range spec.Ports {
		at := list.Index(i)
		errs = append(errs, within(at.Child("port"), port.Port, 1, 65535)...)
		errs = append(errs, oneOf(at.Child("protocol"), port.Protocol, protocols)...)
		errs = append(errs, validateNodePort(spec, port, at.Child("nodePort"))...)
		errs = append(errs, validatePortName(at.Child("name"), port.Name, len(spec.Ports) > 1, names)...)
		if n := (number{port.Protocol, port.Port}); numbers[n] {
			errs = append(errs, field.Duplicate(at.Child("port"), port.Port))
		} else {
			numbers[n] = true
		}
	}
	return errs
}

func validateNodePort(spec *v1.ServiceSpec, port v1.ServicePort, path *field.Path) field.ErrorList {
	switch {
	case port.NodePort == 0 && spec.Type == v1.ServiceTypeNodePort:
		return field.ErrorList{field.Required(path, "there is no API server to allocate one: write a number, usually from 30000 to 32767")}
	case port.NodePort != 0 && spec.Type == v1.ServiceTypeClusterIP:
		return field.ErrorList{field.Forbidden(path, "a Service of type ClusterIP has no node ports: set spec.type to NodePort")}
	}
	return within(path, port.NodePort, 0, 65535)
}

// validatePortName checks a port's name and remembers it in names.
func validatePortName(path *field.Path, name string, isRequired bool, names map[string]bool) field.ErrorList {
	var errs field.ErrorList
	switch {
	case name == "" && isRequired:
		errs = append(errs, field.Required(path, "each of several ports needs a name"))
	case name == "":
	case names[name]:
		errs = append(errs, field.Duplicate(path, name))
	default:
		for _, text := range validation.IsDNS1123Label(name) {
			errs = append(errs, field.Invalid(path, name, text))
		}
	}
	names[name] = true
	return errs
}

// validateSlice finds what the API server would refuse, as far as it matters for the
// rules.
func validateSlice(slice *discoveryv1.EndpointSlice, path *field.Path) field.ErrorList {
	errs := validateName(slice.Namespace, slice.Name, path)
	errs = append(errs, oneOf(path.Child("addressType"), slice.AddressType, addressTypes)...)
	names := map[string]bool{}
	for i, port := range slice.Ports {
		at := path.Child("ports").Index(i)
		errs = append(errs, oneOf(at.Child("protocol"), *port.Protocol, protocols)...)
		if port.Port != nil {
			errs = append(errs, within(at.Child("port"), *port.Port, 1, 65535)...)
		}
		if names[*port.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), *port.Name))
		}
		names[*port.Name] = true
	}
	for i, endpoint := range slice.Endpoints {
		at := path.Child("endpoints").Index(i).Child("addresses")
		if len(endpoint.Addresses) == 0 {
			errs = append(errs, field.Required(at, "an endpoint needs an address"))
		}
		for j, text := range endpoint.Addresses {
			errs = append(errs, validateEndpointAddress(at.Index(j), text, slice.AddressType)...)
		}
	}
	return errs
}

func validateEndpointAddress(path *field.Path, text string, want discoveryv1.AddressType) field.ErrorList {
	if want == discoveryv1.AddressTypeFQDN {
		return nil
	}
	if errs := validateIP(path, text); len(errs) > 0 {
		return errs
	}
	families := familiesOf([]string{text})
	if slices.Contains(addressTypes, want) && string(families[0]) != string(want) {
		return field.ErrorList{field.Invalid(path, text, "is not an address of addressType "+string(want))}
	}
	return nil
}

// validateNode checks what is read of a Node.
func validateNode(node *v1.Node, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, text := range validation.IsDNS1123Subdomain(node.Name) {
		errs = append(errs, field.Invalid(path.Child("metadata", "name"), node.Name, text))
	}
	if node.Spec.PodCIDR != "" {
		errs = append(errs, validateCIDR(path.Child("spec", "podCIDR"), node.Spec.PodCIDR)...)
	}
	for i, text := range node.Spec.PodCIDRs {
		errs = append(errs, validateCIDR(path.Child("spec", "podCIDRs").Index(i), text)...)
	}
	for i, address := range node.Status.Addresses {
		if address.Type == v1.NodeInternalIP || address.Type == v1.NodeExternalIP {
			errs = append(errs, validateIP(path.Child("status", "addresses").Index(i).Child("address"), address.Address)...)
		}
	}
	return errs
}

// validateName checks the name and namespace of an object; both end up in comments
// of rules and in the hashes of chain names.
func validateName(namespace, name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, text := range validation.IsDNS1123Label(namespace) {
		errs = append(errs, field.Invalid(path.Child("metadata", "namespace"), namespace, text))
	}
	for _, text := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path.Child("metadata", "name"), name, text))
	}
	return errs
}

func validateIP(path *field.Path, text string) field.ErrorList {
	if addr, err := netip.ParseAddr(text); err != nil || addr.Zone() != "" {
		return field.ErrorList{field.Invalid(path, text, "must be an IP address")}
	}
	return nil
}

func validateCIDR(path *field.Path, text string) field.ErrorList {
	if _, err := netip.ParsePrefix(text); err != nil {
		return field.ErrorList{field.Invalid(path, text, "must be a CIDR, for example 10.0.0.0/8")}
	}
	return nil
}

func within(path *field.Path, value, least, most int32) field.ErrorList {
	if value < least || value > most {
		return field.ErrorList{field.Invalid(path, value, validation.InclusiveRangeError(int(least), int(most)))}
	}
	return nil
}

func oneOf[T ~string](path *field.Path, value T, words []T) field.ErrorList {
	if slices.Contains(words, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, words)}
}
