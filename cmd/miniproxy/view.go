package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// view is what a command sees of the cluster, as the agent would see it.
type view struct {
	config *config.Config
	// source says where it comes from.
	source   string
	trackers map[model.Family]*tracker.Tracker
	listed   chan struct{}

	mu   sync.Mutex
	node *corev1.Node
}

func newView(c *config.Config) *view {
	v := &view{config: c, trackers: map[model.Family]*tracker.Tracker{}, listed: make(chan struct{})}
	for _, family := range model.Families {
		v.trackers[family] = tracker.New(family, c.NodeName)
	}
	return v
}

// viewOf returns the view of some objects.
func viewOf(c *config.Config, objects config.Objects) *view {
	v := newView(c)
	for _, node := range objects.Nodes {
		if node.Name == c.NodeName {
			v.NodeChanged(nil, node)
		}
	}
	for _, svc := range objects.Services {
		v.ServiceChanged(nil, svc)
	}
	for _, slice := range objects.EndpointSlices {
		v.EndpointSliceChanged(nil, slice)
	}
	v.Synced()
	return v
}

// ServiceChanged implements config.Events.
func (v *view) ServiceChanged(old, current *corev1.Service) {
	old, current = allowed(v.config, old), allowed(v.config, current)
	for _, t := range v.trackers {
		t.ServiceChanged(old, current)
	}
}

// EndpointSliceChanged implements config.Events.
func (v *view) EndpointSliceChanged(old, current *discoveryv1.EndpointSlice) {
	for _, t := range v.trackers {
		t.EndpointSliceChanged(old, current)
	}
}

// NodeChanged implements config.Events.
func (v *view) NodeChanged(old, current *corev1.Node) {
	v.mu.Lock()
	v.node = current
	v.mu.Unlock()
	for _, t := range v.trackers {
		t.NodeChanged(old, current)
	}
}

// Synced implements config.Events.
func (v *view) Synced() { close(v.listed) }

// snapshot is what the agent would render now.
func (v *view) snapshot(family model.Family) model.Snapshot {
	snapshot, _ := v.trackers[family].Take()
	return snapshot
}

// hasNode reports whether there is a Node object of this node's name.
func (v *view) hasNode() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.node != nil
}

// hasSCTP reports whether a Service has a port of SCTP.
func (v *view) hasSCTP() bool {
	for _, family := range model.Families {
		for name := range v.snapshot(family).Services {
			if name.Protocol == model.SCTP {
				return true
			}
		}
	}
	return false
}

// hasWhatItNeeds says what the agent would wait for before it writes any rule.
func (v *view) hasWhatItNeeds() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if needsPodCIDR(v.config, v.node) {
		return fmt.Errorf("the agent writes no rules yet: detectLocalMode NodeCIDR needs a podCIDR, and there is none on a Node %q", v.config.NodeName)
	}
	return nil
}

// sight returns the view of the cluster as it is at the moment of the call.
type sight func() (*view, error)

// lookAtCluster returns how to see what the agent of the configuration would see: the
// given files, its manifests, or the API server, which may take some time to list
// everything. It follows the API server until the context ends.
func lookAtCluster(ctx context.Context, c *config.Config, files []string, patience time.Duration) (sight, error) {
	if len(files) == 0 && c.Manifests != "" {
		files = []string{c.Manifests}
	}
	if len(files) > 0 {
		return func() (*view, error) {
			objects, err := config.ReadManifests(files...)
			if err != nil {
				return nil, err
			}
			v := viewOf(c, objects)
			v.source = "manifests in " + strings.Join(files, ", ")
			return v, nil
		}, nil
	}
	v, err := watchCluster(ctx, c, patience)
	return func() (*view, error) { return v, nil }, err
}

// watchCluster returns a view that follows the API server until the context ends.
func watchCluster(ctx context.Context, c *config.Config, patience time.Duration) (*view, error) {
	reasons := &lastError{}
	ctx = klog.NewContext(ctx, logr.New(reasons))
	rest, err := config.Connect(ctx, c.API)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	v := newView(c)
	v.source = rest.Host
	ended := make(chan error, 1)
	go func() { ended <- config.NewCluster(client, c.NodeName, c.API.Resync).Run(ctx, v) }()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-v.listed:
		return v, nil
	case err := <-ended:
		return nil, errors.Join(err, ctx.Err())
	case <-late.C:
		return nil, fmt.Errorf("the API server has not listed everything within %v: %w", patience, reasons.last())
	}
}

// lastError is where logs go that a command does not show, but for the last error,
// which says why it waits in vain.
type lastError struct {
	mu  sync.Mutex
	err error
}

// Init implements logr.LogSink.
func (*lastError) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (*lastError) Enabled(int) bool { return false }

// Info implements logr.LogSink.
func (*lastError) Info(int, string, ...any) {}

// Error implements logr.LogSink.
func (l *lastError) Error(err error, _ string, _ ...any) {
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.err = err
	}
}

// WithValues implements logr.LogSink.
func (l *lastError) WithValues(...any) logr.LogSink { return l }

// WithName implements logr.LogSink.
func (l *lastError) WithName(string) logr.LogSink { return l }

// last is the last error.
func (l *lastError) last() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return errors.New("it says nothing")
	}
	return l.err
}
