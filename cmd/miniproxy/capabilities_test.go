package main

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
)

// errLacking is why something is missing in these tests.
var errLacking = errors.New("no such match")

// bench is a kernel that lacks some features, or cannot be looked at.
type bench struct {
	lacks []string
	err   error
	// asked has the names of the features of each probe.
	asked [][]string
}

func (*bench) Family() model.Family { return model.IPv4 }

func (b *bench) Probe(_ context.Context, features []iptables.Feature) (map[string]error, error) {
	var names []string
	missing := map[string]error{}
	for _, f := range features {
		names = append(names, f.Name)
		if slices.Contains(b.lacks, f.Name) {
			missing[f.Name] = errLacking
		}
	}
	b.asked = append(b.asked, names)
	if b.err != nil {
		return nil, b.err
	}
	return missing, nil
}

func mustLook(t *testing.T, c *capabilities) {
	t.Helper()
	if err := c.look(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func names(features []feature) []string {
	var names []string
	for _, f := range features {
		names = append(names, f.Name)
	}
	return names
}

// What is there is asked for once, in one probe, and SCTP only when a Service asks.
func TestCapabilitiesAllThere(t *testing.T) {
	kernel := &bench{}
	c := newCapabilities(kernel)
	for range 3 {
		mustLook(t, c)
	}
	if len(kernel.asked) != 1 || len(kernel.asked[0]) != len(c.features)-1 || slices.Contains(kernel.asked[0], featureSCTP) {
		t.Errorf("asked for %v, want everything but %s once", kernel.asked, featureSCTP)
	}
	c.askSCTP()
	for range 3 {
		mustLook(t, c)
	}
	if len(kernel.asked) != 2 || !slices.Equal(kernel.asked[1], []string{featureSCTP}) {
		t.Errorf("then asked for %v, want %s once", kernel.asked[1:], featureSCTP)
	}
	if lacks := c.lacks(); lacks != (render.Lacks{}) || len(c.missing()) > 0 {
		t.Errorf("lacks %+v, missing %v", lacks, names(c.missing()))
	}
}

// What could not be looked at is there, until the next look says otherwise.
func TestCapabilitiesUnknown(t *testing.T) {
	kernel := &bench{lacks: []string{"recent"}, err: errors.New("lock held")}
	c := newCapabilities(kernel)
	for range 2 {
		if err := c.look(t.Context()); !errors.Is(err, kernel.err) {
			t.Errorf("got %v, want %v", err, kernel.err)
		}
		if lacks := c.lacks(); lacks != (render.Lacks{}) || len(c.news()) > 0 {
			t.Errorf("unknown is taken for missing: %+v", lacks)
		}
	}
	kernel.err = nil
	mustLook(t, c)
	if lacks := c.lacks(); lacks != (render.Lacks{Recent: true}) {
		t.Errorf("got %+v, want no recent", lacks)
	}
}

// What is missing is asked for again in a while, since somebody may load a module, and
// each change is news once.
func TestCapabilitiesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &bench{lacks: []string{"recent", "statistic"}}
		c := newCapabilities(kernel)
		mustLook(t, c)
		if got := names(c.news()); len(got) != len(c.features)-1 {
			t.Errorf("news: got %v, want everything that was asked for", got)
		}
		mustLook(t, c)
		if len(kernel.asked) != 1 || len(c.news()) > 0 {
			t.Errorf("asked again at once: %v", kernel.asked)
		}
		kernel.lacks = []string{"statistic"}
		time.Sleep(lookAgain)
		mustLook(t, c)
		if want := []string{"statistic", "recent"}; !slices.Equal(kernel.asked[1], want) {
			t.Errorf("asked again for %v, want %v", kernel.asked[1], want)
		}
		if got := names(c.news()); !slices.Equal(got, []string{"recent"}) {
			t.Errorf("news: got %v, want recent", got)
		}
		if lacks := c.lacks(); lacks != (render.Lacks{Statistic: true}) {
			t.Errorf("got %+v, want no statistic", lacks)
		}
	})
}

