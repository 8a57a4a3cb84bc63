package render

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestDispatcherFollowsChanges puts a dispatcher through random changes, around the
// size at which flat chains become trees, and compares what it said step by step
// with what a new dispatcher says at once.
func TestDispatcherFollowsChanges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	life := dispatcherLife{
		random:     rand.New(rand.NewPCG(seed, 0)),
		opts:       Options{Family: model.IPv4, MasqueradeMark: 0x4000, NodePorts: NodePortAddresses{All: true}, FlatDispatch: 12},
		units:      map[model.ServicePortName]*Unit{},
		dispatcher: NewDispatcher(),
		kernel:     ruleset.Ruleset{},
	}
	life.dispatcher.SetOptions(life.opts)
	for step := range 1500 {
		changes := 1 + life.random.IntN(3)
		if life.random.IntN(50) == 0 {
			changes = 40
		}
		for range changes {
			life.change()
		}
		if err := life.flush(); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
	}
}

// dispatcherLife is a dispatcher and what its chains have become.
type dispatcherLife struct {
	random     *rand.Rand
	opts       Options
	units      map[model.ServicePortName]*Unit
	dispatcher *Dispatcher
	kernel     ruleset.Ruleset
}

// change makes, remakes or deletes one of 80 Services.
func (l *dispatcherLife) change() {
	name := model.ServicePortName{
		ServiceName: model.ServiceName{Namespace: "ns1", Name: fmt.Sprintf("s%d", l.random.IntN(80))},
		Protocol:    model.TCP,
	}
	if l.random.IntN(4) == 0 {
		name.Protocol = model.UDP
	}
	old := l.units[name]
	if l.random.IntN(2) == 0 {
		delete(l.units, name)
		l.dispatcher.Replace(old, nil)
		return
	}
	port := model.ServicePort{
		Name:      name,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(7 * l.random.IntN(2)), byte(l.random.IntN(256))}),
		Port:      uint16(80 + l.random.IntN(2)),
		NodePort:  uint16(30000 + l.random.IntN(2768)),
	}
	if l.random.IntN(3) == 0 {
		// Many Services share an address, as behind one load balancer.
		port.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 50, 0, byte(10 * l.random.IntN(2))})}
		port.Port = uint16(1 + l.random.IntN(20)*l.random.IntN(3000))
	}
	if l.random.IntN(40) == 0 {
		// Far away from all others, which moves those down one level.
		port.ClusterIP = netip.AddrFrom4([4]byte{byte(l.random.IntN(256)), 60, 0, 11})
	}
	if l.random.IntN(20) == 0 {
		port.ExternalIPs = append(port.ExternalIPs, netip.AddrFrom4([4]byte{byte(l.random.IntN(256)), 60, 0, 10}))
	}
	var endpoints []model.Endpoint
	if l.random.IntN(3) > 0 {
		endpoints = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.10:8080"), Ready: true}}
	}
	unit := ServicePort(port, endpoints, l.opts)
	l.units[name] = &unit
	l.dispatcher.Replace(old, &unit)
}

// flush writes what changed, chain by chain, and compares.
func (l *dispatcherLife) flush() error {
	write, gone := l.dispatcher.Chains()
	for _, chain := range write {
		for _, rule := range chain.Rules {
			target := ruleset.ChainID{Table: chain.Table, Name: rule.Target()}
			if isTreeChain(target.Name) && l.kernel[target] == nil {
				return fmt.Errorf("%v was written before %v that it jumps to", chain.ChainID, target)
			}
		}
		l.kernel[chain.ChainID] = &chain
	}
	for _, id := range gone {
		if l.kernel[id] == nil {
			return fmt.Errorf("%v is said to be gone, and was never written", id)
		}
		delete(l.kernel, id)
	}
	chains, _ := Dispatch(l.units, l.opts)
	want := ruleset.Ruleset{}
	for _, chain := range chains {
		want[chain.ChainID] = &chain
	}
	if diff := ruleset.Diff(l.kernel, want); len(diff) > 0 {
		return fmt.Errorf("step by step and at once differ: %v", diff)
	}
	return nil
}

// isTreeChain reports whether a chain's name is a range in readable form; those of
// units end in a hash of 16 characters.
func isTreeChain(name string) bool {
	return len(name) > len(clusterPrefix) && name[:len(clusterPrefix)] == clusterPrefix && len(name) != len(clusterPrefix)+16
}
