package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// Where the agents' servers are, seen from their own node.
const (
	healthAddr  = "127.0.0.1:10256"
	metricsAddr = "127.0.0.1:10249"
)

// restoreAgent starts the node's usual agent again when the case ends, whatever runs
// then.
func (c *cluster) restoreAgent(t *testing.T, n *node) {
	t.Helper()
	t.Cleanup(func() {
		if n.agent != nil {
			_ = n.agent.end(syscall.SIGKILL) // it ends by the signal, if it has not ended itself
		}
		if err := n.startAgent(); err != nil {
			t.Error(err)
			return
		}
		if err := c.settle(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// restart ends the node's agent and starts one with other arguments. It returns when
// that one has written its rules.
func (n *node) restart(t *testing.T, extra ...string) {
	t.Helper()
	n.restartAs(t, n.command(n.agentArgs(n.kubeconfig, extra...)...))
	n.waitReady(t)
}

// restartAs ends the node's agent and starts cmd in its place.
func (n *node) restartAs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := n.killAgent(); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.agent, err = startProcess("agent on "+n.Plan.Name, n.log(), cmd); err != nil {
		t.Fatal(err)
	}
}

// waitReady waits until the agent has written its rules, and all of them.
func (n *node) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "the agent on "+n.Plan.Name+" to be ready", func() error {
		if err := n.agent.alive(); err != nil {
			return err
		}
		return n.answers(t, healthAddr, "/readyz", http.StatusOK)
	})
}

// waitForLog waits until the agent has said text, after the first offset bytes of the
// log.
func (n *node) waitForLog(t *testing.T, offset int64, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the agent to log %q", text), func() error {
		if !strings.Contains(tail(n.log(), offset), text) {
			return errors.Join(errors.New("it has not"), n.agent.alive())
		}
		return nil
	})
}

// page is what a server on a node says.
type page struct {
	status int
	header http.Header
	body   string
}

// get asks a server on addr, from the node.
func (n *node) get(t *testing.T, addr, path string) (page, error) {
	t.Helper()
	return getFrom(t, n.Host, addr, path)
}

// getFrom asks a server on addr, from a host.
func getFrom(t *testing.T, from *lab.Host, addr, path string) (page, error) {
	t.Helper()
	client := &http.Client{
		Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true},
		Timeout:   patience,
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return page{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return page{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return page{status: resp.StatusCode, header: resp.Header, body: string(body)}, err
}

// answers returns nil when a server answers with a status.
func (n *node) answers(t *testing.T, addr, path string, status int) error {
	t.Helper()
	p, err := n.get(t, addr, path)
	if err == nil && p.status != status {
		err = fmt.Errorf("GET %s%s: status %d, want %d: %s", addr, path, p.status, status, p.body)
	}
	return err
}

// rulesWith are the rules of a node that contain text.
func (n *node) rulesWith(t *testing.T, family int, text string) ([]string, error) {
	t.Helper()
	save, err := n.iptables(t.Context(), tool(family)+"-save")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "-A ") && strings.Contains(line, text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found, nil
}

// wrap puts a shell script before programs of the node's backend, for the time of the
// case, and returns the command of an agent that meets it. In the script, real is the
// program itself.
func (n *node) wrap(t *testing.T, script string, programs ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for _, program := range programs {
		family, verb, _ := strings.Cut(program, "-")
		name := family + "-" + n.backend
		if verb != "" {
			name += "-" + verb
		}
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		// The program looks at the name that it is called by.
		text := fmt.Sprintf("#!/bin/bash\nreal() { exec -a %s %s \"$@\"; }\n%s\n", name, real, script)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := n.command(n.agentArgs(n.kubeconfig)...)
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+filepath.Join(n.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}
