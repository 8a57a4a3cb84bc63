package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// ask runs a command of the program on the node with the agent's flags, and returns
// its exit status and what it printed.
func (n *node) ask(t *testing.T, command string) (status int, out string) {
	t.Helper()
	args := append([]string{command, "--iptables-backend=" + n.backend}, n.proxyArgs(n.kubeconfig)...)
	cmd := n.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String() + stderr.String()
}

// What diff and doctor say of a node, with the cluster's own API server: nothing
// differs from what the agent writes and nothing is bad, and what somebody changes
// while the agent is stopped is told.
func TestDiffAndDoctor(t *testing.T) {
	notForKubeProxy(t, "the commands are miniproxy's")
	onBothBackends(t, func(t *testing.T, c *cluster) {
		n := c.nodes[n1]
		ns := c.newNamespace(t)
		ns.pod(t, "s", podA)
		c.waitForEndpoints(t, ns.service(t, "s", nodePort), podA)
		n.waitReady(t)
		eventually(t, "diff to find nothing", func() error {
			if status, out := n.ask(t, "diff"); status != 0 || out != "" {
				return fmt.Errorf("exit status %d: %s", status, out)
			}
			return nil
		})
		status, out := n.ask(t, "doctor")
		if status != 0 || strings.Contains(out, "\nbad") {
			t.Errorf("doctor: exit status %d:\n%s", status, out)
		}
		for _, want := range []string{"Node object", "all in place", "livez answers 200"} {
			if !strings.Contains(out, want) {
				t.Errorf("doctor does not say %q:\n%s", want, out)
			}
		}

		if err := n.agent.signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.agent.signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}()
		for _, family := range families {
			rule := []string{"KUBE-MARK-MASQ", "-s", documentation[family], "-j", "RETURN"}
			if _, err := n.iptables(t.Context(), tool(family), append([]string{"-w", "-t", "nat", "-I"}, rule...)...); err != nil {
				t.Fatal(err)
			}
			status, out := n.ask(t, "diff")
			want := fmt.Sprintf("IPv%d %s: - is in the kernel and should not be, + should be and is not\nchanged  nat/KUBE-MARK-MASQ\n- -A KUBE-MARK-MASQ -s %s -j RETURN\n",
				family, n.backend, documentation[family])
			if status != 1 || out != want {
				t.Errorf("diff: exit status %d:\n%swant 1 and\n%s", status, out, want)
			}
			if _, err := n.iptables(t.Context(), tool(family), append([]string{"-w", "-t", "nat", "-D"}, rule...)...); err != nil {
				t.Fatal(err)
			}
		}
	})
}
