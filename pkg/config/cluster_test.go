package config

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// runSource runs a Source until the test ends.
func runSource(t *testing.T, source Source, ev Events) {
	t.Helper()
	background(t, t.Context(), func(ctx context.Context) error { return source.Run(ctx, ev) })
}

func TestClusterDeliversInitialListsThenChanges(t *testing.T) {
	api := newFakeAPI(t)
	api.put(service("s"))
	api.put(slice("s-1"))
	api.put(node("n1"))
	ev := newRecorder(t)
	runSource(t, NewCluster(api.client(t), "n1", time.Hour), ev)

	calls := ev.await("synced")
	slices.Sort(calls[:len(calls)-1])
	if want := []string{"+node n1", "+service ns1/s", "+slice ns1/s-1", "synced"}; !slices.Equal(calls, want) {
		t.Fatalf("got %q, want %q with synced last", calls, want)
	}
	api.put(service("s", func(s *v1.Service) { s.Spec.ClusterIP = "10.96.0.81" }))
	api.put(service("t"))
	api.remove(slice("s-1"))
	api.remove(node("n1"))
	calls = ev.await("~service ns1/s", "+service ns1/t", "-slice ns1/s-1", "-node n1")
	if slices.Contains(calls, "synced") {
		t.Errorf("synced a second time: %q", calls)
	}
	if got := ev.service("ns1/s").Spec.ClusterIP; got != "10.96.0.81" {
		t.Errorf("got cluster IP %s after the change, want 10.96.0.81", got)
	}
}

// TestClusterSyncedWaitsForEveryList covers B-61: nothing is complete while one list
// is missing.
func TestClusterSyncedWaitsForEveryList(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		t.Run(resource, func(t *testing.T) {
			api := newFakeAPI(t)
			all := map[string]string{"services": "+service ns1/s", "endpointslices": "+slice ns1/s-1", "nodes": "+node n1"}
			api.put(service("s"))
			api.put(slice("s-1"))
			api.put(node("n1"))
			api.hold(resource)
			ev := newRecorder(t)
			runSource(t, NewCluster(api.client(t), "n1", time.Hour), ev)
			last := all[resource]
			delete(all, resource)
			var others []string
			for _, call := range all {
				others = append(others, call)
			}
			if calls := ev.await(others...); slices.Contains(calls, "synced") {
				t.Fatalf("synced without %s: %q", resource, calls)
			}
			api.release(resource)
			if calls, want := ev.await("synced"), []string{last, "synced"}; !slices.Equal(calls, want) {
				t.Errorf("got %q, want %q", calls, want)
			}
		})
	}
}

func TestClusterWithoutNodeIsComplete(t *testing.T) {
	api := newFakeAPI(t)
	api.put(service("s"))
	ev := newRecorder(t)
	runSource(t, NewCluster(api.client(t), "n1", time.Hour), ev)
	if calls, want := ev.await("synced"), []string{"+service ns1/s", "synced"}; !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q", calls, want)
	}
	api.put(node("n1"))
	ev.await("+node n1")
}

