package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// lackingPrograms makes a directory of iptables programs that are the real ones, for
// kernels that lack something: a rule with one of the words is refused, and all else
// is passed on. The directory is to be the first of PATH.
func lackingPrograms(t *testing.T, backend iptables.Backend, families []model.Family, words ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script := func(name, body string) {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\n%s exec %s \"$@\"\n", body, real), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, family := range families {
		name := map[model.Family]string{model.IPv4: "iptables-", model.IPv6: "ip6tables-"}[family] + string(backend)
		var edits, checks strings.Builder
		for _, word := range words {
			fmt.Fprintf(&edits, " -e 's/%s/%s/'", word, unknownTo(word))
			fmt.Fprintf(&checks, `case " $* " in *" %s "*) echo "Couldn't load it" >&2; exit 2;; esac; `, word)
		}
		script(name+"-restore", "sed -e ''"+edits.String()+" |")
		script(name, checks.String())
		script(name+"-save", "")
	}
	return dir
}

// unknownTo is what a rule has in the place of a word, so that it is refused: for a
// match or target, one more that the programs know and most kernels do not, which is
// how a kernel without the word refuses it; the LED target and the ipvs match.
func unknownTo(word string) string {
	switch kind, _, _ := strings.Cut(word, " "); kind {
	case "-m":
		return "-m ipvs --ipvs " + word
	case "-j":
		return "-j LED --led-trigger-id x"
	}
	return "--nosuchoption"
}

// degradedAgent is an agent on a host, and what it says.
type degradedAgent struct {
	host *lab.Host
	cmd  *exec.Cmd
	said logText
}

// startDegraded runs the agent with some programs until stop is called.
func startDegraded(t *testing.T, host *lab.Host, backend iptables.Backend, programs string, args ...string) *degradedAgent {
	t.Helper()
	a := &degradedAgent{host: host}
	a.cmd = host.Command(context.WithoutCancel(t.Context()), self(t), append([]string{
		"run", "--hostname-override=n1", "--iptables-backend=" + string(backend), "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
		"--conntrack-max-per-core=0", "--oom-score-adj=0", "--iptables-sync-period=1s"}, args...)...)
	a.cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *degradedAgent) stop(t *testing.T) {
	t.Helper()
	if err := errors.Join(a.cmd.Process.Signal(syscall.SIGTERM), a.cmd.Wait()); err != nil || t.Failed() {
		t.Errorf("agent: %v; it said:\n%s", err, a.said.String())
	}
}

// degradedServices have what every feature is for, and the cluster of the lab's plan.
const degradedServices = `
apiVersion: v1
kind: Service
metadata: {namespace: ns1, name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80, "fd00:96::80"]
  ipFamilies: [IPv4, IPv6]
  sessionAffinity: ClientIP
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
  - {name: sctp, port: 80, protocol: SCTP, targetPort: 8080, nodePort: 30080}
---
apiVersion: v1
kind: Service
metadata: {namespace: ns1, name: empty}
spec:
  clusterIP: 10.96.0.81
  clusterIPs: [10.96.0.81, "fd00:96::81"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns1, name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.244.1.10], nodeName: n1}, {addresses: [10.244.1.11], nodeName: n1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns1, name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: ["fd00:244:1::10"], nodeName: n1}, {addresses: ["fd00:244:1::11"], nodeName: n1}]
`

// degradations are features, and the words of rules that need them. The first is to
// find that the real programs and kernel lack nothing.
var degradations = []struct {
	feature string
	words   []string
	// also are features that need the same words.
	also []string
	// nftOnly saves the time of trying it on legacy as well.
	nftOnly bool
}{
	{feature: ""},
	{feature: "comment", words: []string{"-m comment"}},
	{feature: "conntrack", words: []string{"-m conntrack"}, nftOnly: true},
	{feature: "statistic", words: []string{"-m statistic"}},
	{feature: "recent", words: []string{"-m recent"}},
	{feature: "addrtype", words: []string{"-m addrtype"}, nftOnly: true},
	{feature: "reject", words: []string{"-j REJECT"}},
	{feature: "nfacct", words: []string{"-m nfacct"}, nftOnly: true},
	{feature: "sctp", words: []string{"-m sctp"}},
	{feature: "masquerade", words: []string{"-m mark", "-j MARK", "-j MASQUERADE"}, also: []string{"random-fully"}},
	{feature: "masquerade", words: []string{"-j MARK"}, nftOnly: true},
	{feature: "random-fully", words: []string{"--random-fully"}, nftOnly: true},
}

