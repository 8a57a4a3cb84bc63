package tracker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

func newNode(changes ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:244:1::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n1"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "fd00::1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.11"},
		}},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func TestNode(t *testing.T) {
	known := func(change func(*model.NodeFacts)) model.NodeFacts {
		facts := model.NodeFacts{
			Name: thisNode, Known: true, Zone: "zone-a",
			Addresses: addrs("10.0.0.1", "10.0.0.11", "192.0.2.1"),
			PodCIDRs:  prefixes("10.244.1.0/24"),
		}
		change(&facts)
		return facts
	}
	tests := []struct {
		name   string
		family model.Family
		change func(*corev1.Node)
		want   model.NodeFacts
	}{
		{"internal addresses before external ones", model.IPv4, func(*corev1.Node) {}, known(func(*model.NodeFacts) {})},
		{"IPv6", model.IPv6, func(*corev1.Node) {}, known(func(f *model.NodeFacts) {
			f.Addresses, f.PodCIDRs = addrs("fd00::1"), prefixes("fd00:244:1::/64")
		})},
		{"podCIDR alone", model.IPv4, func(n *corev1.Node) { n.Spec.PodCIDRs = nil }, known(func(*model.NodeFacts) {})},
		{"no podCIDR", model.IPv4, func(n *corev1.Node) { n.Spec = corev1.NodeSpec{} }, known(func(f *model.NodeFacts) { f.PodCIDRs = nil })},
		{"no labels", model.IPv4, func(n *corev1.Node) { n.Labels = nil }, known(func(f *model.NodeFacts) { f.Zone = "" })},
		{"no addresses", model.IPv4, func(n *corev1.Node) { n.Status.Addresses = nil }, known(func(f *model.NodeFacts) { f.Addresses = nil })},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tracker := New(test.family, thisNode)
			tracker.NodeChanged(nil, newNode(test.change))
			snapshot, _ := tracker.Take()
			if !snapshot.Node.Equal(test.want) {
				t.Errorf("node facts %+v, want %+v", snapshot.Node, test.want)
			}
		})
	}
}

func TestNodeLife(t *testing.T) {
	tracker := New(model.IPv4, thisNode)
	snapshot, _ := tracker.Take()
	if want := (model.NodeFacts{Name: thisNode}); !snapshot.Node.Equal(want) {
		t.Errorf("B-64 before any Node: %+v, want %+v", snapshot.Node, want)
	}
	tracker.NodeChanged(nil, newNode())
	moved := newNode(func(n *corev1.Node) { n.Status.Addresses[3].Address = "10.0.0.3" })
	if !tracker.NodeChanged(newNode(), moved) {
		t.Error("B-64 a changed address is not reported")
	}
	snapshot, changes := tracker.Take()
	if got := snapshot.Node.Primary(); got != addrs("10.0.0.3")[0] {
		t.Errorf("B-64 primary address is %s, want the new one", got)
	}
	if len(changes.ServicePorts) != 0 {
		t.Errorf("a change of the node is taken for one of %v", changes.ServicePorts)
	}
	relabelled := newNode(func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "zone-b" })
	if !tracker.NodeChanged(moved, relabelled) {
		t.Error("B-74 a changed zone label is not reported")
	}
	before, _ := tracker.Take()
	want := before.Node
	want.Known = false
	tracker.NodeChanged(relabelled, nil)
	snapshot, _ = tracker.Take()
	if !snapshot.Node.Equal(want) {
		t.Errorf("B-64 after the Node is gone: %+v, want what it said: %+v", snapshot.Node, want)
	}
}
