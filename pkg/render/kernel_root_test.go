package render

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestKernelTakesEveryCase lets the real tools judge: what is rendered is restored
// into a kernel, by both backends, and read back as it was meant.
func TestKernelTakesEveryCase(t *testing.T) {
	l := labtest.New(t)
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	for _, backend := range []string{"nft", "legacy"} {
		for i, c := range cases() {
			t.Run(backend+"/"+c.name, func(t *testing.T) {
				if c.options.InvalidAccount != "" {
					t.Skip("names accounting objects that would have to be made first")
				}
				host, err := l.Host(fmt.Sprintf("%s%d", backend, i))
				if err != nil {
					t.Fatal(err)
				}
				want := c.world.render(c.options)
				tool := tools{t, host, lock, programs(c.options.Family, backend)}
				tool.restore(want.text())
				for _, diff := range ruleset.Diff(tool.save(), want.Ruleset) {
					t.Errorf("the kernel holds something else: %v", diff)
				}
				// Once more, over what is there.
				tool.restore(want.text())
			})
		}
	}
}

// programs returns what the names of a family's and backend's programs begin with.
func programs(family model.Family, backend string) string {
	if family == model.IPv6 {
		return "ip6tables-" + backend
	}
	return "iptables-" + backend
}

// tools are the programs of one family and backend in one network namespace.
type tools struct {
	t        *testing.T
	host     *lab.Host
	lock     string
	programs string
}

func (x tools) run(input []byte, program string, args ...string) []byte {
	x.t.Helper()
	var out, err bytes.Buffer
	cmd := x.host.Command(x.t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+x.lock)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &err
	if failed := cmd.Run(); failed != nil {
		x.t.Fatalf("%s: %v\n%s\ninput:\n%s", program, failed, err.Bytes(), input)
	}
	return out.Bytes()
}

func (x tools) restore(input []byte) {
	x.t.Helper()
	x.run(input, x.programs+"-restore", "--noflush")
}

// save returns the chains that are not built in.
func (x tools) save() ruleset.Ruleset {
	x.t.Helper()
	rules, err := ruleset.Decode(x.run(nil, x.programs+"-save"))
	if err != nil {
		x.t.Fatal(err)
	}
	for id := range rules {
		if id.IsBuiltin() {
			delete(rules, id)
		}
	}
	return rules
}
