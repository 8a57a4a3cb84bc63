package proxier

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
	"github.com/miniproxy/miniproxy/test/seed"
)

// cluster is what an API server holds, and an agent that follows it.
type cluster struct {
	*host
	*rand.Rand
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *corev1.Node
	step     int
}

// newCluster returns one without objects.
func newCluster(h *host, random *rand.Rand) *cluster {
	return &cluster{
		host:     h,
		Rand:     random,
		services: map[string]*corev1.Service{},
		slices:   map[string]*discoveryv1.EndpointSlice{},
	}
}

// TestIncrementalEqualsFull puts an agent through thousands of random events and
// faults. After every sync that succeeds the kernel holds what an agent would write
// that starts at that moment, and between two transactions no packet meets a rule
// that was not right before and is not right in the end (B-37).
func TestIncrementalEqualsFull(t *testing.T) {
	steps := 1000
	if testing.Short() {
		steps = 200
	}
	for _, jumpsFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("jumps first: %v", jumpsFirst), func(t *testing.T) {
			c := newCluster(newHost(t), seed.Rand(t))
			c.proxier.settings.JumpsFirst = jumpsFirst
			for c.step = range steps / 2 {
				for range 1 + c.IntN(4) {
					c.change()
				}
				if c.IntN(10) == 0 {
					c.disturb()
				}
				c.follow()
				if t.Failed() {
					t.Fatalf("in step %d", c.step)
				}
			}
		})
	}
}

// follow syncs, until it succeeds if faults were planted.
func (c *cluster) follow() {
	c.t.Helper()
	failed := false
	for range 10 {
		c.proxier.settings.Chunk, c.proxier.settings.Parallel = 1+c.IntN(20), 1+c.IntN(3)
		before := c.rules()
		var states []ruleset.Ruleset
		switch c.IntN(5) { // it takes long
		case 0:
			c.afterRestore = func() { states = append(states, c.rules()) }
		case 1:
			c.afterRestore = c.changeMeanwhile
		}
		err := c.proxier.Sync(c.context())
		c.afterRestore = nil
		if failed && !c.last.Full {
			c.t.Error("B-40 the sync after a failed one was not full")
		}
		if err == nil && states == nil {
			// What happened meanwhile may have come after the last chunk.
			err = c.proxier.Sync(c.context())
		}
		if err == nil {
			c.mustEqualFreshStart()
			c.mustEqualFresh()
			c.mustNotTear(before, states)
			return
		}
		failed = true
		c.kernel.SetLocked(false)
	}
	c.t.Error("no sync succeeded")
}

// changeMeanwhile makes random events between two transactions of a sync.
func (c *cluster) changeMeanwhile() {
	if c.IntN(3) == 0 {
		c.change()
	}
}

// mustEqualFreshStart compares with what an agent would write that is told of the
// objects as they are now.
func (c *cluster) mustEqualFreshStart() {
	c.t.Helper()
	fresh := tracker.New(model.IPv4, "n1")
	if c.node != nil {
		fresh.NodeChanged(nil, c.node)
	}
	for _, slice := range c.slices {
		fresh.EndpointSliceChanged(nil, slice)
	}
	for _, svc := range c.services {
		fresh.ServiceChanged(nil, svc)
	}
	snapshot, _ := fresh.Take()
	opts := c.options
	opts.Node = snapshot.Node
	chains, conflicts := render.Snapshot(snapshot, opts)
	want := ruleset.Ruleset{}
	for i := range chains {
		want[chains[i].ChainID] = &chains[i]
	}
	have := c.ours()
	for id := range have {
		if render.Shares(id) && want[id] == nil {
			delete(have, id)
		}
	}
	for _, diff := range ruleset.Diff(have, want) {
		c.t.Errorf("the kernel differs from what a fresh start would write: %v", diff)
	}
	if !slices.Equal(c.last.Conflicts, conflicts) {
		c.t.Errorf("conflicts %v, want %v", c.last.Conflicts, conflicts)
	}
}

// isJumpTarget reports whether a jump rule leads to a chain.
func isJumpTarget(id ruleset.ChainID) bool {
	return slices.ContainsFunc(render.Hooks(), func(h ruleset.Hook) bool {
		return h.From.Table == id.Table && h.Rule.Target() == id.Name
	})
}

