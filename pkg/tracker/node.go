package tracker

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// nodeFacts returns what one family needs of a Node.
func nodeFacts(node *corev1.Node, family model.Family, name string) model.NodeFacts {
	podCIDRs := node.Spec.PodCIDRs
	if len(podCIDRs) == 0 && node.Spec.PodCIDR != "" {
		podCIDRs = []string{node.Spec.PodCIDR}
	}
	return model.NodeFacts{
		Name:      name,
		Known:     true,
		Zone:      node.Labels[corev1.LabelTopologyZone],
		Addresses: nodeAddresses(node, family),
		PodCIDRs:  ranges(podCIDRs, family),
	}
}

// nodeAddresses are the node's internal addresses, then its external ones.
func nodeAddresses(node *corev1.Node, family model.Family) []netip.Addr {
	var texts []string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if a.Type == kind {
				texts = append(texts, a.Address)
			}
		}
	}
	return addresses(texts, family)
}
