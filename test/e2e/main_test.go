package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

var (
	agentFlag = flag.String("agent", agentMiniproxy,
		"program to test: miniproxy, or kube-proxy to see how the cases judge the original")
	workDirFlag = flag.String("workdir", "",
		"existing directory to keep logs in; without it they go with the test run")
)

// The environment between the two runs of this program, see TestMain.
const (
	envInside       = "MINIPROXY_E2E_INSIDE"       // set in the inner run
	envBinary       = "MINIPROXY_BIN"              // the agent's binary; may also be given by the user
	envControlPlane = "MINIPROXY_E2E_CONTROLPLANE" // directory of kube-apiserver and the others
)

// skipReason is why nothing can be tested here; nil when everything can.
var skipReason error

// TestMain runs the tests as the first process of namespaces of their own: process
// ids, mounts and network. Whatever ends that process, a panic and a kill included,
// ends every program it started and removes every network namespace it made. Its
// /run is its own as well, so the lock of iptables is not shared with the machine.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(envInside) != "" {
		os.Exit(inside(m))
	}
	skipReason = missing()
	if skipReason == nil {
		code, err := outside()
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
		os.Exit(code)
	}
	if required() && !testing.Short() {
		fmt.Fprintln(os.Stderr, "e2e:", skipReason)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// required reports whether a missing tool is a failure rather than a skip.
func required() bool {
	return os.Getenv(labtest.RequireRoot) != "" || os.Getenv("CI") != ""
}

// missing names the first thing that the tests need and this machine does not have.
func missing() error {
	if testing.Short() {
		return errors.New("end-to-end tests take minutes: not run with -short")
	}
	if err := lab.Available(); err != nil {
		return err
	}
	tools := map[string]string{
		"curl":              "curl",
		"etcd":              "etcd-server",
		"iptables-nft":      "iptables",
		"iptables-legacy":   "iptables",
		"ip6tables-nft":     "iptables",
		"ip6tables-legacy":  "iptables",
		"iptables-nft-save": "iptables",
	}
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("the command %s is missing (package %s)", tool, pkg)
		}
	}
	return nil
}

// outside builds what the tests run and runs this program again in namespaces of its
// own. It returns that run's exit status.
func outside() (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	tmp, err := os.MkdirTemp("", "miniproxy-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(tmp)
	binary, err := agentBinary(ctx, tmp)
	if err != nil {
		return 1, err
	}
	programs, err := controlPlanePrograms(ctx)
	if err != nil {
		return 1, err
	}

	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envInside+"=1", envBinary+"="+binary, envControlPlane+"="+programs)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The kernel sends Pdeathsig when the thread ends that started the process.
	runtime.LockOSThread()
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// agentBinary returns the path of the program under test, built into dir unless the
// environment names one.
func agentBinary(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "miniproxy")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "../../cmd/miniproxy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build miniproxy: %w", err)
	}
	return path, nil
}

// controlPlanePrograms returns the directory of the Kubernetes programs, after
// building those that are not there yet.
func controlPlanePrograms(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "../../hack/controlplane.sh", "kube-apiserver", "kube-controller-manager", agentKubeProxy)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build the control plane: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// inside prepares the namespaces and runs the tests.
func inside(m *testing.M) int {
	if err := enter(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	return code
}

// enter gives the process the /proc of its process ids and an empty /run.
func enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return nil
}
