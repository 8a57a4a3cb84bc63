package kind

import (
	"fmt"
	"slices"
	"strings"
)

// answers are what the stubs say to a call, by the name that a test chose: a line of
// output and an exit status, given the calls that came before.
var answers = map[string]func(c call, before []call) (string, int){
	"": containers,
	// No cluster yet, then everything works and three pods take turns.
	"cluster works": func(c call, before []call) (string, int) { return clusterAnswer(c, "kind", len(before)%3) },
	// The cluster stands already.
	"cluster exists": func(c call, before []call) (string, int) { return clusterAnswer(c, "miniproxy", len(before)%3) },
	// All traffic ends at one pod.
	"no spread": func(c call, _ []call) (string, int) { return clusterAnswer(c, "miniproxy", 0) },
	// The agents never get ready.
	"no rollout": func(c call, _ []call) (string, int) {
		if slices.Contains(c.Args, "status") {
			return "timed out waiting for the condition", 1
		}
		return clusterAnswer(c, "miniproxy", 0)
	},
}

// containers answers like a docker client whose containers all start, up to the point
// where one would have to run kubeadm.
func containers(c call, before []call) (string, int) {
	line := strings.Join(c.Args, " ")
	switch {
	case c.Args[0] == "info":
		return `{"CgroupDriver":"systemd","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true,"CPUShares":true}`, 0
	case strings.HasPrefix(line, "network inspect"):
		return "172.18.0.0/16 fc00:f853:ccd:e793::/64", 0
	case strings.HasPrefix(line, "network"):
		return "kind", 0
	case c.Args[0] == "ps":
		return strings.Join(started(before), "\n"), 0
	case c.Args[0] == "logs":
		// What kind waits for before it goes on.
		return "Reached target Multi-User System.", 0
	case strings.Contains(line, "kind.role"):
		if strings.HasSuffix(line, "-control-plane") {
			return "control-plane", 0
		}
		return "worker", 0
	case strings.Contains(line, "IPAddress"):
		return "172.18.0.2,fc00:f853:ccd:e793::2", 0
	case strings.HasSuffix(line, "cat /kind/version"):
		return "v1.37.0", 0
	case slices.Contains(c.Args, "kubeadm"):
		return "there is nothing to run it in", 1
	}
	return "", 0
}

// started returns the names of the containers that the calls started, sorted.
func started(calls []call) []string {
	var names []string
	for _, c := range calls {
		if c.Name == "docker" && c.Args[0] == "run" {
			names = append(names, c.Args[2])
		}
	}
	slices.Sort(names)
	return names
}

// clusterAnswer answers for kind, kubectl and docker where a cluster of the given
// name stands, and the pod with the given number has its turn.
func clusterAnswer(c call, cluster string, pod int) (string, int) {
	line := strings.Join(c.Args, " ")
	switch {
	case c.Name == "kind" && line == "get clusters":
		return cluster, 0
	case strings.Contains(line, "spec.clusterIP"):
		return "10.96.0.80", 0
	case strings.Contains(line, "spec.ports[0].nodePort"):
		return "30080", 0
	case strings.Contains(line, "InternalIP"):
		return "172.18.0.3", 0
	case slices.Contains(c.Args, "curl"):
		return fmt.Sprintf("echo-%d", pod), 0
	case slices.Contains(c.Args, "iptables"):
		return "KUBE-SVC-X /* default/echo cluster IP */", 0
	}
	return "", 0
}
