// Package tracker turns API objects into the model and knows what changed since
// the rules were last written.
//
// Handlers tell it of every object they see; it remembers, per object, what the
// rules were made from and what the object says now. A change that is taken back
// before anybody looked is no change.
package tracker

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// Tracker follows one family of the cluster. All of its methods may be called
// concurrently.
type Tracker struct {
	family   model.Family
	nodeName string

	mu       sync.Mutex
	node     model.NodeFacts
	services map[model.ServiceName]*service
	// owners remembers which Service a slice belonged to when it was last seen.
	owners map[sliceKey]model.ServiceName
	// pendingServices and pendingEndpoints name the Services of which the object, or
	// slices, changed since the last Take.
	pendingServices  map[model.ServiceName]bool
	pendingEndpoints map[model.ServiceName]bool
	// triggers are the times at which the changes that are pending were caused.
	triggers []time.Time
	// taken says that there was a call of Take. What was there before it says when it
	// came about, which may be long ago, and is no change.
	taken bool

	applied model.Snapshot
}

// service is what is known of one Service: its ports and its slices, either of which
// may come first.
type service struct {
	ports  []model.ServicePort
	slices []*discoveryv1.EndpointSlice
	// applied names the ports that are in the snapshot.
	applied []model.ServicePortName
}

// New returns a tracker for one family on the node of the given name, which must be
// trimmed and lower-cased.
func New(family model.Family, nodeName string) *Tracker {
	node := model.NodeFacts{Name: nodeName}
	return &Tracker{
		family:   family,
		nodeName: nodeName,
		node:     node,
		services: map[model.ServiceName]*service{},
		owners:   map[sliceKey]model.ServiceName{},

		pendingServices:  map[model.ServiceName]bool{},
		pendingEndpoints: map[model.ServiceName]bool{},

		applied: model.Snapshot{
			Node:      node,
			Services:  map[model.ServicePortName]model.ServicePort{},
			Endpoints: map[model.ServicePortName][]model.Endpoint{},
		},
	}
}

