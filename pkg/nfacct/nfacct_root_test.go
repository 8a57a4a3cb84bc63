package nfacct

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

func newHost(t *testing.T) *lab.Host {
	t.Helper()
	host, err := labtest.New(t).Host("node")
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// requireKernel skips the test on a kernel without nfacct.
func requireKernel(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrUnsupported) && os.Getenv(labtest.RequireRoot) == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestObjects(t *testing.T) {
	host := newHost(t)
	packets := func(name string) (n uint64, err error) {
		err = host.Do(func() error { n, err = Kernel{}.Packets(name); return err })
		return n, err
	}
	ensure := func(name string) error { return host.Do(func() error { return Kernel{}.Ensure(name) }) }

	if _, err := packets(InvalidDropped); !errors.Is(err, ErrNotFound) {
		t.Errorf("before it is made: got %v, want %v", err, ErrNotFound)
	}
	requireKernel(t, ensure(InvalidDropped))
	if n, err := packets(InvalidDropped); n != 0 || err != nil {
		t.Errorf("new object: got %d, %v, want 0", n, err)
	}

	// Three packets to a closed port of the loopback interface, counted in OUTPUT.
	rules := "*filter\n-A OUTPUT -p udp --dport 9 -m nfacct --nfacct-name " + InvalidDropped + "\nCOMMIT\n"
	if _, err := exec.LookPath("iptables-restore"); err != nil && os.Getenv(labtest.RequireRoot) == "" {
		t.Skip(err)
	}
	cmd := host.Command(t.Context(), "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("iptables-restore: %v\n%s", err, out)
	}
	for range 3 {
		// A connection each, since the answer "unreachable" fails the next write.
		conn, err := host.Dial(t.Context(), "udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	// An agent that starts again must not reset the count.
	if err := ensure(InvalidDropped); err != nil {
		t.Errorf("ensure again: %v", err)
	}
	if n, err := packets(InvalidDropped); n != 3 || err != nil {
		t.Errorf("got %d, %v, want the 3 packets that were sent", n, err)
	}
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", MaxName+1)} {
		if err := (Kernel{}).Ensure(name); err == nil {
			t.Errorf("name of %d bytes: got no error", len(name))
		}
	}
	host := newHost(t)
	requireKernel(t, host.Do(func() error { return Kernel{}.Ensure(strings.Repeat("x", MaxName)) }))
}

func TestExplain(t *testing.T) {
	for _, tc := range []struct{ err, want error }{
		{unix.ENOENT, ErrNotFound}, {unix.EINVAL, ErrUnsupported}, {unix.EPERM, unix.EPERM},
	} {
		if got := explain(tc.err); !errors.Is(got, tc.want) {
			t.Errorf("%v: got %v, want %v", tc.err, got, tc.want)
		}
	}
}
