package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
)

// apiServer is as much of an API server as node agents use: it streams the state of a
// resource and then its changes, in protobuf, as a watch with sendInitialEvents does
// (KEP 3157). Selectors are not looked at: all objects of the load match those that the
// agents use. It is the same for all programs, and so cheap that it does not compete
// with them for the CPU: an object is encoded once.
type apiServer struct {
	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each change
	version   int
	resources map[string]*resource
}

// resource holds the objects of one type as the frames of a watch.
type resource struct {
	// bookmark is an empty object of the type.
	bookmark metav1.Object
	// state is one frame for each object, in the order that they came; index is by key.
	state [][]byte
	index map[string]int
	// changes are the frames of all changes since the start.
	changes [][]byte
}

func newAPIServer(l load) (*apiServer, error) {
	a := &apiServer{changed: make(chan struct{}), version: 1, resources: map[string]*resource{
		"/api/v1/nodes":    {bookmark: &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}},
		"/api/v1/services": {bookmark: &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}},
		"/apis/discovery.k8s.io/v1/endpointslices": {bookmark: &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}},
		"/apis/networking.k8s.io/v1/servicecidrs":  {bookmark: &networkingv1.ServiceCIDR{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}}},
	}}
	objects := []runtime.Object{node(), service("probe", probeService), slice("probe", probeEndpoints[0])}
	for i := range l.services {
		name := fmt.Sprintf("service-%05d", i)
		pods := make([]netip.Addr, l.endpoints)
		for j := range pods {
			pods[j] = podAddr(i*l.endpoints + j)
		}
		objects = append(objects, service(name, serviceAddr(i)), slice(name, pods...))
	}
	for _, obj := range objects {
		if err := a.put(obj); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// pathOf is where objects of a type are served.
func pathOf(obj runtime.Object) string {
	switch obj.(type) {
	case *corev1.Node:
		return "/api/v1/nodes"
	case *corev1.Service:
		return "/api/v1/services"
	default:
		return "/apis/discovery.k8s.io/v1/endpointslices"
	}
}

// put adds or replaces an object and wakes the watches.
func (a *apiServer) put(obj runtime.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	meta := obj.(metav1.Object)
	meta.SetResourceVersion(strconv.Itoa(a.version))
	added, err := frame(watch.Added, obj)
	if err != nil {
		return err
	}
	r, key := a.resources[pathOf(obj)], meta.GetNamespace()+"/"+meta.GetName()
	at, exists := r.index[key]
	if !exists {
		if r.index == nil {
			r.index = map[string]int{}
		}
		r.index[key] = len(r.state)
		r.state = append(r.state, added)
		r.changes = append(r.changes, added)
	} else {
		modified, err := frame(watch.Modified, obj)
		if err != nil {
			return err
		}
		r.state[at] = added
		r.changes = append(r.changes, modified)
	}
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// frame is one event of a watch: its length in four bytes, then the event.
func frame(kind watch.EventType, obj runtime.Object) ([]byte, error) {
	var raw bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(obj, &raw); err != nil {
		return nil, fmt.Errorf("encode an object for the API server: %w", err)
	}
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw.Bytes()}}
	b := make([]byte, 4+event.Size())
	n, err := event.MarshalTo(b[4:])
	if err != nil {
		return nil, fmt.Errorf("encode an event for the API server: %w", err)
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	return b[:4+n], nil
}

// ServeHTTP answers a watch that asks for the initial state. Events that an agent
// reports are taken and forgotten, and there is nothing else.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res := a.resources[r.URL.Path]
	switch {
	case r.Method == http.MethodPost:
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body) // an agent that does not wait for it is free to go
	case res == nil || r.URL.Query().Get("sendInitialEvents") != "true":
		http.NotFound(w, r)
	default:
		a.watch(w, r, res)
	}
}

// watch returns when the agent has gone.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, res *resource) {
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	frames, seen, changed, err := a.initial(res)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for {
		for _, f := range frames {
			if _, err := w.Write(f); err != nil {
				return
			}
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
		frames, seen, changed = res.changes[seen:], len(res.changes), a.changed
		a.mu.Unlock()
	}
}

// initial returns the frames of the state with the bookmark that ends it, how many
// changes that state has seen, and what is closed at the next one.
func (a *apiServer) initial(res *resource) (frames [][]byte, seen int, changed <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	end := res.bookmark.(runtime.Object).DeepCopyObject()
	end.(metav1.Object).SetResourceVersion(strconv.Itoa(a.version))
	end.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	bookmark, err := frame(watch.Bookmark, end)
	return append(append(frames, res.state...), bookmark), len(res.changes), a.changed, err
}
