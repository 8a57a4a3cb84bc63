package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// agentArgs are the flags of the agent, and of the commands that judge its work.
func agentArgs(backend iptables.Backend) []string {
	return []string{
		"--manifests=../../examples", "--hostname-override=n1", "--iptables-backend=" + string(backend),
		"--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--conntrack-max-per-core=0", "--oom-score-adj=0",
	}
}

// letAgentWrite runs the agent on a host until it has written everything. Its rules stay.
func letAgentWrite(t *testing.T, host *lab.Host, backend iptables.Backend) {
	t.Helper()
	var said strings.Builder
	cmd := host.Command(context.WithoutCancel(t.Context()), self(t), append([]string{"run"}, agentArgs(backend)...)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || t.Failed() {
			t.Errorf("agent: %v; it said:\n%s", err, &said)
		}
	}()
	awaitReady(t, host)
	awaitCanaries(t, host, backend)
}

// awaitReady waits until the agent on a host has written everything.
func awaitReady(t *testing.T, host *lab.Host) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		_, err := host.Run(t.Context(), "curl", "-fsS", "http://127.0.0.1:10256/readyz")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for the agent: %v", err)
		}
	}
}

// runOn runs a command of this program in the namespace of a host, in this process.
func runOn(t *testing.T, host *lab.Host, run func(context.Context, []string, streams) error, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := 0
	err := host.Do(func() error {
		code = exitCodeOf(run(t.Context(), args, streams{&out, &errs}), &errs)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return outcome{code, out.String(), errs.String()}
}

// diffOn runs diff on a host, without a pause between its looks.
func diffOn(t *testing.T, host *lab.Host, args ...string) outcome {
	t.Helper()
	d := newDiff()
	d.pause = 0
	return runOn(t, host, d.run, args...)
}

// tables is a way to bring a host's tables back to what they were.
type tables struct {
	host  *lab.Host
	saved map[string]string // by the program that saved them
}

func saveTables(t *testing.T, host *lab.Host) tables {
	t.Helper()
	s := tables{host, map[string]string{}}
	for _, program := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		// All three, so that one that did not exist is emptied again.
		text := ""
		for _, table := range []string{"nat", "filter", "mangle"} {
			saved, err := host.Run(t.Context(), program+"-save", "-t", table)
			if err != nil {
				t.Fatal(err)
			}
			text += saved
		}
		s.saved[program] = text
	}
	return s
}

func (s tables) restore(t *testing.T) {
	t.Helper()
	for program, text := range s.saved {
		cmd := s.host.Command(t.Context(), program+"-restore")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s-restore: %v: %s", program, err, out)
		}
	}
}

func TestDiffOnKernel(t *testing.T) {
	l := labtest.New(t)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		host, err := l.Host(string(backend))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(string(backend), func(t *testing.T) { testDiff(t, host, backend) })
	}
}

