package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/examples"
	"github.com/miniproxy/miniproxy/pkg/lab"
)

func manifest(t *testing.T, name string) string {
	t.Helper()
	text, err := examples.FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestManifestsFitTheWorld compares what the demo builds with what the manifests say.
func TestManifestsFitTheWorld(t *testing.T) {
	nodes := map[string]lab.NodePlan{}
	for _, n := range lab.DefaultPlan().Nodes {
		nodes[n.Name] = n
	}
	var endpoints strings.Builder
	for _, p := range webPods() {
		fmt.Fprintf(&endpoints, `  - addresses: [%s]
    nodeName: %s
    targetRef: {kind: Pod, namespace: default, name: %s}
    conditions: {ready: true, serving: true, terminating: false}
`, nodes[p.node].PodAddrs(p.number)[0], p.node, p.name)
	}
	for name, wants := range map[string][]string{
		"01-clusterip.yaml": {"name: web\n", "clusterIP: " + clusterIP + "\n", fmt.Sprintf("port: %d}", podPort), endpoints.String()},
		"02-nodeport.yaml":  {"name: shop\n", fmt.Sprintf("nodePort: %d}", nodePort), fmt.Sprintf("port: %d}", podPort), endpoints.String()},
		"nodes.yaml":        {"name: n1\n", "name: n2\n", "address: 10.0.0.1}", "address: 10.0.0.2}", "podCIDR: 10.244.1.0/24\n", "podCIDR: 10.244.2.0/24\n"},
	} {
		if !slices.Contains(examples.Demo(), name) {
			t.Errorf("the demo runs %v, want %s among them", examples.Demo(), name)
		}
		text := manifest(t, name)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
	}
}

func TestDropEndpoint(t *testing.T) {
	text := manifest(t, "01-clusterip.yaml")
	tests := []struct {
		name string
		addr string
		want []string
	}{
		{"the first one", "10.244.1.11", []string{"web-b", "web-c"}},
		{"one in the middle", "10.244.1.12", []string{"web-a", "web-c"}},
		{"the last one", "10.244.2.11", []string{"web-a", "web-b"}},
		{"none", "10.244.1.1", []string{"web-a", "web-b", "web-c"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := dropEndpoint(text, tt.addr)
			var names []string
			for _, p := range webPods() {
				if strings.Contains(got, "name: "+p.name+"}") {
					names = append(names, p.name)
				}
			}
			if !slices.Equal(names, tt.want) {
				t.Errorf("endpoints left = %v, want %v", names, tt.want)
			}
			if lost, want := strings.Count(text, "\n")-strings.Count(got, "\n"), 4*(3-len(tt.want)); lost != want {
				t.Errorf("%d lines lost, want %d", lost, want)
			}
		})
	}
}

func TestMissingError(t *testing.T) {
	tests := []struct {
		name string
		err  MissingError
		want []string
	}{
		{"not root", MissingError{Root: true}, []string{"root", "sudo"}},
		{"commands", MissingError{Commands: []string{"curl", "iptables"}}, []string{"curl, iptables", "hack/setup.sh"}},
		{"both", MissingError{Root: true, Commands: []string{"ip"}}, []string{"ip", "root"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, want := range tt.want {
				if got := tt.err.Error(); !strings.Contains(got, want) || strings.Contains(got, "\n") {
					t.Errorf("error = %q, want one line with %q", got, want)
				}
			}
		})
	}
}