func TestCapabilitiesDenied(t *testing.T) {
	kernel := &bench{}
	c := newCapabilities(kernel)
	c.deny(featureNFAcct, errLacking)
	mustLook(t, c)
	if slices.Contains(kernel.asked[0], featureNFAcct) {
		t.Error("what is denied was asked for")
	}
	if got := names(c.news()); !slices.Contains(got, featureNFAcct) {
		t.Errorf("what is denied is not told: %v", got)
	}
	if got := names(c.missing()); !slices.Equal(got, []string{featureNFAcct}) {
		t.Errorf("missing are %v, want what is denied", got)
	}
	host := proxier.Host{InvalidAccount: "invalid", LocalhostAccount: "localhost"}
	if got := c.host(host); got.InvalidAccount != "" || got.LocalhostAccount != "" || !got.RandomFully {
		t.Errorf("got %+v, want no accounts", got)
	}
}

// Each feature takes out what only it needs, and nothing can be lacked that is not
// probed.
func TestFeaturesAndLacks(t *testing.T) {
	taken := map[render.Lacks]string{}
	for _, f := range features(model.IPv4) {
		var lacks render.Lacks
		if f.without != nil {
			f.without(&lacks)
		}
		if other, is := taken[lacks]; is && f.without != nil {
			t.Errorf("%s and %s take out the same", f.Name, other)
		}
		taken[lacks] = f.Name
		if f.loses == "" || len(f.Rules) == 0 {
			t.Errorf("%s: nothing is lost by it, or nothing asks for it", f.Name)
		}
	}
	for field := range reflect.TypeFor[render.Lacks]().Fields() {
		var lacks render.Lacks
		reflect.ValueOf(&lacks).Elem().FieldByIndex(field.Index).SetBool(true)
		if taken[lacks] == "" {
			t.Errorf("no feature takes out %s", field.Name)
		}
	}
}

// plain are the words that need nothing of the kernel but the tables themselves.
var plain = []string{"tcp", "udp", "ACCEPT", "DROP", "RETURN"}

// extension finds the matches and targets in rules.
var extension = regexp.MustCompile(`-[mj] ([A-Za-z]+)(?:\s|$)`)

func extensions(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range extension.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// Every match and target that is rendered is probed.
func TestEverythingInUseIsProbed(t *testing.T) {
	for _, family := range model.Families {
		probed := map[string]bool{}
		for _, f := range features(family) {
			for _, rule := range f.Rules {
				maps.Copy(probed, extensions(rule.String()))
			}
		}
		got := runCommand(t, "render", "-f", "../../examples", "-f", write(t, "all.yaml", allKinds), "--node=n1", "--family="+strings.ToLower(family.String()),
			"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56")
		if got.code != 0 {
			t.Fatalf("render: %s", got.err)
		}
		used := extensions(got.out)
		for _, want := range []string{"recent", "statistic", "sctp", "REJECT", "MASQUERADE", "addrtype"} {
			if !used[want] {
				t.Errorf("%v: the example does not use %s", family, want)
			}
		}
		for word := range used {
			if !probed[word] && !slices.Contains(plain, word) {
				t.Errorf("%v: %s is used, and not probed", family, word)
			}
		}
	}
}

// The probes are sound input.
func TestProbesAreSound(t *testing.T) {
	for _, family := range model.Families {
		c := newCapabilities(fakekernel.New(family, iptables.NFT).Runner())
		c.askSCTP()
		mustLook(t, c)
		if missing := c.missing(); len(missing) > 0 {
			t.Errorf("%v: missing %v", family, names(missing))
		}
	}
}

const allKinds = `
apiVersion: v1
kind: Service
metadata: {namespace: all, name: kinds}
spec:
  type: NodePort
  clusterIP: 10.96.77.1
  clusterIPs: [10.96.77.1, "fd00:10:96::7701"]
  ipFamilies: [IPv4, IPv6]
  sessionAffinity: ClientIP
  externalTrafficPolicy: Local
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30777}
  - {name: sctp, port: 80, protocol: SCTP, targetPort: 8080, nodePort: 30777}
---
apiVersion: v1
kind: Service
metadata: {namespace: all, name: nothing}
spec:
  clusterIP: 10.96.77.2
  clusterIPs: [10.96.77.2, "fd00:10:96::7702"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: all, name: kinds-4, labels: {kubernetes.io/service-name: kinds}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.244.1.77], nodeName: n1}, {addresses: [10.244.2.77], nodeName: n2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: all, name: kinds-6, labels: {kubernetes.io/service-name: kinds}}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: ["fd00:10:244:1::77"], nodeName: n1}, {addresses: ["fd00:10:244:2::77"], nodeName: n2}]
`
