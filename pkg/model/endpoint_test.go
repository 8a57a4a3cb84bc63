package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The node under test is n1 in zone-a.
var n1 = NodeFacts{Name: "n1", Known: true, Zone: "zone-a"}

// Endpoints are written as in "A ready zone-b": a name, then conditions and hints.
// A to D run on n1, the others on other nodes.
func endpoint(text string) Endpoint {
	words := strings.Fields(text)
	name := words[0][0]
	e := Endpoint{
		Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, name}), 8080),
		Local: name <= 'D',
	}
	for _, word := range words[1:] {
		switch kind, _, _ := strings.Cut(word, "-"); {
		case word == "ready":
			e.Ready = true
		case word == "serving":
			e.Serving = true
		case word == "terminating":
			e.Terminating = true
		case word == "draining":
			e.Serving, e.Terminating = true, true
		case kind == "zone":
			e.ZoneHints = append(e.ZoneHints, word)
		case kind == "node":
			e.NodeHints = append(e.NodeHints, strings.TrimPrefix(word, "node-"))
		}
	}
	return e
}

func endpoints(texts ...string) []Endpoint {
	var all []Endpoint
	for _, text := range texts {
		all = append(all, endpoint(text))
	}
	return all
}

// names writes endpoints as the letters that they were made from.
func names(endpoints []Endpoint) string {
	var letters []byte
	for _, e := range endpoints {
		letters = append(letters, e.Addr.Addr().As4()[3])
	}
	return string(letters)
}

// describe writes a choice as "Cluster/Local/All", with a ! if there is nobody
// anywhere.
func describe(r Reachable) string {
	text := names(r.Cluster) + "/" + names(r.Local) + "/" + names(r.All)
	if !r.Anywhere {
		text += "!"
	}
	return text
}

var (
	external      = ServicePort{NodePort: 30080}
	internalLocal = ServicePort{InternalLocal: true}
	externalLocal = ServicePort{NodePort: 30080, ExternalLocal: true}
	bothLocal     = ServicePort{NodePort: 30080, InternalLocal: true, ExternalLocal: true}
)

