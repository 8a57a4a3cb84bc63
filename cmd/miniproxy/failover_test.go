package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/conntrack"
	"github.com/miniproxy/miniproxy/pkg/lab"
	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
	"github.com/miniproxy/miniproxy/pkg/model"
)

const failoverService = `
apiVersion: v1
kind: Service
metadata: {namespace: ns1, name: web}
spec:
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80, "fd00:96::80"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, port: 80, targetPort: 8080}]
`

const failoverSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns1, name: web-%[1]d, labels: {kubernetes.io/service-name: web}}
addressType: %[1]v
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
%[2]v`

// failoverManifests has the Service with some pods of n1 behind it.
func failoverManifests(pods ...*failoverPod) string {
	text := failoverService
	for i, family := range model.Families {
		var endpoints strings.Builder
		for _, pod := range pods {
			fmt.Fprintf(&endpoints, "- {addresses: [%q], nodeName: n1}\n", pod.addrs[i])
		}
		text += fmt.Sprintf(failoverSlice, family, &endpoints)
	}
	return text
}

type failoverPod struct {
	*lab.Host
	addrs []netip.Addr
}

// addFailoverPod adds a pod that says its name to everybody who connects.
func addFailoverPod(t *testing.T, node *lab.Node, name string, number int) *failoverPod {
	t.Helper()
	host, err := node.AddPod(name, number)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := host.Listen(t.Context(), "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, name)
			conn.Close()
		}
	}()
	return &failoverPod{host, node.Plan.PodAddrs(number)}
}

// pause has the pod take no packets any more, as if it or its machine had stopped.
func (p *failoverPod) pause(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"iptables", "ip6tables"} {
		if _, err := p.Run(t.Context(), tool, "-w", "-A", "INPUT", "-p", "tcp", "-j", "DROP"); err != nil {
			t.Fatal(err)
		}
	}
}

// startFailoverAgent runs the agent on a node until the test ends.
func startFailoverAgent(t *testing.T, node *lab.Node, manifests string) {
	t.Helper()
	var said strings.Builder
	cmd := node.Command(context.WithoutCancel(t.Context()), self(t), "run", "--manifests="+manifests, "--hostname-override=n1",
		"--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--conntrack-max-per-core=0", "--oom-score-adj=0", "--v=2")
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("agent: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent said:\n%s", &said)
		}
	})
	eventually(t, "the agent is ready", func() bool {
		_, err := page(t, node, "http://127.0.0.1:10256/readyz")
		return err == nil
	})
}

// page gets a page from a server on a host.
func page(t *testing.T, host *lab.Node, url string) (string, error) {
	transport := &http.Transport{DialContext: host.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, response.Status)
	}
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// eventually waits until something holds, for 30 s at most.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	within(t, 30*time.Second, what, holds)
}

// within waits until something holds, for a time that is only reached when it never will.
func within(t *testing.T, atMost time.Duration, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(atMost); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// askPod connects and returns the name of the pod that answers.
func askPod(t *testing.T, client *lab.Host, frontend string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, "tcp", frontend)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	name, err := io.ReadAll(conn)
	return string(name), err
}

// waitingFor counts a node's connections that wait for the answer of a pod.
func waitingFor(t *testing.T, node *lab.Node, pod *failoverPod) int {
	t.Helper()
	n := 0
	if err := node.Do(func() error {
		for i, family := range model.Families {
			if err := (conntrack.Kernel{}).Dump(t.Context(), family, conntrack.Filter{Protocol: unix.IPPROTO_TCP, Unreplied: true}, func(e conntrack.Entry) error {
				if e.Waiting && e.ReplySource.Addr() == pod.addrs[i] {
					n++
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAgentFailsOver has clients connect all the time while one of two pods dies and
// is then taken out of the manifests. Not one of them may get an error.
func TestAgentFailsOver(t *testing.T) {
	if !lab.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	const callers = 4 // in each family
	cluster := labtest.NewCluster(t)
	node := cluster.Node("n1")
	a, b := addFailoverPod(t, node, "a", 10), addFailoverPod(t, node, "b", 11)
	dir := t.TempDir()
	write := func(text string) {
		draft := filepath.Join(t.TempDir(), "draft")
		if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(draft, filepath.Join(dir, "web.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	write(failoverManifests(a, b))
	startFailoverAgent(t, node, dir)

	a.pause(t)
	left, failures := make(chan struct{}), make(chan string, 2*callers)
	var group sync.WaitGroup
	for _, addr := range []string{"10.96.0.80", "fd00:96::80"} {
		for range callers {
			group.Go(func() {
				for rest := 3; rest > 0; {
					pod, err := askPod(t, cluster.Client, net.JoinHostPort(addr, "80"))
					if pod != "b" || err != nil {
						failures <- fmt.Sprintf("%s: got answer %q, %v, want it from b", addr, pod, err)
						return
					}
					select {
					case <-left:
						rest--
					default:
					}
				}
			})
		}
	}
	eventually(t, "every client waits for the dead pod", func() bool {
		return len(failures) > 0 || waitingFor(t, node, a) == 2*callers
	})
	write(failoverManifests(b))
	close(left)
	group.Wait()
	close(failures)
	for failure := range failures {
		t.Error(failure)
	}

	text, err := page(t, node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range model.Families {
		if want := fmt.Sprintf("miniproxy_connections_failed_over_total{ip_family=%q} %d\n", family, callers); !strings.Contains(text, want) {
			t.Errorf("the metrics do not say %s", want)
		}
	}
}
