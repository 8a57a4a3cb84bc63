package arch

import (
	"slices"
	"strings"
	"testing"
)

// What the rules below call a room is its path under the module, and any other
// package by its import path. A pattern ends in /... for everything below it.

// forbidden is an arrow that must not be there, directly or through others.
type forbidden struct {
	from, to string
	because  string
}

var arrows = []forbidden{
	// The pure rooms: values and functions of values.
	{"pkg/model", thirdParty, "the words of the house are plain Go; everybody imports them"},
	{"pkg/model", "pkg/...", "the words of the house stand for themselves"},
	{"pkg/ruleset", thirdParty, "rules are values that a test or a tool can take alone"},
	{"pkg/ruleset", "pkg/...", "a rule knows nothing of Services"},
	{"pkg/ruleset", "os/exec", "encoding and decoding run nothing"},
	{"pkg/render", thirdParty, "rendering is a function of values: no API types, no logger, no metrics"},
	{"pkg/render", "os/...", "what is rendered must not depend on the machine it is rendered on"},
	{"pkg/render", "net/http", "rendering waits for nobody"},
	{"pkg/render", "pkg/tracker", "rendering sees a snapshot, not how it came about"},
	{"pkg/render", "pkg/iptables", "rendering does not know how rules get into the kernel"},
	{"pkg/trace", thirdParty, "the oracle of the tests must be simpler than what it judges"},
	{"pkg/trace", "pkg/render", "an oracle that shares code with what it judges shares its mistakes"},
	{"pkg/trace", "pkg/iptables", "a packet is walked through values, not through the kernel"},

	// The left side of the house: from objects to a snapshot.
	{"pkg/tracker", "k8s.io/client-go/...", "the tracker is told of objects; where they come from is pkg/config's business"},
	{"pkg/tracker", "pkg/render", "what changed does not depend on what is made of it"},
	{"pkg/tracker", "os/exec", "tracking objects runs nothing"},
	{"pkg/config", "pkg/...", "where objects come from does not depend on what is done with them"},

	// The right side: the kernel's door.
	{"pkg/iptables", "k8s.io/client-go/...", "the kernel's door knows no cluster"},
	{"pkg/iptables", "k8s.io/api/...", "the kernel's door knows no Services"},
	{"pkg/iptables", "pkg/render", "any ruleset can be applied, not only ours"},
	{"pkg/iptables", "pkg/config", "which backend, which wait: the caller says so"},
	{"pkg/canary", "pkg/iptables", "the canary sees the kernel through an interface of its own, so that a test can be the kernel"},
	{"pkg/canary", "pkg/proxier", "the canary only tells; it does not know who listens"},
	{"pkg/doctor", "k8s.io/...", "a finding is made from facts that anybody can gather"},
	{"pkg/doctor", "pkg/render", "what rules should be there is told by pkg/audit"},
	{"pkg/audit", "pkg/render", "what the kernel should hold is handed over as values"},
	{"pkg/audit", "pkg/proxier", "who judges the rules does not ask the one who wrote them"},
	{"pkg/proxier", "pkg/canary", "the canary is one of those who ask for a full sync"},
	{"pkg/proxier", "pkg/health", "the loop reports; who is interested is decided in cmd"},

	// The side rooms.
	{"pkg/conntrack", "k8s.io/api/...", "stale flows are found from the model"},
	{"pkg/conntrack", "k8s.io/client-go/...", "stale flows are found from the model"},
	{"pkg/conntrack", "pkg/iptables", "connection tracking is asked through netlink"},
	{"pkg/nfnetlink", "pkg/...", "a netlink connection knows no proxy"},
	{"pkg/health", "k8s.io/client-go/...", "health never depends on whether the API server can be reached"},
	{"pkg/health", "pkg/proxier", "health is told what happened; it asks nobody"},
	{"pkg/metrics", "pkg/proxier", "metrics are told what happened; they ask nobody"},

	// Laboratory and tests.
	{"pkg/lab", "pkg/...", "a laboratory that knew the proxy could help it"},
	{"pkg/...", "pkg/lab/labtest", "the test laboratory is for tests"},
	{"pkg/...", "testing", "what ships does not link the test framework"},
	{"cmd/miniproxy", "testing", "what ships does not link the test framework"},
	{"cmd/miniproxy", "pkg/iptables/fakekernel", "the simulated kernel is for tests"},
	{"cmd/miniproxy", "k8s.io/kubernetes/...", "this is not kube-proxy with another name"},
}

// doors are packages that only the named ones may import directly.
var doors = []struct {
	pkg     string
	allowed []string
	because string
}{
	{"os/exec", []string{"pkg/iptables", "pkg/lab", "pkg/demo", "cmd/miniproxy"}, "pkg/iptables is the only one that runs iptables; pkg/lab builds networks, and the demo shows commands in them"},
	{"github.com/coreos/go-iptables/iptables", []string{"pkg/iptables"}, "one door to the kernel, with typed errors"},
	{"k8s.io/client-go/kubernetes", []string{"pkg/config", "cmd/miniproxy"}, "one place talks to the API server"},
	{"k8s.io/component-base/metrics", []string{"pkg/metrics", "pkg/config", "cmd/miniproxy"}, "metric names live in one place"},
}

func TestArrows(t *testing.T) {
	g := loadGraph(t)
	for _, a := range arrows {
		for _, from := range g.matching(a.from) {
			if path := g.path(from, a.to); path != nil && from != "pkg/lab/labtest" {
				t.Errorf("%s must not reach %s: %s\n\t%s", from, a.to, a.because, strings.Join(path, "\n\t-> "))
			}
		}
	}
}

func TestDoors(t *testing.T) {
	g := loadGraph(t)
	for _, d := range doors {
		for _, from := range slices.Concat(g.matching("pkg/..."), g.matching("cmd/...")) {
			if slices.Contains(g.imports[from], d.pkg) && !slices.Contains(d.allowed, from) {
				t.Errorf("%s imports %s: %s", from, d.pkg, d.because)
			}
		}
	}
}

// TestOutsideTestsSeeOnlyTheBinary keeps what drives the built binary from calling what
// it tests or measures. The chaos test takes from pkg/render whose a chain is, and has
// pkg/trace judge what the kernel holds; what should be there it asks the binary.
func TestOutsideTestsSeeOnlyTheBinary(t *testing.T) {
	for pkg, allowed := range map[string][]string{
		"./test/e2e":   {"pkg/lab", "pkg/lab/labtest", "pkg/render", "pkg/ruleset", "pkg/trace"},
		"./test/bench": {"pkg/lab", "pkg/lab/labtest"},
	} {
		for _, imported := range testImports(t, pkg) {
			if strings.HasPrefix(imported, "pkg/") && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s: it drives the built binary; allowed are %v", pkg, imported, allowed)
			}
		}
	}
}