// mustNotTear checks the states between the transactions of a sync.
func (c *cluster) mustNotTear(before ruleset.Ruleset, states []ruleset.Ruleset) {
	c.t.Helper()
	after := c.rules()
	for i, state := range states {
		for id := range reach(state) {
			if before[id] == nil && len(state[id].Rules) == 0 && isJumpTarget(id) {
				continue // a jump to an empty chain does what no jump did
			}
			if text := chainText(state, id); text != chainText(before, id) && text != chainText(after, id) {
				c.t.Errorf("after restore %d of %d %s is reachable and says\n%s", i+1, len(states), id, text)
			}
		}
	}
}

// change makes one random event.
func (c *cluster) change() {
	name := fmt.Sprintf("s%d", c.IntN(12))
	switch c.IntN(12) {
	case 0:
		c.setService(name, nil)
	case 1, 2, 3:
		c.setService(name, c.randomService(name))
	case 4:
		c.setSlice(name+c.oneOf("-1", "-2"), nil)
	case 5:
		c.options.MasqueradeAll = !c.options.MasqueradeAll
	case 6:
		c.options.FlatDispatch, c.options.FlatBalance, c.options.CommentLimit = c.IntN(20), c.IntN(5), c.IntN(15)
	case 7:
		c.options.NodePorts = render.NodePortAddresses{All: c.IntN(2) == 0, Loopback: true}
	case 8:
		c.setNode()
	default:
		slice := c.randomSlice(name)
		slice.Name = name + c.oneOf("-1", "-2")
		c.setSlice(slice.Name, slice)
	}
}

// disturb makes something go wrong.
func (c *cluster) disturb() {
	switch c.IntN(8) {
	case 0:
		c.kernel.FailNext(4, lockHeld)
	case 1:
		c.kernel.FailNext(1, "iptables-restore: line 2 failed")
		c.kernel.FailNext(2, "Error occurred at line: 1")
	case 2:
		c.kernel.SetLocked(true)
	case 3:
		c.kernel.Flush(ruleset.NAT)
		c.proxier.ForceFull("nat was flushed")
	case 4:
		c.kernel.Flush(ruleset.NAT, ruleset.Filter)
		c.proxier.ForceFull("everything was flushed")
	case 5:
		c.damageChain()
	case 6:
		c.removeJump()
	default:
		c.startAgain()
	}
}

// damageChain empties one of our chains, and has it reported.
func (c *cluster) damageChain() {
	ours := slices.SortedFunc(maps.Keys(c.ours()), func(a, b ruleset.ChainID) int { return cmp.Compare(a.String(), b.String()) })
	if len(ours) == 0 {
		return
	}
	id := ours[c.IntN(len(ours))]
	c.write(fmt.Sprintf("*%s\n-F %s\nCOMMIT\n", id.Table, id.Name))
	c.proxier.Repair(Damage{Chains: map[ruleset.ChainID]Edit{id: {}}, By: "a test"})
}

// removeJump removes one of our jump rules, and has it reported.
func (c *cluster) removeJump() {
	hooks := render.Hooks()
	hook := hooks[c.IntN(len(hooks))]
	if countJumps(c.rules(), hook) == 0 {
		return
	}
	c.write(fmt.Sprintf("*%s\n-D %s %s\nCOMMIT\n", hook.From.Table, hook.From.Name, hook.Rule))
	c.proxier.Repair(Damage{Jumps: true, By: "a test"})
}

// startAgain starts the agent anew on the same kernel; the objects come in some order.
func (c *cluster) startAgain() {
	c.restart()
	if c.node != nil {
		c.tracker.NodeChanged(nil, c.node)
	}
	for _, svc := range c.services {
		c.tracker.ServiceChanged(nil, svc)
	}
	for _, slice := range c.slices {
		c.tracker.EndpointSliceChanged(nil, slice)
	}
}

func (c *cluster) setService(name string, svc *corev1.Service) {
	old := c.services[name]
	if old == nil && svc == nil {
		return
	}
	c.tracker.ServiceChanged(old, svc)
	put(c.services, name, svc)
}

