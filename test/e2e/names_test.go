package e2e

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// chainName is the name that kube-proxy gives to a chain of a Service port: a prefix
// and the beginning of a hash.
func chainName(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// What a textbook on kube-proxy tells to look for is there to be found: the names of
// the chains, their order and the comments (B-83).
func TestTextbook(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s", nodePort)
		unnamed := ns.service(t, "unnamed", func(svc *v1.Service) { svc.Spec.Ports[0].Name = "" })
		c.waitForEndpoints(t, svc, podA)
		name, port := portName(svc), svc.Spec.Ports[0]
		service := chainName("KUBE-SVC-", name, "tcp")
		external := chainName("KUBE-EXT-", name, "tcp")
		endpoint := chainName("KUBE-SEP-", name, "tcp", c.pods[podA].addrPort(4).String())
		ip := clusterIP(t, svc, 4)

		n := c.nodes[n1]
		nat, err := n.iptables(t.Context(), "iptables", "-w", "-t", "nat", "-n", "-L")
		if err != nil {
			t.Fatal(err)
		}
		filter, err := n.iptables(t.Context(), "iptables", "-w", "-t", "filter", "-n", "-L")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct{ in, chain, rule string }{
			{nat, "PREROUTING", `KUBE-SERVICES .*/\* kubernetes service portals \*/`},
			{nat, "OUTPUT", `KUBE-SERVICES .*/\* kubernetes service portals \*/`},
			{nat, "POSTROUTING", `KUBE-POSTROUTING .*/\* kubernetes postrouting rules \*/`},
			{nat, "KUBE-SERVICES", fmt.Sprintf(`%s .* %s +/\* %s cluster IP \*/ tcp dpt:%d`, service, ip.Addr(), name, ip.Port())},
			{nat, "KUBE-SERVICES", `KUBE-NODEPORTS .*NOTE: this must be the last rule in this chain \*/ ADDRTYPE match dst-type LOCAL\n*$`},
			{nat, "KUBE-NODEPORTS", fmt.Sprintf(`%s .*/\* %s \*/ tcp dpt:%d`, external, name, port.NodePort)},
			{nat, external, fmt.Sprintf(`KUBE-MARK-MASQ .*/\* masquerade traffic for %s external destinations \*/`, name)},
			{nat, external, service + " "},
			{nat, service, fmt.Sprintf(`KUBE-MARK-MASQ .*!10\.244\.0\.0/16 +%s +/\* %s cluster IP \*/ tcp dpt:80`, ip.Addr(), name)},
			{nat, service, fmt.Sprintf(`%s .*/\* %s -> %s \*/`, endpoint, name, c.pods[podA].addrPort(4))},
			{nat, endpoint, fmt.Sprintf(`KUBE-MARK-MASQ .*%s .*/\* %s \*/`, c.pods[podA].addr(4), name)},
			{nat, endpoint, fmt.Sprintf(`DNAT .*/\* %s \*/ .*to:%s`, name, c.pods[podA].addrPort(4))},
			{nat, "KUBE-MARK-MASQ", `MARK .*MARK or 0x4000`},
			{nat, "KUBE-POSTROUTING", `(?s)RETURN .*mark match ! 0x4000/0x4000.*MARK .*MARK xor 0x4000.*MASQUERADE .*/\* kubernetes service traffic requiring SNAT \*/`},
			{filter, "KUBE-SERVICES", fmt.Sprintf(`REJECT .*/\* %s has no endpoints \*/`, portName(unnamed))},
			{filter, "KUBE-FORWARD", `(?s)DROP .*ctstate INVALID.*ACCEPT .*/\* kubernetes forwarding rules \*/ mark match 0x4000/0x4000.*ACCEPT .*/\* kubernetes forwarding conntrack rule \*/ ctstate RELATED,ESTABLISHED`},
		} {
			if text := section(want.in, want.chain); !regexp.MustCompile(want.rule).MatchString(text) {
				t.Errorf("iptables -L %s: no match for %s in\n%s", want.chain, want.rule, text)
			}
		}
		for _, table := range tables {
			if _, err := n.iptables(t.Context(), "iptables", "-w", "-t", table, "-n", "-L", "KUBE-PROXY-CANARY"); err != nil {
				t.Error(err)
			}
		}
		for _, chain := range []string{"KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL"} {
			if section(filter, chain) == "" {
				t.Errorf("no chain %s in the filter table", chain)
			}
		}
	})
}

// section is a chain's part of iptables -L.
func section(list, chain string) string {
	for part := range strings.SplitSeq(list, "\n\n") {
		if strings.HasPrefix(part, "Chain "+chain+" (") {
			return part
		}
	}
	return ""
}