// What one endpoint on this node is good for depends on its conditions alone, and a
// policy only decides in which sets it stands.
func TestChooseByConditions(t *testing.T) {
	conditions := []struct {
		text   string
		usable bool
	}{
		{"A", false},
		{"A terminating", false},
		{"A serving", false},
		{"A serving terminating", true},
		{"A ready", true},
		{"A ready terminating", true},
		{"A ready serving", true},
		{"A ready serving terminating", true},
	}
	policies := []struct {
		name string
		port ServicePort
		want string
	}{
		{"Cluster, internal only", ServicePort{}, "A//A"},
		{"Cluster, external too", external, "A//A"},
		{"internal Local, internal only", internalLocal, "/A/A"},
		{"internal Local, external Cluster", ServicePort{NodePort: 30080, InternalLocal: true}, "A/A/A"},
		{"external Local", externalLocal, "A/A/A"},
		{"external Local without external addresses", ServicePort{ExternalLocal: true}, "A//A"},
		{"both Local", bothLocal, "A/A/A"},
		{"both Local without external addresses", ServicePort{InternalLocal: true, ExternalLocal: true}, "/A/A"},
	}
	for _, c := range conditions {
		for _, p := range policies {
			want := p.want
			if !c.usable {
				want = "//!"
			}
			if got := describe(Choose(p.port, endpoints(c.text), n1)); got != want {
				t.Errorf("B-32 %s: endpoint %q: got %s, want %s", p.name, c.text, got, want)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name      string
		port      ServicePort
		endpoints []Endpoint
		want      string
	}{
		{"no endpoints", bothLocal, nil, "//!"},
		{"B-14 unready only", bothLocal, endpoints("A", "Z serving"), "//!"},
		{"B-14 unready beside ready", external, endpoints("A", "B ready", "Z"), "B//B"},
		{"B-13 internal Local, endpoint elsewhere", internalLocal, endpoints("Z ready"), "//"},
		{"B-13 internal Local, draining endpoint elsewhere", internalLocal, endpoints("Z draining"), "//"},
		{"B-05 external Local, endpoint elsewhere", externalLocal, endpoints("Z ready"), "Z//Z"},
		{"B-15 local scope drains while cluster scope is ready", externalLocal, endpoints("A draining", "Z ready"), "Z/A/AZ"},
		{"B-15 both drain", externalLocal, endpoints("A draining", "Z draining"), "AZ/A/AZ"},
		{"B-15 no longer serving", externalLocal, endpoints("A terminating", "Z ready"), "Z//Z"},
		{"B-15 ready wins over draining in each scope", externalLocal, endpoints("A ready", "B draining", "Y draining", "Z ready"), "AZ/A/AZ"},
		{"B-15 cluster scope drains too when nobody is ready", ServicePort{}, endpoints("A draining", "Y", "Z draining"), "AZ//AZ"},
		{"B-32 ready alone is enough", external, endpoints("Z ready"), "Z//Z"},
		{"the order of the endpoints is kept", bothLocal, endpoints("Z ready", "A ready", "B ready"), "ZAB/AB/ZAB"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := describe(Choose(test.port, test.endpoints, n1)); got != test.want {
				t.Errorf("Choose(%v) = %s, want %s", test.endpoints, got, test.want)
			}
		})
	}
}

func TestChooseByHints(t *testing.T) {
	inNoZone := NodeFacts{Name: "n1", Known: true}
	tests := []struct {
		name      string
		node      NodeFacts
		port      ServicePort
		endpoints []Endpoint
		want      string
	}{
		{"B-74 zone", n1, external, endpoints("A ready zone-b", "Y ready zone-a", "Z ready zone-a"), "YZ//YZ"},
		{"B-74 several zones for one endpoint", n1, external, endpoints("A ready zone-b zone-a", "Z ready zone-b"), "A//A"},
		{"B-74 one ready endpoint has no hint", n1, external, endpoints("A ready zone-a", "Z ready"), "AZ//AZ"},
		{"B-74 none fits this zone", n1, external, endpoints("A ready zone-b", "Z ready zone-c"), "AZ//AZ"},
		{"B-74 node without a zone label", inNoZone, external, endpoints("A ready zone-a", "Z ready zone-b"), "AZ//AZ"},
		{"B-74 node without a zone label, hint without a zone", inNoZone, external,
			[]Endpoint{endpoint("A ready zone-b"), func() Endpoint { e := endpoint("Z ready"); e.ZoneHints = []string{""}; return e }()}, "AZ//AZ"},
		{"B-74 hint on the unready only", n1, external, endpoints("A zone-a", "Z ready zone-b"), "Z//Z"},
		{"B-74 unready without a hint do not count", n1, external, endpoints("A", "Y ready zone-a", "Z ready zone-b"), "Y//Y"},
		{"B-74 draining without a hint do not count", n1, external, endpoints("A draining", "Y ready zone-a", "Z ready zone-b"), "Y//Y"},
		{"B-74 node before zone", n1, external, endpoints("A ready node-n1 zone-b", "Z ready node-n2 zone-a"), "A//A"},
		{"B-74 node hints for all, none for this node", n1, external, endpoints("A ready node-n2 zone-a", "Z ready node-n3 zone-b"), "A//A"},
		{"B-74 one without a node hint", n1, external, endpoints("A ready node-n1 zone-b", "Z ready zone-a"), "Z//Z"},
		{"B-74 one without a node hint and one without a zone hint", n1, external, endpoints("A ready node-n1", "Z ready zone-a"), "AZ//AZ"},
		{"B-74 the Local scope ignores hints", n1, bothLocal, endpoints("A ready zone-b", "B ready zone-a", "Z ready zone-b"), "B/AB/AB"},
		{"B-74 hints only for an endpoint elsewhere, Local", n1, externalLocal, endpoints("A ready zone-b", "Z ready zone-a"), "Z/A/AZ"},
		{"B-74 all draining ignore hints", n1, external, endpoints("A draining zone-b", "Z draining zone-a"), "AZ//AZ"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := describe(Choose(test.port, test.endpoints, test.node)); got != test.want {
				t.Errorf("Choose = %s, want %s", got, test.want)
			}
		})
	}
}

