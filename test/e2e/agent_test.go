package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// The programs that can be put to the test.
const (
	agentMiniproxy = "miniproxy"
	agentKubeProxy = "kube-proxy"
)

// syncPeriod is how often the agents look whether their rules are still there; the
// default of 30 s would make the tests of repair wait for nothing.
const syncPeriod = "2s"

// node is one node of a cluster: its machine and the agent on it.
type node struct {
	*lab.Node
	backend    string // nft or legacy
	dir        string
	kubeconfig string
	agent      *process
	// pristine is what save returned before an agent first ran here, by family.
	pristine map[int]string
}

// addr is the node's own address in a family, 4 or 6.
func (n *node) addr(family int) netip.Addr { return byFamily(n.Plan.Addrs, family).Addr() }

// owns reports whether an address is one of the node's: its own or the pods' gateway.
func (n *node) owns(addr netip.Addr) bool {
	for _, a := range n.Plan.Addrs {
		if a.Addr() == addr {
			return true
		}
	}
	for _, gateway := range n.Plan.PodAddrs(1) {
		if gateway == addr {
			return true
		}
	}
	return false
}

// byFamily picks the prefix of a family, 4 or 6.
func byFamily(list []netip.Prefix, family int) netip.Prefix {
	for _, p := range list {
		if p.Addr().Is4() == (family == 4) {
			return p
		}
	}
	return netip.Prefix{}
}

// log is the file with everything the node's agents said.
func (n *node) log() string { return filepath.Join(n.dir, "agent.log") }

// agentArgs are the arguments for the program under test; extra ones win.
func (n *node) agentArgs(kubeconfig string, extra ...string) []string {
	args := n.proxyArgs(kubeconfig)
	if *agentFlag == agentMiniproxy {
		args = append([]string{"run", "--iptables-backend=" + n.backend}, args...)
	}
	return append(args, extra...)
}

// proxyArgs are the arguments that miniproxy and kube-proxy have in common.
func (n *node) proxyArgs(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + n.Plan.Name,
		"--cluster-cidr=" + clusterCIDRs,
		"--iptables-sync-period=" + syncPeriod,
		// The machine's conntrack table is not ours to resize.
		"--conntrack-max-per-core=0",
		"--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s",
		"--conntrack-tcp-timeout-close-wait=0s",
		"--v=2",
	}
}

// agentProgram is the path of the program under test.
func agentProgram() string {
	if *agentFlag == agentKubeProxy {
		return filepath.Join(os.Getenv(envControlPlane), agentKubeProxy)
	}
	return os.Getenv(envBinary)
}

// notForKubeProxy skips a test that kube-proxy cannot pass as the program under test.
func notForKubeProxy(t *testing.T, why string) {
	t.Helper()
	if *agentFlag == agentKubeProxy {
		t.Skip(why)
	}
}

// startAgent starts the agent with the node's own kubeconfig.
func (n *node) startAgent(extra ...string) error {
	return n.startAgentWith(n.kubeconfig, extra...)
}

// startAgentWith starts the agent with another way to the API server.
func (n *node) startAgentWith(kubeconfig string, extra ...string) (err error) {
	n.agent, err = startProcess("agent on "+n.Plan.Name, n.log(), n.command(n.agentArgs(kubeconfig, extra...)...))
	return err
}

// command is a call of the program under test on the node.
func (n *node) command(args ...string) *exec.Cmd {
	cmd := n.Command(context.Background(), agentProgram(), args...)
	cmd.Env = n.env()
	return cmd
}

// env makes iptables and its like mean the node's backend, as the links that a
// distribution's alternatives make do.
func (n *node) env() []string {
	return append(os.Environ(), "PATH="+filepath.Join(n.dir, "bin")+":"+os.Getenv("PATH"))
}

// linkTools makes the links that env names.
func (n *node) linkTools() error {
	bin := filepath.Join(n.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			tool, err := exec.LookPath(family + "-" + n.backend + verb)
			if err != nil {
				return err
			}
			// The program looks at the name it is called by, so the link must lead to
			// the program itself and not to one more link.
			if tool, err = filepath.EvalSymlinks(tool); err != nil {
				return err
			}
			link := filepath.Join(bin, family+verb)
			if err := os.Symlink(tool, link); err != nil && !os.IsExist(err) {
				return err
			}
		}
	}
	return nil
}

// killAgent ends the agent as a crash would.
func (n *node) killAgent() error {
	if n.agent == nil {
		return nil
	}
	err := n.agent.alive()
	_ = n.agent.end(syscall.SIGKILL) // it ends by the signal, never well
	n.agent = nil
	return err
}

// iptables runs one of the tools of the node's backend: "iptables", "ip6tables" or
// the -save form of one.
func (n *node) iptables(ctx context.Context, tool string, args ...string) (string, error) {
	family, verb, _ := strings.Cut(tool, "-")
	name := family + "-" + n.backend
	if verb != "" {
		name += "-" + verb
	}
	return n.Run(ctx, name, args...)
}

// families are the IP families of a cluster by their number.
var families = []int{4, 6}

// tool is the name of the iptables command for a family.
func tool(family int) string {
	if family == 6 {
		return "ip6tables"
	}
	return "iptables"
}

// familyName is how a case of one family is called.
func familyName(family int) string { return fmt.Sprintf("ipv%d", family) }
