package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// What render prints for the objects of the API is what the kernel holds after the
// agent saw them.
func TestRenderIsWhatTheKernelHolds(t *testing.T) {
	notForKubeProxy(t, "kube-proxy has no render")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		ns.pod(t, "t", podB)
		c.waitForEndpoints(t, ns.service(t, "s", nodePort), podA)
		ns.service(t, "t", internalLocal, udp)
		ns.service(t, "nobody", nodePort)
		forEachFamily(t, func(t *testing.T, family int) {
			eventually(t, "the kernel to hold what render prints", func() error {
				// Objects of other cases may still be on their way out.
				want, err := c.render(t, n, family)
				if err != nil {
					return err
				}
				have, err := n.ownRuleset(t, family)
				if err != nil {
					return err
				}
				var differences []string
				for _, d := range ruleset.Diff(have, want) {
					differences = append(differences, d.String())
				}
				if len(differences) > 0 {
					return fmt.Errorf("%s", strings.Join(differences, "\n"))
				}
				return nil
			})
		})
	})
}

// render is what miniproxy render prints for a node from what the API server holds.
func (c *cluster) render(t *testing.T, n *node, family int, flags ...string) (ruleset.Ruleset, error) {
	t.Helper()
	file := filepath.Join(c.dir, "objects.json")
	if err := c.writeObjects(t, file); err != nil {
		return nil, err
	}
	// On no node: render needs none.
	args := append([]string{"render", "-f", file, "--node=" + n.Plan.Name, "--family=" + familyName(family), "--cluster-cidr=" + clusterCIDRs}, flags...)
	cmd := c.pods[podC].Command(t.Context(), agentProgram(), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render: %w: %s", err, stderr.String())
	}
	return ruleset.Decode(out)
}

// writeObjects writes all objects that concern an agent, as kubectl get -o json would.
func (c *cluster) writeObjects(t *testing.T, file string) error {
	t.Helper()
	list := &v1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	add := func(obj runtime.Object) {
		list.Items = append(list.Items, runtime.RawExtension{Object: obj})
	}
	services, err := c.client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range services.Items {
		services.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		add(&services.Items[i])
	}
	slices, err := c.client().DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range slices.Items {
		slices.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		add(&slices.Items[i])
	}
	nodes, err := c.client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		nodes.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		add(&nodes.Items[i])
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// ownRuleset is what a node's kernel holds of what render prints: the agent's chains
// in nat and filter. The canaries are no part of what is rendered.
func (n *node) ownRuleset(t *testing.T, family int) (ruleset.Ruleset, error) {
	t.Helper()
	text, err := n.iptables(t.Context(), tool(family)+"-save")
	if err != nil {
		return nil, err
	}
	all, err := ruleset.Decode([]byte(text))
	if err != nil {
		return nil, err
	}
	for id, chain := range all {
		ours := strings.HasPrefix(id.Name, "KUBE-") && id.Name != "KUBE-PROXY-CANARY"
		if !ours || !slices.Contains([]ruleset.Table{ruleset.NAT, ruleset.Filter}, id.Table) {
			delete(all, id)
			continue
		}
		withoutAccounts(chain)
		if id.Name == "KUBE-FIREWALL" && len(chain.Rules) == 0 {
			delete(all, id) // made for its jump rules only, which are not rendered either
		}
	}
	return all, nil
}

// withoutAccounts takes out of a chain what is there only where the kernel has
// accounting objects: their matches, and the rules that exist to count node ports on
// localhost. Render knows nothing of the kernel it runs on.
func withoutAccounts(chain *ruleset.Chain) {
	account := func(name string) func(ruleset.Match) bool {
		return func(m ruleset.Match) bool {
			acct, ok := m.(ruleset.NFAcct)
			return ok && (name == "" || acct.Name == name)
		}
	}
	chain.Rules = slices.DeleteFunc(chain.Rules, func(r ruleset.Rule) bool {
		return slices.ContainsFunc(r.Matches, account("localhost_nps_accepted_pkts"))
	})
	for i := range chain.Rules {
		chain.Rules[i].Matches = slices.DeleteFunc(chain.Rules[i].Matches, account(""))
	}
}
