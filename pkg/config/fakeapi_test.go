package config

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server for lists and watches of Services, EndpointSlices and
// Nodes. It can hold a list back, end watches, and forget its history (410 Gone).
type fakeAPI struct {
	*httptest.Server
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	version int
	oldest  int // watches from before this version are answered with 410
	epoch   int // watches end when it changes
	objects map[string]map[string]runtime.Object
	events  []apiEvent
	held    map[string]bool
	queries map[string]string
	gone    int // answers of 410
	watches int // watches that were begun
	// failures are what the next requests are answered with.
	failures []http.HandlerFunc
	// stuckBefore is the number of the first watch that is told of news.
	stuckBefore int
}

type apiEvent struct {
	version  int
	resource string
	kind     string
	object   runtime.Object
}

// The resources that the fake serves, by path.
var apiPaths = map[string]string{
	"/api/v1/services": "services",
	"/api/v1/nodes":    "nodes",
	"/apis/discovery.k8s.io/v1/endpointslices": "endpointslices",
}

func newFakeAPI(t *testing.T) *fakeAPI {
	a := &fakeAPI{
		changed: make(chan struct{}),
		version: 1,
		objects: map[string]map[string]runtime.Object{"services": {}, "nodes": {}, "endpointslices": {}},
		held:    map[string]bool{},
		queries: map[string]string{},
	}
	a.Server = httptest.NewUnstartedServer(a)
	t.Cleanup(func() {
		a.endWatches()
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// client returns a clientset for the server, which it starts.
func (a *fakeAPI) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	a.Start()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: a.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// update runs f under the lock and wakes all watches.
func (a *fakeAPI) update(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// put adds or changes an object.
func (a *fakeAPI) put(obj runtime.Object) {
	a.update(func() {
		a.version++
		obj = obj.DeepCopyObject()
		resource, key := placeOf(obj)
		setVersion(obj, a.version)
		kind := "ADDED"
		if a.objects[resource][key] != nil {
			kind = "MODIFIED"
		}
		a.objects[resource][key] = obj
		a.events = append(a.events, apiEvent{a.version, resource, kind, obj})
	})
}

// remove deletes an object.
func (a *fakeAPI) remove(obj runtime.Object) {
	a.update(func() {
		a.version++
		resource, key := placeOf(obj)
		last := a.objects[resource][key].DeepCopyObject()
		setVersion(last, a.version)
		delete(a.objects[resource], key)
		a.events = append(a.events, apiEvent{a.version, resource, "DELETED", last})
	})
}

// hold makes the list of a resource wait; release lets it go.
func (a *fakeAPI) hold(resource string)    { a.update(func() { a.held[resource] = true }) }
func (a *fakeAPI) release(resource string) { a.update(func() { a.held[resource] = false }) }

// endWatches closes all watches.
func (a *fakeAPI) endWatches() { a.update(func() { a.epoch++ }) }

// fail answers the next n requests with f.
func (a *fakeAPI) fail(n int, f http.HandlerFunc) {
	a.update(func() {
		for range n {
			a.failures = append(a.failures, f)
		}
	})
}

// stick has the watches of before say nothing more, and not end.
func (a *fakeAPI) stick() { a.update(func() { a.stuckBefore = a.watches + 1 }) }

// takeFailure is what a request is to be answered with instead of the truth, or nil.
func (a *fakeAPI) takeFailure() http.HandlerFunc {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.failures) == 0 {
		return nil
	}
	f := a.failures[0]
	a.failures = a.failures[1:]
	return f
}

// forget drops the history, so that watches cannot resume.
func (a *fakeAPI) forget() {
	a.update(func() { a.version++; a.oldest = a.version; a.events = nil })
}

func (a *fakeAPI) goneAnswers() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := apiPaths[r.URL.Path]
	if resource == "" {
		http.NotFound(w, r)
		return
	}
	if fail := a.takeFailure(); fail != nil {
		fail(w, r)
		return
	}
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	a.queries[resource] = "fields=" + query.Get("fieldSelector") + " labels=" + query.Get("labelSelector")
	for a.held[resource] {
		if !a.wait(r) {
			a.mu.Unlock()
			return
		}
	}
	a.mu.Unlock()
	if query.Get("watch") == "" {
		a.list(w, resource)
		return
	}
	a.watch(w, r, resource)
}

// wait sleeps until something changes; false means the client is gone. The lock is
// held before and after.
func (a *fakeAPI) wait(r *http.Request) bool {
	changed := a.changed
	a.mu.Unlock()
	defer a.mu.Lock()
	select {
	case <-changed:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (a *fakeAPI) list(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []runtime.Object{}
	for _, obj := range a.objects[resource] {
		items = append(items, obj)
	}
	version, kind := "v1", strings.ToUpper(resource[:1])+strings.TrimSuffix(resource[1:], "s")+"List"
	if resource == "endpointslices" {
		version, kind = "discovery.k8s.io/v1", "EndpointSliceList"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)},
		"items":    items,
	})
}

// watch streams events. With sendInitialEvents it sends the state first and a
// bookmark after it, as real servers do.
func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	epoch, number := a.epoch, a.watches
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, obj := range a.objects[resource] {
			send("ADDED", obj)
		}
		send("BOOKMARK", bookmark(resource, a.version))
		from = a.version
	} else if from < a.oldest {
		a.gone++
		status := apierrors.NewResourceExpired("too old").ErrStatus
		send("ERROR", &status)
		return
	}
	for {
		for _, e := range a.events {
			if e.resource == resource && e.version > from && number >= a.stuckBefore {
				send(e.kind, e.object)
				from = e.version
			}
		}
		w.(http.Flusher).Flush()
		if !a.wait(r) || a.epoch != epoch {
			return
		}
	}
}

func bookmark(resource string, version int) runtime.Object {
	var obj runtime.Object
	switch resource {
	case "services":
		obj = &v1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	case "nodes":
		obj = &v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	default:
		obj = &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
	}
	setVersion(obj, version)
	obj.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return obj
}

func setVersion(obj runtime.Object, version int) {
	obj.(metav1.Object).SetResourceVersion(strconv.Itoa(version))
}

func placeOf(obj runtime.Object) (resource, key string) {
	switch obj := obj.(type) {
	case *v1.Service:
		return "services", keyOf(obj)
	case *v1.Node:
		return "nodes", keyOf(obj)
	case *discoveryv1.EndpointSlice:
		return "endpointslices", keyOf(obj)
	}
	return "", ""
}

func service(name string, change ...func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.80", Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}}},
	}
	for _, f := range slices.All(change) {
		f(svc)
	}
	return svc
}

func slice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns1", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.10"}}},
	}
}

func node(name string) *v1.Node {
	return &v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
}