func (c *cluster) setSlice(name string, slice *discoveryv1.EndpointSlice) {
	old := c.slices[name]
	if old == nil && slice == nil {
		return
	}
	c.tracker.EndpointSliceChanged(old, slice)
	put(c.slices, name, slice)
}

func put[T any](objects map[string]*T, name string, object *T) {
	if object == nil {
		delete(objects, name)
	} else {
		objects[name] = object
	}
}

func (c *cluster) setNode() {
	old := c.node
	c.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: c.oneOf("zone-a", "zone-b")}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: c.oneOf("10.0.0.1", "10.9.0.1")},
		}},
	}
	c.tracker.NodeChanged(old, c.node)
}

func (c *cluster) oneOf(values ...string) string { return values[c.IntN(len(values))] }

// randomService makes a Service of any kind. Addresses and node ports are few, so that
// Services take them from each other.
func (c *cluster) randomService(name string) *corev1.Service {
	svc := newService(name, fmt.Sprintf("10.96.%d.%d", c.IntN(2)*64, c.IntN(30)))
	svc.CreationTimestamp = metav1.NewTime(time.Unix(1_800_000_000+int64(c.IntN(3)), 0))
	spec := &svc.Spec
	if c.IntN(3) == 0 {
		spec.Ports[0].Protocol = corev1.ProtocolUDP
	}
	if c.IntN(3) == 0 {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "web", Port: 81, Protocol: corev1.ProtocolTCP})
	}
	if c.IntN(2) == 0 {
		spec.Type = corev1.ServiceTypeLoadBalancer
		spec.Ports[0].NodePort = int32(30000 + c.IntN(10))
		spec.HealthCheckNodePort = int32(32000 + c.IntN(4))
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("10.50.0.%d", c.IntN(6))}}
	}
	if c.IntN(3) == 0 {
		spec.ExternalIPs = []string{fmt.Sprintf("10.60.0.%d", c.IntN(4)), "10.50.0.1"}
	}
	if c.IntN(3) == 0 {
		spec.LoadBalancerSourceRanges = []string{c.oneOf("10.9.0.0/16", "10.0.0.0/24"), "10.8.0.0/16"}
	}
	if c.IntN(2) == 0 {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if c.IntN(4) == 0 {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if c.IntN(4) == 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return svc
}

func (c *cluster) randomSlice(service string) *discoveryv1.EndpointSlice {
	var addresses []string
	for range c.IntN(6) {
		addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", 1+c.IntN(2), c.IntN(20)))
	}
	slice := newSlice(service, addresses...)
	slice.CreationTimestamp = metav1.NewTime(time.Unix(1_800_000_000+int64(c.IntN(3)), 0))
	if c.IntN(3) == 0 {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("web"), Port: new(int32(8081))})
	}
	if c.IntN(5) == 0 {
		slice.Ports[0].Protocol = new(corev1.ProtocolUDP)
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if c.IntN(4) == 0 {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(c.IntN(2) == 0), Terminating: new(c.IntN(2) == 0)}
		}
		if c.IntN(2) == 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: c.oneOf("zone-a", "zone-b")}}}
		}
	}
	return slice
}

// TestQuietAgentWritesNothing is B-46: what was written stays, with its counters.
func TestQuietAgentWritesNothing(t *testing.T) {
	c := newCluster(newHost(t), rand.New(rand.NewPCG(1, 1)))
	for range 100 {
		c.change()
	}
	c.sync()
	c.takeInputs()
	c.kernel.Stats()
	for range 5 {
		// Everything is delivered again, as after a resync.
		for _, name := range slices.Sorted(maps.Keys(c.services)) {
			c.tracker.ServiceChanged(c.services[name], c.services[name].DeepCopy())
		}
		for _, name := range slices.Sorted(maps.Keys(c.slices)) {
			c.tracker.EndpointSliceChanged(c.slices[name], c.slices[name].DeepCopy())
		}
		c.sync()
	}
	if stats := c.kernel.Stats(); stats.Restores != 0 || stats.Edits != 0 {
		t.Errorf("B-46 %d restores and %d edits with nothing to do:\n%s", stats.Restores, stats.Edits, c.takeInputs())
	}
}