// TestChooseAllCombinations holds the statements that people rely on against every
// pair of endpoints, one on this node and one elsewhere, under every policy.
func TestChooseAllCombinations(t *testing.T) {
	var conditions []string
	for _, ready := range []string{"", " ready"} {
		for _, serving := range []string{"", " serving"} {
			for _, terminating := range []string{"", " terminating"} {
				conditions = append(conditions, ready+serving+terminating)
			}
		}
	}
	for _, port := range []ServicePort{{}, external, internalLocal, externalLocal, bothLocal} {
		for _, a := range conditions {
			for _, z := range conditions {
				all := endpoints("A"+a, "Z"+z)
				r := Choose(port, all, n1)
				for what, holds := range map[string]bool{
					"Local holds endpoints on this node only":    !slices.ContainsFunc(r.Local, func(e Endpoint) bool { return !e.Local }),
					"Cluster is empty only with nobody anywhere": len(r.Cluster) > 0 == (r.Anywhere && port.UsesClusterEndpoints()),
					"no set mixes ready and draining":            isUniform(r.Cluster) && isUniform(r.Local),
					"ready endpoints are never passed over": !port.UsesClusterEndpoints() ||
						!all[1].Ready || slices.ContainsFunc(r.Cluster, func(e Endpoint) bool { return e.Addr == all[1].Addr }),
					"All holds what a policy may use, once": names(r.All) == lettersOf(r.Cluster, r.Local),
				} {
					if !holds {
						t.Errorf("port %+v, A%s, Z%s: %s: not so in %s", port, a, z, what, describe(r))
					}
				}
			}
		}
	}
}

func isUniform(endpoints []Endpoint) bool {
	return !slices.ContainsFunc(endpoints, func(e Endpoint) bool {
		return e.Ready != endpoints[0].Ready || !e.Ready && !(e.Serving && e.Terminating)
	})
}

// lettersOf is the names of both sets, sorted, each once.
func lettersOf(a, b []Endpoint) string {
	letters := []byte(names(a) + names(b))
	slices.Sort(letters)
	return string(slices.Compact(letters))
}

func TestEndpointEqual(t *testing.T) {
	base := func() Endpoint { return endpoint("A ready serving zone-a node-n1") }
	changes := map[string]func(*Endpoint){
		"Addr":        func(e *Endpoint) { e.Addr = netip.MustParseAddrPort("10.244.1.9:8080") },
		"port":        func(e *Endpoint) { e.Addr = netip.AddrPortFrom(e.Addr.Addr(), 8081) },
		"Local":       func(e *Endpoint) { e.Local = false },
		"Ready":       func(e *Endpoint) { e.Ready = false },
		"Serving":     func(e *Endpoint) { e.Serving = false },
		"Terminating": func(e *Endpoint) { e.Terminating = true },
		"ZoneHints":   func(e *Endpoint) { e.ZoneHints = []string{"zone-b"} },
		"NodeHints":   func(e *Endpoint) { e.NodeHints = nil },
	}
	if !base().Equal(base()) {
		t.Error("an endpoint is not equal to its copy")
	}
	for field, change := range changes {
		changed := base()
		change(&changed)
		if base().Equal(changed) || changed.Equal(base()) {
			t.Errorf("a change of %s is not seen", field)
		}
	}
}

func ExampleChoose() {
	port := ServicePort{NodePort: 30080, ExternalLocal: true}
	use := Choose(port, endpoints("A draining", "Z ready"), NodeFacts{Name: "n1"})
	fmt.Println("cluster:", use.Cluster[0].Addr, "local:", use.Local[0].Addr)
	// Output: cluster: 10.244.1.90:8080 local: 10.244.1.65:8080
}
