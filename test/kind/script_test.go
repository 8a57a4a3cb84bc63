package kind

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	script       = "../../hack/kind.sh"
	manifestFile = "../../deploy/daemonset.yaml"
)

// runScript runs hack/kind.sh against stubs and returns what it printed, its exit
// status and the calls it made.
func runScript(t *testing.T, answer, command string, env ...string) (string, int, []call) {
	t.Helper()
	s := newStubs(t, "kind", "kubectl", "docker")
	t.Setenv(envAnswer, answer)
	cmd := exec.Command("bash", script, command)
	cmd.Env = append(cmd.Environ(), env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// A non-zero status is a result; that the script did not start at all shows in
	// the calls that it did not make.
	_ = cmd.Run()
	return output.String(), cmd.ProcessState.ExitCode(), s.calls(t)
}

// lines returns the calls as command lines.
func lines(calls []call) []string {
	var out []string
	for _, c := range calls {
		out = append(out, c.Name+" "+strings.Join(c.Args, " "))
	}
	return out
}

// find returns the index of the first call that holds all the words, or -1.
func find(calls []call, words ...string) int {
	for i, line := range lines(calls) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return i
		}
	}
	return -1
}

func TestUpDeploysInOrder(t *testing.T) {
	output, status, calls := runScript(t, "cluster works", "up", "IMAGE=registry.example/miniproxy:v1")
	if status != 0 {
		t.Fatalf("status: got %d, want 0; output:\n%s", status, output)
	}
	steps := [][]string{
		{"kind create cluster", "--name miniproxy", "hack/kind-config.yaml"},
		{"kind load docker-image registry.example/miniproxy:v1", "--name miniproxy"},
		{"kubectl --context kind-miniproxy apply"},
		{"kubectl --context kind-miniproxy", "rollout status daemonset/miniproxy"},
		{"kubectl --context kind-miniproxy", "rollout status deployment/coredns"},
	}
	last := -1
	for _, step := range steps {
		at := find(calls, step...)
		if at <= last {
			t.Errorf("%q: got call %d, want one after call %d; calls:\n%s", step, at, last, strings.Join(lines(calls), "\n"))
		}
		last = max(last, at)
	}
}

func TestUpAppliesAddressAndImage(t *testing.T) {
	_, _, calls := runScript(t, "cluster works", "up", "IMAGE=registry.example/miniproxy:v1")
	var endpoint string
	images := map[string]int{}
	for _, c := range calls {
		for doc := range strings.SplitSeq(c.Stdin, "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Data     map[string]string
				Spec     struct {
					Template struct {
						Spec struct{ InitContainers, Containers []struct{ Image string } }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
				t.Fatalf("applied text is no YAML: %v in:\n%s", err, doc)
			}
			if object.Kind == "ConfigMap" && object.Metadata.Name == "miniproxy-api" && object.Metadata.Namespace == "kube-system" {
				endpoint = object.Data["endpoint"]
			}
			for _, c := range append(object.Spec.Template.Spec.InitContainers, object.Spec.Template.Spec.Containers...) {
				images[c.Image]++
			}
		}
	}
	if want := "miniproxy-control-plane:6443"; endpoint != want {
		t.Errorf("endpoint in ConfigMap miniproxy-api: got %q, want %q", endpoint, want)
	}
	if images["registry.example/miniproxy:v1"] != 2 || len(images) != 1 {
		t.Errorf("images applied: got %v, want registry.example/miniproxy:v1 twice", images)
	}
}

func TestUpKeepsAClusterThatStands(t *testing.T) {
	output, status, calls := runScript(t, "cluster exists", "up")
	if status != 0 {
		t.Fatalf("status: got %d, want 0; output:\n%s", status, output)
	}
	if at := find(calls, "kind create"); at >= 0 {
		t.Errorf("got %q, want no second cluster", lines(calls)[at])
	}
}

func TestUpFailsWhenAgentsDo(t *testing.T) {
	if output, status, _ := runScript(t, "no rollout", "up"); status == 0 {
		t.Errorf("status: got 0, want another; output:\n%s", output)
	}
}

func TestE2E(t *testing.T) {
	tests := []struct {
		name, answer string
		wantStatus   int
		want         string
	}{
		{name: "three pods answer", answer: "cluster exists", want: "ok    NodePort 172.18.0.3:30080 from another node"},
		{name: "one pod answers", answer: "no spread", wantStatus: 1, want: "FAIL  ClusterIP 10.96.0.80:80 from a pod"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			output, status, _ := runScript(t, tt.answer, "e2e", "ATTEMPTS=1")
			if status != tt.wantStatus {
				t.Errorf("status: got %d, want %d", status, tt.wantStatus)
			}
			if !strings.Contains(output, tt.want) {
				t.Errorf("output: want %q in:\n%s", tt.want, output)
			}
		})
	}
}

func TestDownDeletesOnlyTheNamedCluster(t *testing.T) {
	_, status, calls := runScript(t, "cluster exists", "down", "CLUSTER=other")
	if got := strings.Join(lines(calls), "\n"); status != 0 || got != "kind delete cluster --name other" {
		t.Errorf("got status %d and calls %q", status, got)
	}
}

func TestUnknownCommandIsUsage(t *testing.T) {
	output, status, calls := runScript(t, "", "sideways")
	if status != 2 || !strings.Contains(output, "hack/kind.sh up") || len(calls) > 0 {
		t.Errorf("got status %d, calls %q and output:\n%s", status, lines(calls), output)
	}
}
