package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Cluster is the Source that watches an API server.
type Cluster struct {
	nodeName string
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
}

// NewCluster returns a Source for what client sees: Services but for headless ones
// and those of other proxies, their EndpointSlices, and the Node called nodeName.
// Everything known is delivered again each resync.
func NewCluster(client kubernetes.Interface, nodeName string, resync time.Duration) *Cluster {
	return &Cluster{
		nodeName: nodeName,
		services: coreinformers.NewFilteredServiceInformer(client, metav1.NamespaceAll, resync, nil, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()
			o.LabelSelector = "!" + labelServiceProxyName
		}),
		slices: discoveryinformers.NewFilteredEndpointSliceInformer(client, metav1.NamespaceAll, resync, nil, func(o *metav1.ListOptions) {
			o.LabelSelector = "!" + v1.IsHeadlessService
		}),
		nodes: coreinformers.NewFilteredNodeInformer(client, resync, nil, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
		}),
	}
}

// Run delivers what the API server tells until ctx is done. When the API server
// goes away it keeps trying, and delivers the difference when it is back. A panic in
// ev ends the process: an event that was swallowed would leave a stale rule behind.
func (c *Cluster) Run(ctx context.Context, ev Events) error {
	d := &delivery{ev: ev}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	watched := []struct {
		resource string
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{"services", c.services, handler(d, ev.ServiceChanged)},
		{"endpointslices", c.slices, handler(d, ev.EndpointSliceChanged)},
		{"nodes", c.nodes, handler(d, ev.NodeChanged)},
	}
	var lists []initialList
	for _, w := range watched {
		registration, err := c.prepare(w.informer, w.resource, w.handler)
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.resource, err)
		}
		lists = append(lists, initialList{w.resource, registration.HasSyncedChecker().Done()})
		running.Go(func() { w.informer.RunWithContext(ctx) })
	}
	if err := awaitAll(ctx, lists); err != nil {
		return nil
	}
	if len(c.nodes.GetStore().ListKeys()) == 0 {
		logNoNode(ctx, c.nodeName)
	}
	d.synced()
	<-ctx.Done()
	return nil
}

// prepare connects an informer to its handler.
func (c *Cluster) prepare(informer cache.SharedIndexInformer, resource string, h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if err := informer.SetTransform(strip); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext((&watchErrors{resource: resource}).handle); err != nil {
		return nil, err
	}
	return informer.AddEventHandler(h)
}

// delivery makes the calls of several informers one after the other.
type delivery struct {
	mu sync.Mutex
	ev Events
}

func (d *delivery) synced() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ev.Synced()
}

// handler calls changed for the events of an informer for objects of type T.
func handler[T any](d *delivery, changed func(old, new *T)) cache.ResourceEventHandler {
	deliver := func(old, new any) {
		d.mu.Lock()
		defer d.mu.Unlock()
		changed(objectOf[T](old), objectOf[T](new))
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { deliver(nil, obj) },
		UpdateFunc: deliver,
		DeleteFunc: func(obj any) { deliver(obj, nil) },
	}
}

// objectOf returns obj as a *T. Of an object whose deletion was missed during a
// disconnection it returns the last state known. It panics on anything else, which
// would mean that the informer was made for another type.
func objectOf[T any](obj any) *T {
	if obj == nil {
		return nil
	}
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	return obj.(*T)
}

// initialList is the first list of a resource, and a channel that closes when all of
// it was delivered.
type initialList struct {
	resource  string
	delivered <-chan struct{}
}

// patience is how long the first lists may take before the agent says what it
// waits for.
const patience = 3 * time.Second

// awaitAll waits for the first lists. If they take long it says once which ones are
// missing: an agent that writes nothing must tell why. It fails only when ctx is done.
func awaitAll(ctx context.Context, lists []initialList) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for len(lists) > 0 {
		select {
		case <-lists[0].delivered:
			lists = lists[1:]
		case <-late.C:
			klog.FromContext(ctx).Info("Waiting for the first lists from the API server; no rules are written before", "missing", missing(lists))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// missing returns the resources whose lists were not delivered yet.
func missing(lists []initialList) []string {
	var resources []string
	for _, list := range lists {
		select {
		case <-list.delivered:
		default:
			resources = append(resources, list.resource)
		}
	}
	return resources
}

// watchErrors reports the failures to list or watch one resource.
type watchErrors struct {
	resource string
	// lastError and lastVersion are the failure before, and how far the resource was
	// known then.
	lastError, lastVersion string
}

// handle logs an error unless it repeats the one before with nothing learnt in
// between. The informer tries again by itself, so the same words every few seconds
// would say nothing new. It is called from one goroutine.
func (w *watchErrors) handle(ctx context.Context, r *cache.Reflector, err error) {
	logger := klog.FromContext(ctx).WithValues("resource", w.resource)
	if isRoutine(err) {
		logger.V(2).Info("Watch ended; starting again", "reason", err)
		return
	}
	version := r.LastSyncResourceVersion()
	if w.lastError == err.Error() && w.lastVersion == version {
		logger.V(2).Info("Watching the API server still fails", "err", err)
		return
	}
	w.lastError, w.lastVersion = err.Error(), version
	logger.Error(err, "Watching the API server failed; trying again, and the rules stay as they are")
}

// isRoutine reports whether a watch ended in a way that every watch ends in sooner or
// later: the server closed it, or forgot the version it was at (410 Gone).
func isRoutine(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
