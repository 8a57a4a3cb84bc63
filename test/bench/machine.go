package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what results depend on besides the programs themselves.
type machine struct {
	kernel, iptables     string
	miniproxy, kubeProxy string
}

func describeMachine(ctx context.Context, c config) (m machine, err error) {
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return machine{}, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	m.kernel = unix.ByteSliceToString(uname.Release[:])
	for _, program := range []struct {
		path string
		into *string
	}{{"iptables", &m.iptables}, {c.miniproxy, &m.miniproxy}, {c.kubeProxy, &m.kubeProxy}} {
		out, err := exec.CommandContext(ctx, program.path, "--version").Output()
		if err != nil {
			return machine{}, fmt.Errorf("ask %q for its version: %w", program.path, err)
		}
		fields := strings.Fields(string(out))
		if len(fields) < 2 {
			return machine{}, fmt.Errorf("ask %q for its version: unexpected answer %q", program.path, out)
		}
		*program.into = fields[1]
	}
	return m, nil
}

// String describes the machine and the programs, without their names.
func (m machine) String() string {
	return fmt.Sprintf("%d CPUs (%s), Linux %s, iptables %s, %s, miniproxy %s, kube-proxy %s",
		runtime.NumCPU(), runtime.GOARCH, m.kernel, strings.TrimPrefix(m.iptables, "v"), runtime.Version(), m.miniproxy, m.kubeProxy)
}
