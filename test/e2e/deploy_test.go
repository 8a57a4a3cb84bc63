package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// The agent's ServiceAccount in deploy/.
const (
	deployFile     = "../../deploy/daemonset.yaml"
	agentNamespace = metav1.NamespaceSystem
	agentAccount   = "miniproxy"
)

// applyDeploy applies deploy/daemonset.yaml, whole, and gives each node's agent a
// token of its ServiceAccount: what the shipped roles do not allow, the agents of
// these tests cannot do. No pod comes of it: nothing here runs DaemonSets.
func (c *cluster) applyDeploy(ctx context.Context) error {
	if err := c.apply(ctx, deployFile, false); err != nil {
		return err
	}
	if *agentFlag == agentKubeProxy {
		if err := c.grantKubeProxyRole(ctx); err != nil {
			return err
		}
	}
	day := int64(24 * 60 * 60)
	for _, n := range c.nodes {
		token, err := c.client().CoreV1().ServiceAccounts(agentNamespace).CreateToken(ctx, agentAccount,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}},
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := c.cp.writeKubeconfig(n.kubeconfig, token.Status.Token); err != nil {
			return err
		}
	}
	return nil
}

// grantKubeProxyRole lets the real kube-proxy, in the agent's place, do what it does
// in a real cluster.
func (c *cluster) grantKubeProxyRole(ctx context.Context) error {
	_, err := c.client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-kube-proxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: agentNamespace, Name: agentAccount}},
	}, metav1.CreateOptions{})
	return err
}

// apply applies every object of a YAML file from the server's side, with strict
// checks of its fields. A dry run changes nothing.
func (c *cluster) apply(ctx context.Context, file string, dryRun bool) error {
	objects, err := readObjects(file)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(c.cp.config)
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(c.cp.config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	options := metav1.PatchOptions{FieldManager: "e2e", FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	for _, obj := range objects {
		kind := obj.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var client dynamic.ResourceInterface = dyn.Resource(mapping.Resource)
		if ns := obj.GetNamespace(); ns != "" {
			client = dyn.Resource(mapping.Resource).Namespace(ns)
		}
		data, err := obj.MarshalJSON()
		if err != nil {
			return err
		}
		if _, err := client.Patch(ctx, obj.GetName(), types.ApplyPatchType, data, options); err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, obj.GetName(), err)
		}
	}
	return nil
}

// readObjects reads the documents of a YAML file.
func readObjects(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var objects []*unstructured.Unstructured
	for {
		var obj unstructured.Unstructured
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", file, len(objects)+1, err)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, &obj)
		}
	}
}

// The API server takes the shipped manifest: as a dry run, as a change to what is
// there already, and the DaemonSet's pod by itself, which meets admission as well.
func TestDeployManifest(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		for _, dryRun := range []bool{true, false} {
			if err := c.apply(t.Context(), deployFile, dryRun); err != nil {
				t.Errorf("dry run %v: %v", dryRun, err)
			}
		}
		sets := c.client().AppsV1().DaemonSets(agentNamespace)
		set, err := sets.Get(t.Context(), agentAccount, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		pod.Name = "from-template"
		created, err := c.client().CoreV1().Pods(agentNamespace).Create(t.Context(), pod,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		if got := created.Spec.Priority; got == nil || *got != systemNodeCritical {
			t.Errorf("the pod's priority is %v, want %d (system-node-critical)", got, systemNodeCritical)
		}
	})
}

// systemNodeCritical is the highest priority there is.
const systemNodeCritical = 2_000_001_000

// The shipped roles let the agent do what it does, and no more than that.
func TestShippedRoles(t *testing.T) {
	tests := []struct {
		access
		allowed bool
	}{
		{access{"list", "", "services"}, true},
		{access{"watch", "", "services"}, true},
		{access{"list", "discovery.k8s.io", "endpointslices"}, true},
		{access{"watch", "discovery.k8s.io", "endpointslices"}, true},
		{access{"list", "", "nodes"}, true},
		{access{"watch", "", "nodes"}, true},
		{access{"create", "events.k8s.io", "events"}, true},
		{access{"update", "", "services"}, false},
		{access{"patch", "", "nodes"}, false},
		{access{"delete", "discovery.k8s.io", "endpointslices"}, false},
		{access{"get", "", "secrets"}, false},
		{access{"list", "", "pods"}, false},
		{access{"get", "", "configmaps"}, false},
		{access{"create", "", "pods"}, false},
	}
	onBothBackends(t, func(t *testing.T, c *cluster) {
		notForKubeProxy(t, "kube-proxy was granted more")
		for _, tt := range tests {
			review, err := c.client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:   fmt.Sprintf("system:serviceaccount:%s:%s", agentNamespace, agentAccount),
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + agentNamespace, "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Verb: tt.verb, Group: tt.group, Resource: tt.resource,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := review.Status.Allowed; got != tt.allowed {
				t.Errorf("%s %s in group %q: allowed %v, want %v", tt.verb, tt.resource, tt.group, got, tt.allowed)
			}
		}
		for _, n := range c.nodes {
			log, err := os.ReadFile(n.log())
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, "forbidden") {
					t.Errorf("the agent on %s was refused something: %s", n.Plan.Name, line)
				}
			}
		}
	})
}
