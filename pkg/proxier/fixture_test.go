package proxier

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/tracker"
)

// jumpPeriod is how long the hosts' agents trust their jump rules.
const jumpPeriod = 30 * time.Second

// host is a kernel with an agent for one family on it. Restarting the agent leaves
// the kernel as it is.
type host struct {
	t       *testing.T
	kernel  *fakekernel.Kernel
	runner  *iptables.Runner
	tracker *tracker.Tracker
	proxier *Proxier
	options render.Options

	// mu is held by each restore, and what is called after it.
	mu sync.Mutex
	// inputs are the restore inputs since the last call of takeInputs.
	inputs []string
	// afterRestore is called after every restore.
	afterRestore func()
	// last is the result of the last sync, written what it told of its progress.
	last    Result
	written []int
}

func newHost(t *testing.T) *host {
	h := &host{t: t, kernel: fakekernel.New(model.IPv4, iptables.NFT)}
	h.runner = h.kernel.Runner()
	h.options = render.Options{
		Family:         model.IPv4,
		MasqueradeMark: 0x4000,
		RandomFully:    true,
		Local:          render.LocalTraffic{Range: netip.MustParsePrefix("10.244.0.0/16")},
		NodePorts:      render.NodePortAddresses{All: true, Loopback: true},
		DropInvalid:    true,
	}
	h.restart()
	return h
}

// restart starts the agent anew: it knows nothing.
func (h *host) restart() {
	h.tracker = tracker.New(model.IPv4, "n1")
	settings := Settings{Chunk: ChunkNFT, JumpPeriod: jumpPeriod}
	if h.proxier != nil {
		settings = h.proxier.settings
	}
	h.proxier = New(model.IPv4, h.tracker, h, settings, func(node model.NodeFacts) (render.Options, error) {
		o := h.options
		o.Node = node
		return o, nil
	}, h)
}

// Restore implements Kernel.
func (h *host) Restore(ctx context.Context, input []byte) error {
	h.record(input)
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.runner.Restore(ctx, input)
	if h.afterRestore != nil {
		h.afterRestore()
	}
	return err
}

// record notes what a restore was given; two can be under way at once.
func (h *host) record(input []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inputs = append(h.inputs, string(input))
}

// ChainNames implements Kernel.
func (h *host) ChainNames(ctx context.Context, table ruleset.Table) ([]string, error) {
	return h.runner.ChainNames(ctx, table)
}

// HasChain implements Kernel.
func (h *host) HasChain(ctx context.Context, id ruleset.ChainID) (bool, error) {
	return h.runner.HasChain(ctx, id)
}

// EnsureChain implements Kernel.
func (h *host) EnsureChain(ctx context.Context, id ruleset.ChainID) (bool, error) {
	return h.runner.EnsureChain(ctx, id)
}

// EnsureJumps implements Kernel.
func (h *host) EnsureJumps(ctx context.Context, hooks []ruleset.Hook) ([]iptables.Change, error) {
	return h.runner.EnsureJumps(ctx, hooks)
}

// Synced implements Observer.
func (h *host) Synced(_ context.Context, r Result) { h.last = r }

// Writing implements Observer.
func (h *host) Writing(servicePorts, _ int) { h.written = append(h.written, servicePorts) }

// sync fails the test if the sync fails, or if the kernel then holds anything else
// than a fresh rendering of the same objects.
func (h *host) sync() {
	h.t.Helper()
	if err := h.proxier.Sync(h.context()); err != nil {
		h.t.Fatalf("sync: %v", err)
	}
	h.mustEqualFresh()
}

func (h *host) context() context.Context { return quiet(h.t.Context()) }

// quiet keeps thousands of syncs from writing to the terminal.
func quiet(ctx context.Context) context.Context { return logTo(ctx, io.Discard) }

func logTo(ctx context.Context, w io.Writer) context.Context {
	return klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w))))
}

// fresh is what the rules should be.
func (h *host) fresh() ruleset.Ruleset {
	chains, _ := render.Snapshot(h.last.Snapshot, h.last.Options)
	rules := ruleset.Ruleset{}
	for i := range chains {
		rules[chains[i].ChainID] = &chains[i]
	}
	for _, id := range render.SharedChains() {
		if rules[id] == nil {
			rules[id] = &ruleset.Chain{ChainID: id}
		}
	}
	return rules
}

