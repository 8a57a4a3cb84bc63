package hostile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/test/seed"
)

// seeds are worlds that once went wrong, or nearly.
var seeds = [][]byte{
	nil,
	[]byte("the quick brown fox jumps over the lazy dog, again and again and again"),
	// A Service good/"a:b" with an unnamed port is spelled as port b of good/a.
	{0, 0, 2},
	// Two ports of one Service have the same number and protocol.
	[]byte("the puick.n\xbd\xbd\xbd\xbd\xbd\xbd juFFFFFFFFmps over the g, "),
}

// FuzzObjects is about Services and EndpointSlices.
func FuzzObjects(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(checkObjects)
}

// TestRandomObjects is FuzzObjects with random bytes.
func TestRandomObjects(t *testing.T) {
	for _, data := range randomInputs(t, 500) {
		if checkObjects(t, data); t.Failed() {
			return
		}
	}
}

// checkObjects adds the world that the bytes stand for to the good Services.
func checkObjects(t *testing.T, data []byte) {
	t.Helper()
	services, endpoints := good()
	c := &choices{data}
	badServices, badEndpoints := c.world()
	for _, family := range model.Families {
		without := mustRender(t, family, services, endpoints)
		with := mustRender(t, family, append(badServices, services...), append(badEndpoints, endpoints...))
		if err := leftAlone(without, with); err != nil {
			t.Errorf("%v: %v", family, err)
		}
	}
}

// randomInputs are the seeds and n times random bytes.
func randomInputs(t *testing.T, n int) [][]byte {
	t.Helper()
	random := seed.Rand(t)
	inputs := slices.Clone(seeds)
	for range n {
		input := make([]byte, 400)
		for i := range input {
			input[i] = byte(random.Uint32())
		}
		inputs = append(inputs, input)
	}
	return inputs
}

// mustRender returns the rules for objects, which must be good ones.
func mustRender(t testing.TB, family model.Family, services []*corev1.Service, endpoints []*discoveryv1.EndpointSlice) ruleset.Ruleset {
	t.Helper()
	rs, err := rules(track(family, services, endpoints), options(family))
	if err != nil {
		t.Fatalf("%v: %v", family, err)
	}
	return rs
}

// manifests are files that FuzzManifests begins with.
var manifests = []string{
	`{apiVersion: v1, kind: Service, metadata: {name: a, namespace: good}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`,
	`apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {type: LoadBalancer, clusterIPs: ["fd00::1", 10.0.0.1], externalIPs: [1.2.3.4], sessionAffinity: ClientIP, ports: [{name: x, port: 80, nodePort: 30080, protocol: UDP}]}, status: {loadBalancer: {ingress: [{ip: 1.2.3.4}]}}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: ns, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, ports: [{name: x, port: 8080, protocol: UDP}], endpoints: [{addresses: [10.1.1.1]}]}
`,
	`{apiVersion: v1, kind: Service, metadata: {name: "x\n-A INPUT"}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: "TCP\nCOMMIT"}]}}`,
}

// FuzzManifests is about manifest files. What is read without an error gives rules.
func FuzzManifests(f *testing.F) {
	for _, text := range manifests {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "objects.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := config.ReadManifests(file)
		if err != nil {
			return
		}
		for _, family := range model.Families {
			mustRender(t, family, o.Services, o.EndpointSlices)
		}
	})
}

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// configurations are files that FuzzConfigurations begins with.
var configurations = []string{
	header,
	header + "clusterCIDR: 10.244.0.0/16,fd00:244::/32\nnodePortAddresses: [primary]\niptables: {masqueradeBit: 31, masqueradeAll: true, localhostNodePorts: false}\n",
	header + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\nnodePortAddresses: [10.0.0.0/8, \"fd00::/8\"]\n",
	header + "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: \"veth -j ACCEPT\"}\nbindAddress: 10.0.0.1\n",
	header + "detectLocalMode: NodeCIDR\nconntrack: {tcpBeLiberal: true}\n",
}

// FuzzConfigurations is about KubeProxyConfiguration files. What is read without an
// error gives rules.
func FuzzConfigurations(f *testing.F) {
	for _, text := range configurations {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readConfig(t, file)
		if err != nil {
			return
		}
		for _, family := range model.Families {
			if _, err := rulesWith(c, family); err != nil {
				t.Fatalf("%v: %v", family, err)
			}
		}
	})
}

func readConfig(t *testing.T, file string) (*config.Config, error) {
	t.Helper()
	set := pflag.NewFlagSet("hostile", pflag.ContinueOnError)
	flags := config.NewFlags(set)
	if err := set.Parse([]string{"--config", file, "--hostname-override=n1"}); err != nil {
		t.Fatal(err)
	}
	return flags.Config()
}

// rulesWith are the rules for the good Services under a configuration.
func rulesWith(c *config.Config, family model.Family) (ruleset.Ruleset, error) {
	services, endpoints := good()
	return rules(track(family, services, endpoints), proxier.Options(c, family, node(family), proxier.Host{Addresses: hostAddresses, RandomFully: true}))
}