func testDiff(t *testing.T, host *lab.Host, backend iptables.Backend) {
	args := agentArgs(backend)
	if got := diffOn(t, host, args...); got.code != exitDiffers || !strings.Contains(got.out, "missing  nat/KUBE-SERVICES\n") {
		t.Errorf("before the agent: %+v", got)
	}
	if names := legacyTableNames(t, host); backend == iptables.Legacy && names != "" {
		t.Errorf("looking made the tables %q", names)
	}
	letAgentWrite(t, host, backend)
	if got := diffOn(t, host, args...); got != (outcome{}) {
		t.Fatalf("after the agent: %+v, want nothing", got)
	}
	before := saveTables(t, host)
	const sepOfNobody = "KUBE-SEP-AAAAAAAAAAAAAAAA"
	tests := []struct {
		name   string
		damage []string
		want   []string // lines; none if nothing differs
	}{
		{
			name:   "a flushed chain",
			damage: []string{"iptables -t nat -F KUBE-POSTROUTING"},
			want: []string{
				"changed  nat/KUBE-POSTROUTING",
				"+ -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
				"+ -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
				`+ -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`,
			},
		},
		{
			name:   "an inserted rule",
			damage: []string{"iptables -t nat -I KUBE-POSTROUTING 2 -s 192.0.2.0/24 -j ACCEPT"},
			want:   []string{"changed  nat/KUBE-POSTROUTING", "- -A KUBE-POSTROUTING -s 192.0.2.0/24 -j ACCEPT"},
		},
		{
			name: "two rules in the wrong order",
			damage: []string{
				"iptables -t nat -D KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
				"iptables -t nat -I KUBE-POSTROUTING 1 -j MARK --set-xmark 0x4000/0x0",
			},
			want: []string{
				"order    nat/KUBE-POSTROUTING",
				"- -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
				"+ -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
			},
		},
		{
			name:   "a lost jump",
			damage: []string{"iptables -t nat -D OUTPUT 1"},
			want: []string{
				"jump     nat/OUTPUT: missing",
				`+ -A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
			},
		},
		{
			name:   "a jump behind a REJECT",
			damage: []string{"iptables -D INPUT -j KUBE-FIREWALL", "iptables -A INPUT -j REJECT", "iptables -A INPUT -j KUBE-FIREWALL"},
			want: []string{
				"jump     filter/INPUT: behind a rule that lets no packet past",
				"+ -A INPUT -j KUBE-FIREWALL",
				"  -A INPUT -j REJECT --reject-with icmp-port-unreachable",
				"- -A INPUT -j KUBE-FIREWALL",
			},
		},
		{
			name:   "a jump out of order",
			damage: []string{"iptables -D INPUT -j KUBE-FIREWALL", "iptables -A INPUT -j KUBE-FIREWALL"},
			want:   []string{"jump     filter/INPUT: out of order", "  -A INPUT -j KUBE-FIREWALL"},
		},
		{
			name:   "a jump twice",
			damage: []string{"iptables -A INPUT -j KUBE-FIREWALL"},
			want:   []string{"jump     filter/INPUT: there twice", "- -A INPUT -j KUBE-FIREWALL"},
		},
		{
			name:   "a chain left over",
			damage: []string{"iptables -t nat -N " + sepOfNobody, "iptables -t nat -A " + sepOfNobody + " -j RETURN"},
			want:   []string{"foreign  nat/" + sepOfNobody, "- -A " + sepOfNobody + " -j RETURN"},
		},
		{
			name:   "a canary",
			damage: []string{"iptables -t mangle -F KUBE-PROXY-CANARY", "iptables -t mangle -X KUBE-PROXY-CANARY"},
			want: []string{
				"canary   mangle/KUBE-PROXY-CANARY: missing",
				`+ -A KUBE-PROXY-CANARY -m comment --comment "if this rule is gone, the table was flushed" -j RETURN`,
			},
		},
		{
			name:   "the rule that guards loopback addresses",
			damage: []string{"iptables -F KUBE-FIREWALL"},
			want: []string{
				"changed  filter/KUBE-FIREWALL",
				`+ -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`,
			},
		},
		{
			name: "what others keep is theirs",
			damage: []string{
				"iptables -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", // kubelet's
				"iptables -t nat -N KUBE-MARK-DROP", "iptables -t mangle -N KUBE-KUBELET-CANARY",
				"iptables -I INPUT 1 -s 192.0.2.1 -j ACCEPT", "iptables -A FORWARD -j DROP", "iptables -P FORWARD DROP",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer before.restore(t)
			for _, line := range test.damage {
				words := strings.Fields(line)
				if _, err := host.Run(t.Context(), words[0]+"-"+string(backend), words[1:]...); err != nil {
					t.Fatal(err)
				}
			}
			got := diffOn(t, host, args...)
			want := outcome{}
			if test.want != nil {
				want.code = exitDiffers
				want.out = fmt.Sprintf("IPv4 %s: - is in the kernel and should not be, + should be and is not\n%s\n", backend, strings.Join(test.want, "\n"))
			}
			if got != want {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
	t.Run("the other backend", func(t *testing.T) { testDiffFindsLeftovers(t, host, backend) })
	t.Run("as JSON", func(t *testing.T) {
		defer before.restore(t)
		if _, err := host.Run(t.Context(), "ip6tables-"+string(backend), "-t", "nat", "-D", "OUTPUT", "1"); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`[
  {
    "family": "IPv6",
    "backend": "%s",
    "kind": "jump",
    "table": "nat",
    "chain": "OUTPUT",
    "why": "missing",
    "lines": [
      {
        "op": "+",
        "rule": "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"
      }
    ]
  }
]
`, backend)
		if got := diffOn(t, host, append(args, "--output=json")...); got != (outcome{exitDiffers, want, ""}) {
			t.Errorf("got %+v\nwant %s", got, want)
		}
		if got := diffOn(t, host, append(args, "-o", "json", "--family=ipv4")...); got != (outcome{out: "[]\n"}) {
			t.Errorf("the other family: got %+v, want an empty list", got)
		}
	})
}

// testDiffFindsLeftovers has a chain of ours in the backend that is not in use.
func testDiffFindsLeftovers(t *testing.T, host *lab.Host, backend iptables.Backend) {
	other := otherBackend(backend)
	for _, command := range []string{"-N", "-X"} {
		if _, err := host.Run(t.Context(), "ip6tables-"+string(other), "-t", "nat", command, "KUBE-SVC-LEFTOVER"); err != nil {
			t.Fatal(err)
		}
		got := diffOn(t, host, agentArgs(backend)...)
		want := outcome{}
		if command == "-N" {
			want = outcome{code: exitDiffers, out: fmt.Sprintf("IPv6 %s: - is in the kernel and should not be, + should be and is not\n"+
				"foreign  nat/KUBE-SVC-LEFTOVER: this backend is not the one in use\n", other)}
		}
		if got != want {
			t.Errorf("%s: got %+v\nwant %+v", command, got, want)
		}
	}
}

// legacyTableNames are the tables of the legacy backend that exist on a host.
func legacyTableNames(t *testing.T, host *lab.Host) string {
	t.Helper()
	var text []byte
	err := host.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/ip_tables_names")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What the kernel lacks is not missing from the rules. These are features on which more
// depends than what is rendered: canaries, jump rules, accounting objects, and what is
// asked for only if a Service needs it.
func TestDiffExpectsWhatTheKernelHas(t *testing.T) {
	if !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	host, err := labtest.New(t).Host("n1")
	if err != nil {
		t.Fatal(err)
	}
	manifests := "--manifests=" + write(t, "services.yaml", degradedServices)
	for _, d := range degradations {
		if !slices.Contains([]string{"", "comment", "conntrack", "nfacct", "sctp"}, d.feature) {
			continue
		}
		t.Run(strings.Join(d.words, ","), func(t *testing.T) {
			programs := lackingPrograms(t, iptables.NFT, model.Families[:], d.words...)
			cleanUpOn(t, host, iptables.NFT)
			agent := startDegraded(t, host, iptables.NFT, programs, manifests)
			awaitReady(t, host)
			awaitCanaries(t, host, iptables.NFT)
			agent.stop(t)
			t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
			if got := diffOn(t, host, append(agentArgs(iptables.NFT), manifests)...); got != (outcome{}) {
				t.Errorf("got %+v, want no difference", got)
			}
		})
	}
}

func TestDiffTrouble(t *testing.T) {
	labtest.Require(t)
	host, err := labtest.New(t).Host("n1")
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("kind: Service\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"no manifests", []string{"-f", "/does/not/exist"}, "/does/not/exist"},
		{"a broken manifest", []string{"-f", broken}, broken},
		{"no Node with a range of pods", []string{"-f", "../../examples", "--detect-local-mode=NodeCIDR", "--hostname-override=other"}, `there is none on a Node "other"`},
		{"no kubeconfig", []string{"--kubeconfig=/does/not/exist"}, "/does/not/exist"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := diffOn(t, host, test.args...)
			if got.code != exitTrouble || got.out != "" || !strings.Contains(got.err, test.want) {
				t.Errorf("got %+v, want exit code %d and %q", got, exitTrouble, test.want)
			}
		})
	}
}

func TestLookUntilSteady(t *testing.T) {
	differs := func(name string) []familyDiff {
		return []familyDiff{{Family: model.IPv4, Backend: iptables.NFT, Differences: []audit.Difference{
			{Kind: audit.Missing, Chain: ruleset.ChainID{Table: ruleset.NAT, Name: name}},
		}}}
	}
	failed := errors.New("could not look")
	tests := []struct {
		name   string
		looks  [][]familyDiff // nil: an error
		want   int            // how many looks there are
		steady bool
	}{
		{"the same at once", [][]familyDiff{{}}, 1, true},
		{"twice the same difference", [][]familyDiff{differs("A"), differs("A")}, 2, true},
		{"an agent finishes", [][]familyDiff{differs("A"), {}}, 2, true},
		{"an agent writes and something stays", [][]familyDiff{differs("A"), differs("B"), differs("B")}, 3, true},
		{"never the same", [][]familyDiff{differs("A"), differs("B"), differs("A"), differs("B")}, 4, false},
		{"an error ends it", [][]familyDiff{differs("A"), nil}, 2, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			looks := 0
			found, steady, err := lookUntilSteady(t.Context(), 0, func() ([]familyDiff, error) {
				looks++
				if test.looks[looks-1] == nil {
					return nil, failed
				}
				return test.looks[looks-1], nil
			})
			last := test.looks[len(test.looks)-1]
			if looks != test.want || steady != test.steady || errors.Is(err, failed) != (last == nil) {
				t.Errorf("got %d looks, steady %t, %v; want %d and %t", looks, steady, err, test.want, test.steady)
			}
			if !slices.EqualFunc(found, last, func(a, b familyDiff) bool { return sameDifferences([]familyDiff{a}, []familyDiff{b}) }) {
				t.Errorf("got %v, want the last look", found)
			}
		})
	}
}