// rules are what the kernel holds.
func (h *host) rules() ruleset.Ruleset {
	h.t.Helper()
	rules, err := ruleset.Decode(h.kernel.Save())
	if err != nil {
		h.t.Fatal(err)
	}
	return rules
}

// ours are the chains in the kernel that the agent answers for.
func (h *host) ours() ruleset.Ruleset {
	h.t.Helper()
	rules := h.rules()
	for id := range rules {
		if !render.Owns(id) && !render.Shares(id) || id.Name == render.CanaryChain {
			delete(rules, id)
		}
	}
	return rules
}

// mustEqualFresh is the first invariant: after quiet the kernel holds what a fresh
// rendering says.
func (h *host) mustEqualFresh() {
	h.t.Helper()
	for _, diff := range ruleset.Diff(h.ours(), h.fresh()) {
		h.t.Errorf("the kernel differs from a fresh rendering: %v", diff)
	}
	rules := h.rules()
	for _, hook := range h.options.Lacks.Hooks() {
		if n := countJumps(rules, hook); n != 1 {
			h.t.Errorf("%d jumps from %s to %s, want 1", n, hook.From, hook.Rule.Target())
		}
	}
}

func countJumps(rules ruleset.Ruleset, hook ruleset.Hook) int {
	n := 0
	if chain := rules[hook.From]; chain != nil {
		for _, rule := range chain.Rules {
			if rule.String() == hook.Rule.String() {
				n++
			}
		}
	}
	return n
}

// takeInputs returns the restore inputs since the last call.
func (h *host) takeInputs() []string {
	inputs := h.inputs
	h.inputs = nil
	return inputs
}

// declared lists the chains that restore inputs write or delete, as "table/chain".
func declared(inputs []string) []string {
	var all []string
	for _, input := range inputs {
		table := ""
		for line := range strings.Lines(input) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = line[1:]
			case strings.HasPrefix(line, ":"):
				name, _, _ := strings.Cut(line[1:], " ")
				all = append(all, table+"/"+name)
			}
		}
	}
	return all
}

// newService returns the ClusterIP Service ns1/NAME with port http, TCP 80.
func newService(name, clusterIP string, changes ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIPs: []string{clusterIP},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	return svc
}

func nodePort(port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = port
	}
}

// newSlice returns the slice of Service NAME with ready endpoints at the addresses;
// those in 10.244.1.0/24 are on n1.
func newSlice(service string, addresses ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1", Name: service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for _, address := range addresses {
		node := "n2"
		if strings.HasPrefix(address, "10.244.1.") {
			node = "n1"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node})
	}
	return slice
}

// fill adds n Services with one endpoint each: s0 at 10.96.0.0, and so on.
func (h *host) fill(n int) {
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		h.tracker.ServiceChanged(nil, newService(name, fmt.Sprintf("10.96.%d.%d", i/250, i%250)))
		h.tracker.EndpointSliceChanged(nil, newSlice(name, fmt.Sprintf("10.244.%d.%d", 1+i/250, i%250)))
	}
}

// service names the port of ns1/NAME.
func service(name string) model.ServicePortName {
	return model.ServicePortName{ServiceName: model.ServiceName{Namespace: "ns1", Name: name}, Port: "http", Protocol: model.TCP}
}

// chainsOf lists the chains in the kernel whose rules' comments name the Service, as
// "table/chain".
func (h *host) chainsOf(name string) []string {
	var all []string
	for id, chain := range h.rules() {
		for _, rule := range chain.Rules {
			if render.IsPerService(id) && strings.Contains(rule.Comment, service(name).String()) {
				all = append(all, id.String())
				break
			}
		}
	}
	return all
}

// write changes the kernel as another program would.
func (h *host) write(input string) {
	h.t.Helper()
	if err := h.kernel.Write(input); err != nil {
		h.t.Fatal(err)
	}
}

// holds reports whether the kernel's rules contain a text.
func (h *host) holds(text string) bool { return bytes.Contains(h.kernel.Save(), []byte(text)) }
