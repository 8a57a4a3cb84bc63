package hostile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// worlds is how many random worlds the kernel is asked about, and perRun how many of
// them one program restores.
const (
	worlds = 160
	perRun = 40
)

// TestKernelTakesWhatIsRendered restores, with both backends, what the seeds and random
// bytes come to: first as a test, then for good, since only then the kernel itself is
// asked.
func TestKernelTakesWhatIsRendered(t *testing.T) {
	labtest.Require(t)
	inputs := randomInputs(t, worlds)
	good, endpoints := good()
	l := labtest.New(t)
	for _, backend := range []string{"nft", "legacy"} {
		for _, family := range model.Families {
			t.Run(fmt.Sprintf("%s/%v", backend, family), func(t *testing.T) {
				host, err := l.Host(fmt.Sprintf("%s%v", backend, family))
				if err != nil {
					t.Fatal(err)
				}
				var texts [][]byte
				for _, input := range inputs {
					c := &choices{input}
					services, slices := c.world()
					rs := mustRender(t, family, append(services, good...), append(slices, endpoints...))
					texts = append(texts, rs.Append(nil))
				}
				k := kernel{t, host, program(backend, family), filepath.Join(t.TempDir(), "xtables.lock")}
				for len(texts) > 0 {
					n := min(perRun, len(texts))
					k.mustTake(texts[:n])
					texts = texts[n:]
				}
			})
		}
	}
}

func program(backend string, family model.Family) string {
	if family == model.IPv6 {
		return "ip6tables-" + backend + "-restore"
	}
	return "iptables-" + backend + "-restore"
}

// kernel is iptables-restore of one backend and family on a host.
type kernel struct {
	t       *testing.T
	host    *lab.Host
	program string
	lock    string
}

// mustTake restores texts, each in the place of all rules before it. If the program
// refuses one of them, each is tried alone, and those that it refuses are shown.
func (k kernel) mustTake(texts [][]byte) {
	k.t.Helper()
	all := bytes.Join(texts, nil)
	for _, args := range [][]string{{"--test"}, nil} {
		if k.restore(all, args...) == nil {
			continue
		}
		for _, text := range texts {
			if err := k.restore(text, args...); err != nil {
				k.t.Errorf("%s %v: %v\n%s", k.program, args, err, text)
			}
		}
		if !k.t.Failed() {
			k.t.Errorf("%s %v refuses together what it takes one by one", k.program, args)
		}
	}
}

func (k kernel) restore(text []byte, args ...string) error {
	cmd := k.host.Command(k.t.Context(), k.program, args...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+k.lock)
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
