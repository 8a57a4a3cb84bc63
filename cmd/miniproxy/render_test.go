package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// example returns the flags that name an example and its nodes.
func example(names ...string) []string {
	args := []string{"render", "--cluster-cidr=10.244.0.0/16,fd00:244::/32", "-f", "../../examples/nodes.yaml"}
	for _, name := range names {
		args = append(args, "-f", "../../examples/"+name)
	}
	return args
}

func TestRenderExamples(t *testing.T) {
	tests := []struct {
		golden string
		args   []string
	}{
		{"01-clusterip", append(example("01-clusterip.yaml"), "--node=n1")},
		{"02-nodeport", append(example("02-nodeport.yaml"), "--node=n1")},
		{"02-nodeport-on-n2", append(example("02-nodeport.yaml"), "--node=n2", "--table=nat", "--nodeport-addresses=primary,localhost")},
		{"07-dual-stack-ipv6", append(example("07-dual-stack.yaml"), "--node=n1", "--family=IPv6")},
	}
	for _, test := range tests {
		t.Run(test.golden, func(t *testing.T) {
			got := runCommand(t, test.args...)
			if got.code != exitOK || got.err != "" {
				t.Fatalf("exit code %d, stderr:\n%s", got.code, got.err)
			}
			path := filepath.Join("testdata", test.golden+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got.out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got.out != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got.out, want)
			}
		})
	}
}

// Every example can be rendered on both nodes, for both families, into rules that the
// kernel would take.
func TestRenderedExamplesAreSound(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d examples, error %v", len(files), err)
	}
	for _, file := range files {
		for _, node := range []string{"n1", "n2", "unknown"} {
			for _, family := range []string{"ipv4", "ipv6"} {
				args := []string{"render", "--node", node, "--family", family, "-f", "../../examples/nodes.yaml"}
				if filepath.Base(file) != "nodes.yaml" {
					args = append(args, "-f", file)
				}
				got := runCommand(t, args...)
				isWarned := strings.Contains(got.err, `nothing in the manifests is on node "unknown"`)
				if got.code != exitOK || isWarned != (node == "unknown") || !isWarned && got.err != "" {
					t.Errorf("%s: exit code %d, stderr:\n%s", args, got.code, got.err)
					continue
				}
				rules, err := ruleset.Decode([]byte(got.out))
				if err != nil {
					t.Errorf("%s: %v", args, err)
					continue
				}
				if err := ruleset.Check(rules); err != nil {
					t.Errorf("%s: %v", args, err)
				}
			}
		}
	}
}

func TestRenderIsTheSameInAnyOrder(t *testing.T) {
	forth := runCommand(t, append(example("01-clusterip.yaml", "02-nodeport.yaml"), "--node=n1")...)
	back := runCommand(t, append(example("02-nodeport.yaml", "01-clusterip.yaml"), "--node=n1")...)
	if forth.out != back.out {
		t.Errorf("one order:\n%s\nthe other:\n%s", forth.out, back.out)
	}
	if override := runCommand(t, append(example("01-clusterip.yaml", "02-nodeport.yaml"), "--hostname-override= N1 ")...); override.out != forth.out {
		t.Errorf("with --hostname-override:\n%s\nwith --node:\n%s", override.out, forth.out)
	}
}

func TestRenderOneTable(t *testing.T) {
	both := runCommand(t, append(example("01-clusterip.yaml"), "--node=n1")...).out
	filter := runCommand(t, append(example("01-clusterip.yaml"), "--node=n1", "--table=filter")...).out
	nat := runCommand(t, append(example("01-clusterip.yaml"), "--node=n1", "--table=nat")...).out
	if filter+nat != both || strings.Contains(nat, "*filter") || strings.Contains(filter, "*nat") {
		t.Errorf("filter:\n%s\nnat:\n%s", filter, nat)
	}
}

// The comments are commands that can be run as they stand: they put the jump rules of
// their family into the order in which the agent keeps them.
func TestRenderedJumpRulesCanBeRun(t *testing.T) {
	for family, program := range map[string]string{"ipv4": "iptables", "ipv6": "ip6tables"} {
		got := runCommand(t, append(example("07-dual-stack.yaml"), "--node=n1", "--family="+family)...)
		have := map[ruleset.ChainID][]string{}
		for line := range strings.Lines(got.out) {
			command, isCommand := strings.CutPrefix(line, "#   ")
			if !isCommand || strings.HasPrefix(command, program+" -t filter -N KUBE-FIREWALL ") {
				continue
			}
			var id ruleset.ChainID
			var at int
			if n, err := fmt.Sscanf(command, program+" -t %s -I %s %d", &id.Table, &id.Name, &at); n != 3 || at < 1 || at > len(have[id])+1 {
				t.Errorf("%s: cannot run %q: %v", family, command, err)
				continue
			}
			_, rule, _ := strings.Cut(command, fmt.Sprintf(" %s %d ", id.Name, at))
			have[id] = slices.Insert(have[id], at-1, strings.TrimSpace(rule))
		}
		for _, from := range ruleset.HookedChains(render.Hooks()) {
			var want []string
			for _, rule := range ruleset.HooksIn(render.Hooks(), from) {
				want = append(want, rule.String())
			}
			if !slices.Equal(have[from], want) {
				t.Errorf("%s: %s has %q, want %q", family, from, have[from], want)
			}
		}
	}
}

const twoClaims = `apiVersion: v1
kind: Service
metadata: {name: young, namespace: default, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  clusterIP: 10.96.0.1
  externalIPs: [10.60.0.10]
  ports: [{port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: default, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  clusterIP: 10.96.0.2
  externalIPs: [10.60.0.10]
  ports: [{port: 80, protocol: TCP}]
`

func TestRenderReportsConflicts(t *testing.T) {
	got := runCommand(t, "render", "-f", write(t, "conflict.yaml", twoClaims))
	if want := "miniproxy: default/young is not served at 10.60.0.10:80/TCP: default/old has it\n"; got.code != exitOK || got.err != want {
		t.Errorf("exit code %d, stderr %q, want %q", got.code, got.err, want)
	}
	if n := strings.Count(got.out, "-d 10.60.0.10/32"); n != 1 {
		t.Errorf("%d rules for the external IP, want 1:\n%s", n, got.out)
	}
}

func TestRenderReportsWhatItLeavesOut(t *testing.T) {
	got := runCommand(t, "render", "-f", write(t, "mixed.yaml", twoClaims+"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"))
	if got.code != exitOK || !strings.Contains(got.err, "Deployment (apps/v1) is left out") || !strings.Contains(got.out, "default/old") {
		t.Errorf("exit code %d, stderr:\n%s", got.code, got.err)
	}
}

func TestRenderRefusesOneObjectTwice(t *testing.T) {
	file := write(t, "conflict.yaml", twoClaims)
	got := runCommand(t, "render", "-f", file, "-f", file)
	if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, "default/old is in an earlier file") {
		t.Errorf("exit code %d, stderr:\n%s", got.code, got.err)
	}
}

func TestRenderStandardInput(t *testing.T) {
	got := runProcess(t, twoClaims, "render", "-f", "-", "--table=filter")
	if got.code != exitOK || !strings.Contains(got.out, `"default/old has no endpoints"`) {
		t.Errorf("exit code %d, stdout:\n%s\nstderr:\n%s", got.code, got.out, got.err)
	}
}
