package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// slowIPv6Restore is an ip6tables-restore that begins to write rules when a file goes.
const slowIPv6Restore = `#!/bin/sh
input=$(mktemp)
trap 'rm -f "$input"' EXIT
cat > "$input"
if grep -q KUBE-FORWARD "$input"; then
	touch "$0.waits"
	for i in $(seq 600); do [ -e "$0.hold" ] || break; sleep 0.1; done
fi
"$REAL_RESTORE" "$@" < "$input"
`

// TestDamageDuringTheStart flushes a family's tables after its first sync, and before that
// of the other family, when nobody watches yet. That the rules are looked after from time to
// time is of no help here: the period is an hour.
func TestDamageDuringTheStart(t *testing.T) {
	n := newIdleDriftNode(t, iptables.NFT)
	name := n.program(model.IPv6, "-restore")
	real, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	for name, text := range map[string]string{path: slowIPv6Restore, path + ".hold": ""} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := n.command("--iptables-sync-period=1h")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "REAL_RESTORE="+real)
	n.start(cmd)
	eventually(t, "one family is written, the other waits", func() bool {
		_, err := os.Stat(path + ".waits")
		return err == nil && strings.Contains(n.said.String(), `"Wrote all rules" family="IPv4"`)
	})
	want := n.rules(model.IPv4)
	if strings.Contains(want, "-A KUBE-PROXY-CANARY") {
		t.Error("there are canaries already, so that nothing is tested")
	}
	n.as(n.program(model.IPv4, ""), "-t", "nat", "-F")
	n.as(n.program(model.IPv4, ""), "-t", "filter", "-D", "FORWARD", "1")
	if err := os.Remove(path + ".hold"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rules are back", func() bool {
		now := n.rules(model.IPv4)
		for line := range strings.Lines(want) {
			if !strings.Contains(now, line) {
				return false
			}
		}
		return true
	})
}
