package config

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// labelServiceProxyName marks a Service that another proxy takes care of.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// strip is the informers' transform. It makes a small copy of an object that holds
// what the agent reads and nothing else: in a large cluster most of a Node, and the
// managedFields and annotations of everything, would only fill memory. The object
// itself stays as it is; parts that are kept whole are shared, not copied.
func strip(obj any) (any, error) {
	switch obj := obj.(type) {
	case *v1.Service:
		return stripService(obj), nil
	case *discoveryv1.EndpointSlice:
		return stripSlice(obj), nil
	case *v1.Node:
		return stripNode(obj), nil
	}
	return obj, nil
}

func stripService(svc *v1.Service) *v1.Service {
	spec := &svc.Spec
	return &v1.Service{
		ObjectMeta: stripMeta(&svc.ObjectMeta, []string{labelServiceProxyName}, nil),
		Spec: v1.ServiceSpec{
			Type:                     spec.Type,
			ClusterIP:                spec.ClusterIP,
			ClusterIPs:               spec.ClusterIPs,
			ExternalIPs:              spec.ExternalIPs,
			Ports:                    spec.Ports,
			InternalTrafficPolicy:    spec.InternalTrafficPolicy,
			ExternalTrafficPolicy:    spec.ExternalTrafficPolicy,
			HealthCheckNodePort:      spec.HealthCheckNodePort,
			LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges,
			SessionAffinity:          spec.SessionAffinity,
			SessionAffinityConfig:    spec.SessionAffinityConfig,
		},
		Status: v1.ServiceStatus{LoadBalancer: svc.Status.LoadBalancer},
	}
}

func stripSlice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: stripMeta(&slice.ObjectMeta,
			[]string{discoveryv1.LabelServiceName},
			[]string{v1.EndpointsLastChangeTriggerTime}),
		AddressType: slice.AddressType,
		Endpoints:   stripEndpoints(slice.Endpoints),
		Ports:       slice.Ports,
	}
}

// stripEndpoints keeps of each endpoint the address that counts, where it is, its
// conditions and hints. Endpoints are most of what is kept, so they share what they
// have in common: a pointer to a word of one's own takes as much as the address.
func stripEndpoints(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	kept := make([]discoveryv1.Endpoint, len(endpoints))
	addresses := make([]string, len(endpoints))
	yes, no := new(true), new(false)
	shared := func(condition *bool) *bool {
		switch {
		case condition == nil:
			return nil
		case *condition:
			return yes
		}
		return no
	}
	var node *string
	for i := range endpoints {
		e := &endpoints[i]
		if e.NodeName == nil || node == nil || *e.NodeName != *node {
			node = e.NodeName
		}
		kept[i] = discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{
				Ready:       shared(e.Conditions.Ready),
				Serving:     shared(e.Conditions.Serving),
				Terminating: shared(e.Conditions.Terminating),
			},
			NodeName: node,
			Hints:    e.Hints,
		}
		if len(e.Addresses) > 0 {
			addresses[i] = e.Addresses[0]
			kept[i].Addresses = addresses[i : i+1 : i+1]
		}
	}
	return kept
}

func stripNode(node *v1.Node) *v1.Node {
	return &v1.Node{
		ObjectMeta: stripMeta(&node.ObjectMeta, []string{v1.LabelTopologyZone}, nil),
		Spec:       v1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints},
		Status:     v1.NodeStatus{Addresses: node.Status.Addresses},
	}
}

// stripMeta keeps what tells an object from others and from its earlier selves, and
// the labels and annotations named.
func stripMeta(meta *metav1.ObjectMeta, labels, annotations []string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              meta.Name,
		Namespace:         meta.Namespace,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
		Labels:            only(meta.Labels, labels),
		Annotations:       only(meta.Annotations, annotations),
	}
}

// only returns the entries of m with the given keys; nil if there are none.
func only(m map[string]string, keys []string) map[string]string {
	var kept map[string]string
	for _, key := range keys {
		value, ok := m[key]
		if !ok {
			continue
		}
		if kept == nil {
			kept = make(map[string]string, len(keys))
		}
		kept[key] = value
	}
	return kept
}
