package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configMap is a directory as the kubelet makes it for a volume of a ConfigMap: the
// file is a link to a link, and a new version is one rename away.
type configMap struct {
	dir      string
	versions int
}

// file is the path of the configuration.
func (m *configMap) file() string { return filepath.Join(m.dir, "config.yaml") }

// write puts a new version in place.
func (m *configMap) write(t *testing.T, text string) {
	t.Helper()
	m.versions++
	version := fmt.Sprintf("..%d", m.versions)
	for _, step := range []func() error{
		func() error { return os.Mkdir(filepath.Join(m.dir, version), 0o755) },
		func() error { return os.WriteFile(filepath.Join(m.dir, version, "config.yaml"), []byte(text), 0o644) },
		func() error { return os.Symlink(version, filepath.Join(m.dir, "..data_tmp")) },
		func() error { return os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data")) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if m.versions > 1 {
		return
	}
	if err := os.Symlink(filepath.Join("..data", "config.yaml"), m.file()); err != nil {
		t.Fatal(err)
	}
}

// configuration is what agentArgs say, as a file; more are fields at its top level.
func (n *node) configuration(more ...string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: %s
hostnameOverride: %s
clusterCIDR: %s
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
%s
`, n.kubeconfig, n.Plan.Name, clusterCIDRs, strings.Join(more, "\n"))
}

// A configuration file that changes ends the agent with exit status 3, for whoever
// started it to start it again; a broken one is reported and otherwise ignored. The
// rules stay meanwhile.
func TestConfigurationFile(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		svc := ns.service(t, "s")
		c.waitForEndpoints(t, svc, podA)
		c.restoreAgent(t, n)
		kept, masked := c.podCaller(podC), maskedBy(n, "pod c", c.pods[podC].Host)
		to := clusterIP(t, svc, 4)

		config := &configMap{dir: t.TempDir()}
		config.write(t, n.configuration("iptables: {syncPeriod: 2s}"))
		start := func() {
			n.restartAs(t, n.command("run", "--config="+config.file(), "--iptables-backend="+n.backend))
			n.waitReady(t)
		}
		start()
		checkWays(t, []wayIn{{kept, to}}, podA)

		said := fileSize(n.log())
		config.write(t, n.configuration("mode: ipvs"))
		n.waitForLog(t, said, "is not valid")
		if err := n.agent.alive(); err != nil {
			t.Fatal(err)
		}
		checkWays(t, []wayIn{{kept, to}}, podA)

		before := saveAll(t, n)
		config.write(t, n.configuration("iptables: {syncPeriod: 2s, masqueradeAll: true}"))
		if got := n.exitStatus(t); got != 3 {
			t.Errorf("exit status %d after a change of the configuration, want 3", got)
		}
		for family, want := range before {
			if got := saveAll(t, n)[family]; got != want {
				t.Errorf("%s rules changed at exit:\n%s", familyName(family), lineDiff(got, want))
			}
		}
		start()
		checkWays(t, []wayIn{{masked, to}}, podA)
	})
}

// What is wrong with a command line or a configuration file is said at once, each
// mistake with its field, and the exit status is 2.
func TestConfigurationMistakes(t *testing.T) {
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		file := filepath.Join(t.TempDir(), "config.yaml")
		text := n.configuration("mode: ipvs", "nodePortAddresses: [10.0.0.300/24]", "iptables: {masqueradeBit: 40}")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := n.command("run", "--config="+file)
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != 2 {
			t.Errorf("exit status %d (%v), want 2", got, err)
		}
		for _, field := range []string{"mode", "nodePortAddresses[0]", "iptables.masqueradeBit"} {
			if !strings.Contains(string(out), field+":") {
				t.Errorf("nothing is said of %s:\n%s", field, out)
			}
		}
	})
}
