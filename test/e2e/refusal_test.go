package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// spoiling is a way in which the kernel, or its iptables, refuses rules of one Service.
type spoiling struct {
	name string
	// script, for sed, spoils rules of the Service port %s, with the slash of its name
	// escaped.
	script string
	// onlyOn is the one backend that it is tried on.
	onlyOn string
	// anonymous says that the answer names no line, or one that says nothing.
	anonymous bool
}

// spoilings are refused by the programs themselves, by the kernel, and by the kernel
// without a line: on legacy it blames the COMMIT for everything.
var spoilings = []spoiling{
	{name: "unknown match", script: `/^-A KUBE-SEP-.*"%s/s/ -j / -m nosuchmatch -j /`},
	{name: "match that the kernel lacks", script: `/^-A KUBE-SEP-.*"%s/s/ -j / -m ipvs --ipvs -j /`},
	{name: "jump to nowhere", script: `/^-A KUBE-SVC-.*"%s/s/ -j KUBE-SEP-/ -j KUBE-NOT-/`, onlyOn: "nft", anonymous: true},
	{name: "comment with a line break", script: `/^-A KUBE-SEP-.*"%s/s/--comment "/&\n/`, onlyOn: "legacy"},
	{name: "no address", script: `/"%s/s/--to-destination .*/--to-destination 10.244.1.999:8080/`},
}

// One Service whose rules are refused keeps those that it had, and is reported. All
// others are written in the same sync, and it gets its own when they are accepted
// again.
func TestRefusedService(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		c.restoreAgent(t, n)
		spoil := filepath.Join(t.TempDir(), "spoil.sed")
		script := fmt.Sprintf(`if [[ -e %[1]s ]]; then sed -f %[1]s | real "$@"; else real "$@"; fi`, spoil)
		n.restartAs(t, n.wrap(t, script, "iptables-restore", "ip6tables-restore"))
		n.waitReady(t)
		for _, r := range spoilings {
			if r.onlyOn != "" && r.onlyOn != n.backend {
				continue
			}
			t.Run(r.name, func(t *testing.T) { checkRefusal(t, c, n, spoil, r) })
		}
	})
}

func checkRefusal(t *testing.T, c *cluster, n *node, file string, s spoiling) {
	ns := c.newNamespace(t)
	ns.pod(t, "s", podA)
	sameApp := func(svc *v1.Service) { svc.Spec.Selector = map[string]string{appLabel: "s"} }
	services := map[string]*v1.Service{}
	for _, name := range []string{"a-good", "bad", "z-good"} {
		services[name] = ns.service(t, name, sameApp)
		c.waitForEndpoints(t, services[name], podA)
	}
	reaches := func(svc *v1.Service, pods ...string) {
		t.Helper()
		for _, family := range families {
			checkWays(t, []wayIn{{c.podCaller(podC), clusterIP(t, svc, family)}}, pods...)
		}
	}

	said := fileSize(n.log())
	bad := portName(services["bad"])
	if err := os.WriteFile(file, fmt.Appendf(nil, s.script, strings.ReplaceAll(bad, "/", `\/`)), 0o644); err != nil {
		t.Fatal(err)
	}
	removed := false
	accept := func() {
		if err := os.Remove(file); err != nil && !removed {
			t.Error(err)
		}
		removed = true
	}
	defer accept()
	ns.pod(t, "s", podB)
	for _, family := range families {
		for _, name := range []string{"a-good", "z-good"} {
			text := fmt.Sprintf("%s -> %s", portName(services[name]), c.pods[podB].addrPort(family))
			if err := n.waitForRule(t.Context(), family, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "both families to say so", func() error { return n.hasRefused(t, bad, 1) })
	reaches(services["bad"], podA)
	reaches(services["a-good"], podA, podB)
	reaches(services["z-good"], podA, podB)
	n.waitForLog(t, said, "The rules of a Service port are refused; the others are not affected")
	ns.waitForEvent(t, "bad", "RulesRefused", "keeps its last good rules")
	if !s.anonymous {
		eventually(t, "the page of failed restores to show the line", func() error {
			failed, err := n.get(t, metricsAddr, "/debug/miniproxy/restore/failed")
			if err == nil && !strings.Contains(failed.body, "\n# >") {
				err = fmt.Errorf("it shows:\n%s", failed.body) // or that it is asked too often
			}
			return err
		})
	}

	accept()
	eventually(t, "nothing to be refused", func() error { return n.hasRefused(t, bad, 0) })
	reaches(services["bad"], podA, podB)
}

// hasRefused checks that so many Service ports are refused in each family, and that
// the page about them names one.
func (n *node) hasRefused(t *testing.T, name string, count int) error {
	t.Helper()
	metrics, err := n.get(t, metricsAddr, "/metrics")
	if err != nil {
		return err
	}
	page, err := n.get(t, metricsAddr, "/debug/miniproxy/quarantine")
	if err != nil {
		return err
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		if line := fmt.Sprintf("miniproxy_refused_service_ports{ip_family=%q} %d\n", family, count); !strings.Contains(metrics.body, line) {
			return fmt.Errorf("the metrics do not say %s", line)
		}
		if got := strings.Count(page.body, family+" "+name+" "); got != count || page.status != http.StatusOK {
			return fmt.Errorf("%s has %s %d times on the page, want %d: %s", family, name, got, count, page.body)
		}
	}
	return n.agent.alive()
}