func TestClusterSelectors(t *testing.T) {
	api := newFakeAPI(t)
	ev := newRecorder(t)
	runSource(t, NewCluster(api.client(t), "n1", time.Hour), ev)
	ev.await("synced")
	want := map[string]string{
		"services":       "fields=spec.clusterIP!=None labels=!service.kubernetes.io/service-proxy-name",
		"endpointslices": "fields= labels=!service.kubernetes.io/headless",
		"nodes":          "fields=metadata.name=n1 labels=",
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for resource, query := range want {
		if got := api.queries[resource]; got != query {
			t.Errorf("%s: got %q, want %q", resource, got, query)
		}
	}
}

// TestClusterCatchesUp covers the second half of B-62: a watch that ended, and one
// that cannot resume (410 Gone), both end in the state of the API server, with the
// last known state of what was deleted meanwhile.
func TestClusterCatchesUp(t *testing.T) {
	api := newFakeAPI(t)
	api.put(service("s"))
	api.put(service("t"))
	ev := newRecorder(t)
	runSource(t, NewCluster(api.client(t), "n1", time.Hour), ev)
	ev.await("synced")

	api.endWatches()
	api.put(service("u"))
	ev.await("+service ns1/u")

	// A watch that delivered something resumes where it was; one that did not lists anew.
	api.put(service("w"))
	ev.await("+service ns1/w")
	// The deletion is never seen by a watch: the list that follows does not have t.
	api.mu.Lock()
	delete(api.objects["services"], "ns1/t")
	api.mu.Unlock()
	api.forget()
	api.endWatches()
	ev.await("-service ns1/t")
	if api.goneAnswers() == 0 {
		t.Error("no watch was answered with 410, so this tested nothing")
	}
	api.put(service("v"))
	ev.await("+service ns1/v")
}

// TestClusterResync holds that everything is delivered again from time to time.
func TestClusterResync(t *testing.T) {
	api := newFakeAPI(t)
	api.put(service("s"))
	ev := newRecorder(t)
	runSource(t, NewCluster(api.client(t), "n1", time.Second), ev)
	ev.await("synced")
	ev.await("~service ns1/s")
}

// TestHandlerPanicEndsProcess covers B-62: a swallowed panic left a stale endpoint
// behind. The test runs itself as a process of its own, which must die.
func TestHandlerPanicEndsProcess(t *testing.T) {
	const child = "MINIPROXY_TEST_PANIC"
	if os.Getenv(child) != "" {
		api := newFakeAPI(t)
		api.put(service("s"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		t.Log("survived: ", NewCluster(api.client(t), "n1", time.Hour).Run(ctx, panicking{newRecorder(t)}))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHandlerPanicEndsProcess$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "panic: this handler is broken") || strings.Contains(string(out), "survived") {
		t.Errorf("got %v, want a process killed by the panic:\n%s", err, out)
	}
}

type panicking struct{ *recorder }

func (panicking) ServiceChanged(_, _ *v1.Service) { panic("this handler is broken") }

func TestAwaitAllSaysOnceWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, lines := logged(t)
		here, late := make(chan struct{}), make(chan struct{})
		close(here)
		time.AfterFunc(time.Hour, func() { close(late) })
		if err := awaitAll(ctx, []initialList{{"services", late}, {"nodes", here}}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for len(lines) > 0 {
			got = append(got, <-lines)
		}
		if len(got) != 1 || !strings.Contains(got[0], `"missing"=["services"]`) {
			t.Errorf("got lines %q, want one that names services only", got)
		}
	})
}

func TestAwaitAllEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitAll(ctx, []initialList{{"services", make(chan struct{})}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestWatchErrorsAreNotRepeated holds that an outage is logged once, and again after
// something was learnt in between.
func TestWatchErrorsAreNotRepeated(t *testing.T) {
	ctx, lines := logged(t)
	refused, cut := errors.New("connection refused"), io.ErrUnexpectedEOF
	reflector := cache.NewReflector(&cache.ListWatch{}, &v1.Service{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0)
	w := &watchErrors{resource: "services"}
	steps := []struct {
		err  error
		loud bool
	}{{cut, false}, {refused, true}, {refused, false}, {errors.New("forbidden"), true}, {refused, true}, {refused, false}}
	for i, step := range steps {
		w.handle(ctx, reflector, step.err)
		if line := receive(t, lines); strings.Contains(line, "the rules stay as they are") != step.loud {
			t.Errorf("step %d (%v): got %s, want an error line: %v", i, step.err, line, step.loud)
		}
	}
	w.lastVersion = "before"
	w.handle(ctx, reflector, refused)
	if line := receive(t, lines); !strings.Contains(line, "the rules stay as they are") {
		t.Errorf("after a time that worked: got %s, want an error line", line)
	}
}

func TestObjectOf(t *testing.T) {
	svc := service("s")
	tests := []struct {
		name string
		obj  any
		want *v1.Service
	}{
		{"nothing", nil, nil},
		{"object", svc, svc},
		{"tombstone", cache.DeletedFinalStateUnknown{Key: "ns1/s", Obj: svc}, svc},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := objectOf[v1.Service](tt.obj); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestIsRoutine(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"closed by the server", io.EOF, true},
		{"cut off", io.ErrUnexpectedEOF, true},
		{"refused", errors.New("connection refused"), false},
	}
	for _, tt := range tests {
		if got := isRoutine(tt.err); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestStrip holds that what the agent reads is kept, that the rest is dropped, and
// that the object itself is not changed (B-33).
func TestStrip(t *testing.T) {
	now := metav1.Now()
	meta := func(label string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "a", Namespace: "ns1", UID: "u", ResourceVersion: "7", CreationTimestamp: now, DeletionTimestamp: &now, Generation: 3,
			Labels:        map[string]string{label: "kept", "app": "dropped"},
			Annotations:   map[string]string{v1.EndpointsLastChangeTriggerTime: "then", "other": "dropped"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			Finalizers:    []string{"f"},
		}
	}
	kept := func(label string, annotations map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "a", Namespace: "ns1", UID: "u", ResourceVersion: "7", CreationTimestamp: now, DeletionTimestamp: &now,
			Labels: map[string]string{label: "kept"}, Annotations: annotations,
		}
	}
	taints := []v1.Taint{{Key: "t"}}
	addresses := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}}
	hints := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
	conditions := discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false)}
	endpoints := []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.1.10", "10.244.1.11"}, NodeName: new("n1"), Conditions: conditions, TargetRef: &v1.ObjectReference{Name: "p"}},
		{Addresses: []string{"10.244.1.12"}, NodeName: new("n1"), Hostname: new("h"), Zone: new("z"), Hints: hints},
		{NodeName: new("n2")},
		{Addresses: []string{"10.244.1.13"}},
	}
	keptEndpoints := []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.1.10"}, NodeName: new("n1"), Conditions: conditions},
		{Addresses: []string{"10.244.1.12"}, NodeName: new("n1"), Hints: hints},
		{NodeName: new("n2")},
		{Addresses: []string{"10.244.1.13"}},
	}
	tests := []struct {
		name     string
		in, want any
	}{
		{
			"Service",
			&v1.Service{ObjectMeta: meta(labelServiceProxyName), Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"a": "b"}}, Status: v1.ServiceStatus{Conditions: []metav1.Condition{{}}}},
			&v1.Service{ObjectMeta: kept(labelServiceProxyName, nil), Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1"}},
		},
		{
			"EndpointSlice",
			&discoveryv1.EndpointSlice{ObjectMeta: meta(discoveryv1.LabelServiceName), AddressType: "IPv4", Endpoints: endpoints},
			&discoveryv1.EndpointSlice{ObjectMeta: kept(discoveryv1.LabelServiceName, map[string]string{v1.EndpointsLastChangeTriggerTime: "then"}), AddressType: "IPv4", Endpoints: keptEndpoints},
		},
		{
			"Node",
			&v1.Node{ObjectMeta: meta(v1.LabelTopologyZone), Spec: v1.NodeSpec{PodCIDR: "c", PodCIDRs: []string{"c"}, Taints: taints, ProviderID: "p"}, Status: v1.NodeStatus{Addresses: addresses, Images: []v1.ContainerImage{{}}}},
			&v1.Node{ObjectMeta: kept(v1.LabelTopologyZone, nil), Spec: v1.NodeSpec{PodCIDR: "c", PodCIDRs: []string{"c"}, Taints: taints}, Status: v1.NodeStatus{Addresses: addresses}},
		},
		{"anything else", "text", "text"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var before any = tt.in
			if obj, ok := tt.in.(interface{ DeepCopyObject() any }); ok {
				before = obj.DeepCopyObject()
			}
			got, err := strip(tt.in)
			if err != nil || !equality.Semantic.DeepEqual(got, tt.want) {
				t.Errorf("got %+v (%v), want %+v", got, err, tt.want)
			}
			if !equality.Semantic.DeepEqual(before, tt.in) {
				t.Errorf("the object was changed: %+v", tt.in)
			}
			if again, _ := strip(got); !equality.Semantic.DeepEqual(again, got) {
				t.Errorf("a second strip changes more: %+v", again)
			}
		})
	}
}