// ServiceChanged takes note of a Service that was added (old is nil), changed, or
// deleted (current is nil). It reports whether the rules may have to change.
func (t *Tracker) ServiceChanged(old, current *corev1.Service) bool {
	object := cmp.Or(current, old)
	name := model.ServiceName{Namespace: object.Namespace, Name: object.Name}
	var ports []model.ServicePort
	if current != nil {
		ports = servicePorts(current, t.family)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.services[name]; slices.EqualFunc(ports, portsOf(s, ok), model.ServicePort.Equal) {
		return false
	}
	t.service(name).ports = ports
	t.pendingServices[name] = true
	return true
}

func portsOf(s *service, known bool) []model.ServicePort {
	if !known {
		return nil
	}
	return s.ports
}

// EndpointSliceChanged does the same for an EndpointSlice. The object is kept, not
// copied, and must not be changed any more.
func (t *Tracker) EndpointSliceChanged(old, current *discoveryv1.EndpointSlice) bool {
	object := cmp.Or(current, old)
	key := sliceKey{object.Namespace, object.Name}
	var owner model.ServiceName
	var counts bool
	if current != nil {
		owner, counts = ownerOf(current, t.family)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.owners[key]
	moved := known && (!counts || before != owner)
	if moved {
		t.services[before].put(key.name, nil)
		delete(t.owners, key)
		t.pendingEndpoints[before] = true
	}
	if !counts {
		return moved
	}
	last := t.service(owner).put(key.name, current)
	if last != nil && (last == current || t.parse(last).equal(t.parse(current))) {
		return moved
	}
	t.owners[key] = owner
	t.pendingEndpoints[owner] = true
	if at, ok := triggerTime(current); ok && t.taken {
		t.triggers = append(t.triggers, at)
	}
	return true
}

func (t *Tracker) parse(object *discoveryv1.EndpointSlice) slice {
	return parseSlice(object, t.family, t.nodeName)
}

// put remembers the slice of a name, nil for one that is gone, and returns what was
// there before.
func (s *service) put(name string, current *discoveryv1.EndpointSlice) (last *discoveryv1.EndpointSlice) {
	at := slices.IndexFunc(s.slices, func(o *discoveryv1.EndpointSlice) bool { return o.Name == name })
	switch {
	case at < 0 && current != nil:
		s.slices = append(s.slices, current)
	case at >= 0 && current == nil:
		last, s.slices = s.slices[at], slices.Delete(s.slices, at, at+1)
	case at >= 0:
		last, s.slices[at] = s.slices[at], current
	}
	return last
}

// NodeChanged takes note of the node. A Node object that is gone leaves what it said
// in force: the node itself is evidently still there.
func (t *Tracker) NodeChanged(_, current *corev1.Node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	facts := t.node
	facts.Known = false
	if current != nil {
		facts = nodeFacts(current, t.family, t.nodeName)
	}
	if facts.Equal(t.node) {
		return false
	}
	t.node = facts
	return true
}

// Changes is what differs between two snapshots.
type Changes struct {
	// ServicePorts are the names whose ports or endpoints differ, sorted.
	ServicePorts []model.ServicePortName
	// Triggers are the times at which the endpoint changes among them were caused, as
	// far as the API says.
	Triggers []time.Time
}

// Take brings the snapshot up to date and says what changed since the last call.
// Services and endpoints are taken at one moment, so that no change can fall
// between them. The next call changes the maps of the snapshot.
func (t *Tracker) Take() (model.Snapshot, Changes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := map[model.ServicePortName]bool{}
	for _, pending := range []map[model.ServiceName]bool{t.pendingServices, t.pendingEndpoints} {
		for name := range pending {
			t.apply(name, changed)
		}
		clear(pending)
	}
	changes := Changes{
		ServicePorts: slices.SortedFunc(maps.Keys(changed), model.ServicePortName.Compare),
		Triggers:     t.triggers,
	}
	t.triggers = nil
	t.taken = true
	t.applied.Node = t.node
	return t.applied, changes
}

// apply brings the snapshot's part for one Service up to date, and forgets the
// Service if nothing is left of it: names that come and go must not add up.
func (t *Tracker) apply(name model.ServiceName, changed map[model.ServicePortName]bool) {
	s, known := t.services[name]
	if !known {
		return
	}
	parsed := make([]slice, len(s.slices))
	for i, object := range s.slices {
		parsed[i] = t.parse(object)
	}
	gone := s.applied
	s.applied = make([]model.ServicePortName, 0, len(s.ports))
	for _, port := range s.ports {
		endpoints := merge(parsed, port.Name)
		last, known := t.applied.Services[port.Name]
		if !known || !last.Equal(port) || !slices.EqualFunc(t.applied.Endpoints[port.Name], endpoints, model.Endpoint.Equal) {
			changed[port.Name] = true
		}
		t.applied.Services[port.Name] = port
		t.applied.Endpoints[port.Name] = endpoints
		s.applied = append(s.applied, port.Name)
	}
	for _, portName := range gone {
		if !slices.Contains(s.applied, portName) {
			delete(t.applied.Services, portName)
			delete(t.applied.Endpoints, portName)
			changed[portName] = true
		}
	}
	if len(s.ports) == 0 && len(s.slices) == 0 {
		delete(t.services, name)
	}
}

// Pending is the number of Services whose object, and whose endpoints, have changes
// that nobody has taken yet.
func (t *Tracker) Pending() (services, endpoints int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pendingServices), len(t.pendingEndpoints)
}

// service returns the entry of a Service, made if need be.
func (t *Tracker) service(name model.ServiceName) *service {
	s, ok := t.services[name]
	if !ok {
		s = &service{}
		t.services[name] = s
	}
	return s
}
