package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
)

// Manifests is the Source that reads a directory of manifests (or one file) and
// follows its changes.
//
// A file that is broken, or cannot be read, is reported and its last good version
// stays in force. At the start there is no such version: then the other files work
// and this one's objects are missing.
type Manifests struct {
	path     string
	nodeName string
	files    map[string]*manifestFile
	current  delivered
}

// manifestFile is what is known of one file.
type manifestFile struct {
	// hash is of the content that was parsed last, good or not.
	hash [sha256.Size]byte
	good Objects
}

// delivered are the objects that Events knows of, by namespace and name.
type delivered struct {
	services map[string]*v1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	nodes    map[string]*v1.Node
}

// NewManifests returns a Source for the manifests at path. Of the Nodes only the one
// called nodeName is delivered.
func NewManifests(path, nodeName string) *Manifests {
	return &Manifests{path: path, nodeName: nodeName, files: make(map[string]*manifestFile)}
}

// Run delivers the objects of the manifests, and their changes, until ctx is done.
// It fails if there is nothing at the path to begin with.
func (m *Manifests) Run(ctx context.Context, ev Events) error {
	if _, err := os.Stat(m.path); err != nil {
		return fmt.Errorf("look for manifests: %w; check --manifests", err)
	}
	synced := false
	return watch(ctx, func() []string { return directoriesOf(m.path) }, func() {
		m.reload(ctx, ev)
		if synced {
			return
		}
		if synced = true; len(m.current.nodes) == 0 {
			logNoNode(ctx, m.nodeName)
		}
		ev.Synced()
	})
}

// reload reads the files that changed and delivers the difference.
func (m *Manifests) reload(ctx context.Context, ev Events) {
	logger := klog.FromContext(ctx)
	names, err := manifestFiles(m.path)
	if err != nil {
		logger.Error(err, "Cannot look for manifests; the last good ones stay in force")
		return
	}
	maps.DeleteFunc(m.files, func(name string, _ *manifestFile) bool { return !slices.Contains(names, name) })
	changed := false
	var all Objects
	for _, name := range names {
		changed = m.refresh(ctx, name) || changed
	}
	for _, name := range names {
		if file := m.files[name]; file != nil {
			if err := all.add(name, file.good); err != nil && changed {
				logger.Error(err, "An object is defined twice")
			}
		}
	}
	next := delivered{byKey(all.Services), byKey(all.EndpointSlices), byKey(all.Nodes)}
	maps.DeleteFunc(next.nodes, func(name string, _ *v1.Node) bool { return name != m.nodeName })
	m.current.update(next, ev)
}

// refresh parses a file if its content changed, and reports whether it did.
func (m *Manifests) refresh(ctx context.Context, name string) bool {
	logger := klog.FromContext(ctx).WithValues("file", name)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		logger.V(2).Info("A manifest vanished")
		delete(m.files, name)
		return true
	}
	if err != nil {
		logger.Error(err, "Cannot read a manifest; its last good version stays in force")
		return false
	}
	file := m.files[name]
	hash := sha256.Sum256(data)
	if file != nil && file.hash == hash {
		return false
	}
	if file == nil {
		file = &manifestFile{}
		m.files[name] = file
	}
	file.hash = hash
	objects, err := parseManifest(name, data)
	if err != nil {
		logger.Error(err, "A manifest is broken; its last good version stays in force")
		return true
	}
	for _, note := range objects.Notes {
		logger.Info("Note on a manifest", "note", note)
	}
	file.good = objects
	return true
}

// update delivers the difference between d and next, and makes d equal to next.
// Deletions come first, so that an address can move from one Service to another.
func (d *delivered) update(next delivered, ev Events) {
	deleteGone(d.services, next.services, ev.ServiceChanged)
	deleteGone(d.slices, next.slices, ev.EndpointSliceChanged)
	deleteGone(d.nodes, next.nodes, ev.NodeChanged)
	deliverNew(d.nodes, next.nodes, ev.NodeChanged)
	deliverNew(d.services, next.services, ev.ServiceChanged)
	deliverNew(d.slices, next.slices, ev.EndpointSliceChanged)
	*d = next
}

func deleteGone[T any](old, next map[string]*T, changed func(old, new *T)) {
	for _, key := range sortedKeys(old) {
		if next[key] == nil {
			changed(old[key], nil)
		}
	}
}

// deliverNew delivers what was added or changed. What is equal keeps its old object,
// so that receivers may hold on to it.
func deliverNew[T any](old, next map[string]*T, changed func(old, new *T)) {
	for _, key := range sortedKeys(next) {
		if before := old[key]; before != nil && equality.Semantic.DeepEqual(before, next[key]) {
			next[key] = before
			continue
		}
		changed(old[key], next[key])
	}
}

func sortedKeys[T any](m map[string]T) []string { return slices.SortedFunc(maps.Keys(m), cmp.Compare) }

func byKey[T any, P interface {
	*T
	object
}](list []P) map[string]*T {
	m := make(map[string]*T, len(list))
	for _, o := range list {
		m[keyOf(o)] = o
	}
	return m
}

// logNoNode tells loudly that the node's name is probably wrong.
func logNoNode(ctx context.Context, name string) {
	klog.FromContext(ctx).Error(nil, "There is no Node object of this name: the node's zone, addresses and pod ranges are unknown, and if the name is wrong, Services with traffic policy Local drop their traffic here; set hostnameOverride to the name that kubectl get nodes shows", "node", name)
}
