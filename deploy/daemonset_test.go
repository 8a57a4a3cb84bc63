// Package deploy tests the manifest in this directory: whether it gives the agent
// what it needs, and nothing more.
package deploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/miniproxy/miniproxy/pkg/config"
)

// manifest is daemonset.yaml.
type manifest struct {
	account   corev1.ServiceAccount
	role      rbacv1.ClusterRole
	binding   rbacv1.ClusterRoleBinding
	config    corev1.ConfigMap
	daemonSet appsv1.DaemonSet
}

// read decodes the manifest strictly: a field that the API does not have is an error.
func read(t *testing.T) *manifest {
	t.Helper()
	text, err := os.ReadFile("daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	places := map[string]any{
		"v1/ServiceAccount":                               &m.account,
		"rbac.authorization.k8s.io/v1/ClusterRole":        &m.role,
		"rbac.authorization.k8s.io/v1/ClusterRoleBinding": &m.binding,
		"v1/ConfigMap":                                    &m.config,
		"apps/v1/DaemonSet":                               &m.daemonSet,
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		name := kind.APIVersion + "/" + kind.Kind
		place := places[name]
		if place == nil {
			t.Fatalf("a second %s, or one that this test does not know", name)
		}
		if err := yaml.UnmarshalStrict(document, place); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		delete(places, name)
	}
	if len(places) > 0 {
		t.Fatalf("missing: %v", slices.Collect(maps.Keys(places)))
	}
	return &m
}

// TestReferences checks that names which must agree do.
func TestReferences(t *testing.T) {
	m := read(t)
	pod := m.daemonSet.Spec.Template
	if got := m.binding.Subjects; len(got) != 1 || got[0].Name != m.account.Name || got[0].Namespace != m.account.Namespace {
		t.Errorf("subjects of the binding: got %v, want the ServiceAccount", got)
	}
	if got := m.binding.RoleRef.Name; got != m.role.Name {
		t.Errorf("role of the binding: got %q, want %q", got, m.role.Name)
	}
	if got := pod.Spec.ServiceAccountName; got != m.account.Name {
		t.Errorf("serviceAccountName: got %q, want %q", got, m.account.Name)
	}
	for _, object := range []metav1.Object{&m.config, &m.daemonSet} {
		if object.GetNamespace() != m.account.Namespace {
			t.Errorf("namespace of %s: got %q, want %q", object.GetName(), object.GetNamespace(), m.account.Namespace)
		}
	}
	for key, want := range m.daemonSet.Spec.Selector.MatchLabels {
		if got := pod.Labels[key]; got != want {
			t.Errorf("pod label %s: got %q, want %q as in the selector", key, got, want)
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != m.config.Name {
			t.Errorf("ConfigMap of volume %s: got %q, want %q", v.Name, v.ConfigMap.Name, m.config.Name)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, mount := range c.VolumeMounts {
			if !volumes[mount.Name] {
				t.Errorf("container %s mounts %s, which is no volume", c.Name, mount.Name)
			}
			if mount.SubPath != "" {
				t.Errorf("container %s mounts %s by subPath, which never sees a change", c.Name, mount.Name)
			}
		}
	}
}

// TestArgumentsAndConfiguration lets pkg/config read what each container is started
// with: a flag or field that the agent does not know, or warns of, is a failure.
func TestArgumentsAndConfiguration(t *testing.T) {
	m := read(t)
	dir := t.TempDir()
	for name, text := range m.config.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pod := m.daemonSet.Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		t.Run(c.Name, func(t *testing.T) {
			at := slices.IndexFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool { return v.Name == "config" })
			if at < 0 {
				t.Fatal("no volume mount called config")
			}
			var args []string
			for _, arg := range c.Args {
				arg = strings.ReplaceAll(arg, c.VolumeMounts[at].MountPath, dir)
				args = append(args, strings.ReplaceAll(arg, "$(NODE_NAME)", "worker"))
			}
			set := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
			flags := config.NewFlags(set)
			if err := set.Parse(args); err != nil {
				t.Fatalf("arguments %q: %v", args, err)
			}
			got, err := flags.Config()
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Warnings) > 0 {
				t.Errorf("warnings: got %q, want none", got.Warnings)
			}
			if got.NodeName != "worker" {
				t.Errorf("node name: got %q, want worker", got.NodeName)
			}
			if init := c.Name == "init"; got.InitOnly != init {
				t.Errorf("init only: got %v, want %v", got.InitOnly, init)
			}
		})
	}
}

// TestPrivileges holds the container that stays to what iptables needs.
func TestPrivileges(t *testing.T) {
	pod := read(t).daemonSet.Spec.Template.Spec
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("got hostNetwork %v and dnsPolicy %s; the agent works on the node's network, and cannot wait for a DNS that waits for it",
			pod.HostNetwork, pod.DNSPolicy)
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("got %d containers, want 1", len(pod.Containers))
	}
	security := pod.Containers[0].SecurityContext
	if security.Privileged != nil && *security.Privileged {
		t.Error("the container that stays is privileged")
	}
	if security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
		t.Error("the container that stays may write to its root file system")
	}
	if got, want := security.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "NET_RAW"}; !slices.Equal(got, want) {
		t.Errorf("added capabilities: got %v, want %v", got, want)
	}
	if got, want := security.Capabilities.Drop, []corev1.Capability{"ALL"}; !slices.Equal(got, want) {
		t.Errorf("dropped capabilities: got %v, want %v", got, want)
	}
	if pod.Containers[0].Lifecycle != nil {
		t.Error("a lifecycle hook: the rules must outlive the agent, there is nothing to do at its end")
	}
}

// deaf hears no events.
type deaf struct{}

func (deaf) ServiceChanged(_, _ *corev1.Service)                  {}
func (deaf) EndpointSliceChanged(_, _ *discoveryv1.EndpointSlice) {}
func (deaf) NodeChanged(_, _ *corev1.Node)                        {}
func (deaf) Synced()                                              {}

// TestRoleIsWhatTheAgentAsks compares the role with the requests that the informers
// really make. Too little and the agent waits for ever; too much and a stolen token
// is worth more than it must be.
func TestRoleIsWhatTheAgentAsks(t *testing.T) {
	client := fake.NewClientset()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	// An informer lists before it watches, so all requests are made once every kind
	// of object is watched.
	var mu sync.Mutex
	watched := map[string]bool{}
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		watched[action.GetResource().Resource] = true
		if len(watched) == 3 {
			stop()
		}
		return false, nil, nil
	})
	if err := config.NewCluster(client, "worker", 0).Run(ctx, deaf{}); err != nil {
		t.Fatal(err)
	}
	// Events go through a recorder that tests cannot see into; it creates them, and
	// patches the count of one that comes again.
	want := map[string]bool{"events.k8s.io/events create": true, "events.k8s.io/events patch": true}
	for _, action := range client.Actions() {
		r := action.GetResource()
		want[r.Group+"/"+r.Resource+" "+action.GetVerb()] = true
	}
	got := map[string]bool{}
	for _, rule := range read(t).role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					got[group+"/"+resource+" "+verb] = true
				}
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("rules of the role:\n got %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
