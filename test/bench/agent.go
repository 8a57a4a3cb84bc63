package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// sampling is how often the memory of an agent's children is looked at. Those that use
// much of it run for long.
const sampling = 25 * time.Millisecond

// agent is a program under measurement that runs.
type agent struct {
	cmd     *exec.Cmd
	log     string
	started time.Time
	done    chan struct{}
	// childPeak is the largest memory of one of its children so far.
	childPeak atomic.Int64
}

// startAgent starts a program on the node with the iptables commands of the row's
// backend. Its output goes to a file in dir.
func startAgent(ctx context.Context, host *lab.Host, r row, program, dir string) (*agent, error) {
	bin, err := linkTools(dir, r.backend)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigText), 0o600); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := host.Command(ctx, program, append(append([]string{}, r.args...), commonArgs(kubeconfig)...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that its children can be ended with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a := &agent{cmd: cmd, log: log.Name(), started: time.Now(), done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", r.name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(a.done)
	}()
	go a.watchChildren()
	return a, nil
}

const kubeconfigText = `apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "http://` + apiAddr + `"}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
users: [{name: bench}]
current-context: bench
`

// linkTools makes a directory in which iptables and its like mean the backend, as the
// links that a distribution's alternatives make do.
func linkTools(dir, backend string) (string, error) {
	bin := filepath.Join(dir, "bin-"+backend)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			tool, err := exec.LookPath(family + "-" + backend + verb)
			if err != nil {
				return "", err
			}
			// The program looks at the name it is called by, so the link must lead to the
			// program itself and not to one more link.
			if tool, err = filepath.EvalSymlinks(tool); err != nil {
				return "", err
			}
			if err := os.Symlink(tool, filepath.Join(bin, family+verb)); err != nil && !os.IsExist(err) {
				return "", err
			}
		}
	}
	return bin, nil
}

// watchChildren keeps childPeak until the agent ends.
func (a *agent) watchChildren() {
	every := time.NewTicker(sampling)
	defer every.Stop()
	for {
		select {
		case <-a.done:
			return
		case <-every.C:
		}
		own := program(a.cmd.Process.Pid)
		for _, pid := range children(a.cmd.Process.Pid) {
			// Until a child runs a program of its own, its memory is its parent's.
			if program(pid) == own {
				continue
			}
			if m, err := memoryOf(pid); err == nil && m.peak > a.childPeak.Load() {
				a.childPeak.Store(m.peak)
			}
		}
	}
}

// alive returns why the agent does not run any more, nil while it does.
func (a *agent) alive() error {
	select {
	case <-a.done:
		text, _ := os.ReadFile(a.log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return fmt.Errorf("it has ended (%v); its last words:\n%s", a.cmd.ProcessState, strings.Join(lines[max(0, len(lines)-10):], "\n"))
	default:
		return nil
	}
}

// settle waits until what the agent does has ended: for some looks in a row it has no
// children, and uses next to no CPU time. Programs look after what they have just written a
// moment later, which is part of no change. It does not wait for ever, because the machine
// may be busy.
func (a *agent) settle(ctx context.Context) error {
	const look, looks, patience = 500 * time.Millisecond, 8, time.Minute
	before, err := cpuTime(a.cmd.Process.Pid)
	calm := 0
	for start := time.Now(); err == nil && calm < looks && time.Since(start) < patience; {
		if err := pause(ctx, look); err != nil {
			return err
		}
		var now time.Duration
		now, err = cpuTime(a.cmd.Process.Pid)
		if now-before <= 2*tick && len(children(a.cmd.Process.Pid)) == 0 {
			calm++
		} else {
			calm = 0
		}
		before = now
	}
	return err
}

// kill ends the agent and its children as a crash would, and waits for the end.
func (a *agent) kill() {
	_ = unix.Kill(-a.cmd.Process.Pid, unix.SIGKILL) // if it has ended, so be it
	<-a.done
}

// pause waits unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
