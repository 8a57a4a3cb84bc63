package examples_test

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/examples"
	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// rendered are the chains of manifests on a node, both families together.
func rendered(t *testing.T, node string, files ...string) []ruleset.Chain {
	t.Helper()
	objects, err := config.ReadManifests(files...)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects.Notes) > 0 {
		t.Errorf("notes on %v: %v", files, objects.Notes)
	}
	var all []ruleset.Chain
	for _, family := range model.Families {
		tr := tracker.New(family, node)
		for _, object := range objects.Nodes {
			if object.Name == node {
				tr.NodeChanged(nil, object)
			}
		}
		for _, svc := range objects.Services {
			tr.ServiceChanged(nil, svc)
		}
		for _, slice := range objects.EndpointSlices {
			tr.EndpointSliceChanged(nil, slice)
		}
		snapshot, _ := tr.Take()
		chains, conflicts := render.Snapshot(snapshot, render.Options{
			Family:         family,
			Node:           snapshot.Node,
			MasqueradeMark: 1 << 14,
			NodePorts:      render.NodePortAddresses{All: true},
		})
		if len(conflicts) > 0 {
			t.Errorf("%v: Services claim the same address: %v", files, conflicts)
		}
		all = append(all, chains...)
	}
	return all
}

func manifests(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(examples.FS, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestHeadersTellTheTruth looks for the chains that the comment at the head of each
// file tells the reader to look for.
func TestHeadersTellTheTruth(t *testing.T) {
	mentioned := regexp.MustCompile(`KUBE-[A-Z]+(-[A-Z]+)*`)
	for _, name := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			text, err := fs.ReadFile(examples.FS, name)
			if err != nil {
				t.Fatal(err)
			}
			head, _, _ := strings.Cut(string(text), "\napiVersion:")
			filled := map[string]bool{}
			for _, c := range slices.Concat(rendered(t, "n1", name), rendered(t, "n2", name)) {
				if len(c.Rules) > 0 {
					filled[c.Name] = true
				}
			}
			names := slices.Sorted(maps.Keys(filled))
			for _, want := range mentioned.FindAllString(head, -1) {
				if !slices.ContainsFunc(names, func(got string) bool {
					return got == want || strings.HasPrefix(got, want+"-")
				}) {
					t.Errorf("the comment speaks of %s; chains with rules are %v", want, names)
				}
			}
			if name != "nodes.yaml" && !strings.Contains(head, "#     iptables") {
				t.Error("the comment says nothing of what to look for")
			}
		})
	}
}

// TestDirectory runs all examples together, as miniproxy --manifests examples does.
func TestDirectory(t *testing.T) {
	rendered(t, "n1", ".")
	files, err := fs.Glob(os.DirFS("."), "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := manifests(t); !slices.Equal(got, files) {
		t.Errorf("embedded are %v, want %v", got, files)
	}
	for _, name := range examples.Demo() {
		if !slices.Contains(files, name) {
			t.Errorf("the demo wants %s, which is none of %v", name, files)
		}
	}
}