// An agent on a kernel that lacks one thing does without that one thing: no rule uses
// it, every Service is served, and nothing is refused.
func TestAgentDegrades(t *testing.T) {
	if !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	cluster := labtest.NewCluster(t)
	node := cluster.Node("n1")
	addFailoverPod(t, node, "a", 10)
	addFailoverPod(t, node, "b", 11)
	client := addFailoverPod(t, node, "c", 12)
	manifests := write(t, "services.yaml", degradedServices)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		for _, d := range degradations {
			if d.nftOnly && backend != iptables.NFT {
				continue
			}
			t.Run(string(backend)+"/"+strings.Join(d.words, ","), func(t *testing.T) {
				programs := lackingPrograms(t, backend, model.Families[:], d.words...)
				// A kernel that lacks it would not hold rules with it from before either.
				cleanUpOn(t, node.Host, backend)
				agent := startDegraded(t, node.Host, backend, programs, "--manifests="+manifests)
				defer agent.stop(t)
				awaitReady(t, node.Host)
				awaitCanaries(t, node.Host, backend)
				agent.mustLack(t, node, append(d.also, d.feature)...)
				mustHaveNo(t, node.Host, backend, d.words...)
				for _, addr := range []string{"10.96.0.80", "fd00:96::80"} {
					if pod, err := askPod(t, client.Host, net.JoinHostPort(addr, "80")); err != nil || pod != "a" && pod != "b" {
						t.Errorf("%s: got answer %q, %v", addr, pod, err)
					}
				}
			})
		}
		cleanUpOn(t, node.Host, backend) // packets would meet both
	}
}

// mustLack checks what the metrics and the log say.
func (a *degradedAgent) mustLack(t *testing.T, node *lab.Node, want ...string) {
	t.Helper()
	text, err := page(t, node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range model.Families {
		for _, f := range features(family) {
			there := 1
			if slices.Contains(want, f.Name) {
				there = 0
			}
			if line := fmt.Sprintf("miniproxy_capability{feature=%q,ip_family=%q} %d\n", f.Name, family, there); !strings.Contains(text, line) {
				t.Errorf("the metrics do not say %s", line)
			}
			said := regexp.MustCompile(fmt.Sprintf(`lacks a feature; doing without".* family="%v" feature="%s"`, family, f.Name))
			if got := len(said.FindAllString(a.said.String(), -1)); got != 1-there {
				t.Errorf("%v %s: the log says that it is missing %d times, want %d", family, f.Name, got, 1-there)
			}
		}
		if line := fmt.Sprintf("miniproxy_refused_service_ports{ip_family=%q} 0\n", family); !strings.Contains(text, line) {
			t.Errorf("the metrics do not say %s", line)
		}
	}
}

// awaitCanaries waits until each table has its canary.
func awaitCanaries(t *testing.T, host *lab.Host, backend iptables.Backend) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		eventually(t, "the canaries of "+program, func() bool {
			saved, err := host.Run(t.Context(), program+"-"+string(backend)+"-save")
			return err == nil && strings.Count(saved, "-A KUBE-PROXY-CANARY ") == 3
		})
	}
}

// mustHaveNo checks that no rule has one of the words, and that there are rules.
func mustHaveNo(t *testing.T, host *lab.Host, backend iptables.Backend, words ...string) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		saved, err := host.Run(t.Context(), program+"-"+string(backend)+"-save")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(saved) {
			for _, word := range words {
				if strings.Contains(line, word+" ") || strings.Contains(line, word+"\n") {
					t.Errorf("%s: %q in %s", program, word, line)
				}
			}
		}
		if !strings.Contains(saved, "-j DNAT --to-destination") || strings.Contains(saved, "PROBE") {
			t.Errorf("%s: there are no rules, or probes are left:\n%s", program, saved)
		}
	}
}

// cleanUpOn removes every rule of ours from a backend on a host.
func cleanUpOn(t *testing.T, host *lab.Host, backend iptables.Backend) {
	t.Helper()
	if got := runOn(t, host, cleanUp, "--iptables-backend="+string(backend)); got.code != exitOK {
		t.Fatalf("cleanup: %+v", got)
	}
}

// A family that cannot rewrite addresses is left alone, and the other one is served;
// without either there is nothing to do.
func TestAgentWithoutDNAT(t *testing.T) {
	manifests := write(t, "services.yaml", degradedServices)
	for _, backend := range []iptables.Backend{iptables.NFT, iptables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			host, err := labtest.New(t).Host("n1")
			if err != nil {
				t.Fatal(err)
			}
			agent := startDegraded(t, host, backend, lackingPrograms(t, backend, []model.Family{model.IPv6}, "-j DNAT"), "--manifests="+manifests)
			awaitReady(t, host)
			agent.stop(t)
			for program, want := range map[string]bool{"iptables": true, "ip6tables": false} {
				saved, err := host.Run(t.Context(), program+"-"+string(backend)+"-save", "-t", "nat")
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Contains(saved, "KUBE-"); got != want {
					t.Errorf("%s has rules: %t, want %t", program, got, want)
				}
			}
			if want := "One IP family is not supported here"; !strings.Contains(agent.said.String(), want) {
				t.Errorf("the agent does not say %q:\n%s", want, agent.said.String())
			}
			agent = startDegraded(t, host, backend, lackingPrograms(t, backend, model.Families[:], "-j DNAT"), "--manifests="+manifests)
			err = agent.cmd.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFailed || !strings.Contains(agent.said.String(), "of neither family") {
				t.Errorf("without both: got %v:\n%s", err, agent.said.String())
			}
		})
	}
}
