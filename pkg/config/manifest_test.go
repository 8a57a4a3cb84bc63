package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// shop is a Service as a person would write it, with its slice and its node.
const shop = `# a small shop
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: ns1}
spec:
  clusterIP: 10.96.0.80
  ports:
  - port: 80
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: shop-1
  namespace: ns1
  labels: {kubernetes.io/service-name: shop}
addressType: IPv4
ports:
- port: 8080
endpoints:
- addresses: [10.244.1.10]
  nodeName: n1
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}
`

// names lists what objects there are.
func (o Objects) names() []string {
	var names []string
	for _, svc := range o.Services {
		names = append(names, "service "+keyOf(svc))
	}
	for _, slice := range o.EndpointSlices {
		names = append(names, "slice "+keyOf(slice))
	}
	for _, node := range o.Nodes {
		names = append(names, "node "+keyOf(node))
	}
	return names
}

func TestManifestDefaults(t *testing.T) {
	o, err := parseManifest("shop.yaml", []byte(shop))
	if err != nil {
		t.Fatal(err)
	}
	spec, slice := o.Services[0].Spec, o.EndpointSlices[0]
	if spec.Type != v1.ServiceTypeClusterIP || spec.SessionAffinity != v1.ServiceAffinityNone || *spec.InternalTrafficPolicy != "Cluster" {
		t.Errorf("type, affinity or internal policy has no default: %+v", spec)
	}
	if p := spec.Ports[0]; p.Protocol != v1.ProtocolTCP || p.TargetPort.IntVal != 80 {
		t.Errorf("protocol or targetPort has no default: %+v", p)
	}
	if !slices.Equal(spec.ClusterIPs, []string{"10.96.0.80"}) || !slices.Equal(spec.IPFamilies, []v1.IPFamily{v1.IPv4Protocol}) {
		t.Errorf("got clusterIPs %v, ipFamilies %v", spec.ClusterIPs, spec.IPFamilies)
	}
	if spec.ExternalTrafficPolicy != "" {
		t.Errorf("externalTrafficPolicy of a ClusterIP Service: got %q, want none", spec.ExternalTrafficPolicy)
	}
	if p := slice.Ports[0]; *p.Name != "" || *p.Protocol != v1.ProtocolTCP {
		t.Errorf("slice port has no defaults: %+v", p)
	}
	if c := slice.Endpoints[0].Conditions; c.Ready != nil || c.Serving != nil || c.Terminating != nil {
		t.Errorf("conditions must stay unset: %+v", c)
	}
}

func TestServiceDefaults(t *testing.T) {
	o, err := parseManifest("lb.yaml", []byte(`
apiVersion: v1
kind: Service
metadata: {name: lb}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.81, "fd00:96::81"]
  sessionAffinity: ClientIP
  ports: [{port: 80, targetPort: web}]
status: {loadBalancer: {ingress: [{ip: 10.50.0.10}, {hostname: lb.example}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	svc := o.Services[0]
	if svc.Namespace != "default" || svc.Spec.ClusterIP != "10.96.0.81" || svc.Spec.ExternalTrafficPolicy != "Cluster" {
		t.Errorf("got namespace %q, clusterIP %q, externalTrafficPolicy %q", svc.Namespace, svc.Spec.ClusterIP, svc.Spec.ExternalTrafficPolicy)
	}
	if got := *svc.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; got != 10800 {
		t.Errorf("affinity timeout: got %d, want 10800", got)
	}
	if want := []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}; !slices.Equal(svc.Spec.IPFamilies, want) {
		t.Errorf("got ipFamilies %v, want %v", svc.Spec.IPFamilies, want)
	}
	ingress := svc.Status.LoadBalancer.Ingress
	if *ingress[0].IPMode != v1.LoadBalancerIPModeVIP || ingress[1].IPMode != nil {
		t.Errorf("ipMode: got %+v, want VIP for the address and none for the name", ingress)
	}
	if svc.Spec.Ports[0].TargetPort.StrVal != "web" {
		t.Errorf("targetPort was overwritten: %+v", svc.Spec.Ports[0])
	}
}

func TestManifestKinds(t *testing.T) {
	tests := []struct {
		name  string
		text  string
		want  []string
		notes []string
	}{
		{name: "nothing"},
		{name: "only comments", text: "# a\n---\n# b\n---\n"},
		{name: "several documents", text: shop, want: []string{"service ns1/shop", "slice ns1/shop-1", "node n1"}},
		{
			name: "list",
			text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n- {apiVersion: v1, kind: Node, metadata: {name: n2}}\n",
			want: []string{"node n1", "node n2"},
		},
		{name: "JSON", text: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`, want: []string{"node n1"}},
		{
			name:  "other kinds",
			text:  "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n--- # next\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: s}\n",
			notes: []string{"f.yaml:2: Deployment (apps/v1) is left out", "f.yaml:6: Service (serving.knative.dev/v1) is left out"},
		},
		{
			name: "headless and another proxy's",
			text: `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None}}
---
{apiVersion: v1, kind: Service, metadata: {name: b, labels: {service.kubernetes.io/service-proxy-name: ""}}, spec: {clusterIP: 10.96.0.1, ports: [{port: 1}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, labels: {service.kubernetes.io/headless: ""}}, addressType: IPv4}
`,
		},
		{name: "external name", text: "{apiVersion: v1, kind: Service, metadata: {name: e}, spec: {type: ExternalName, externalName: example.com}}", want: []string{"service default/e"}},
		{
			name:  "slice of no Service",
			text:  "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1}, addressType: IPv4}",
			want:  []string{"slice default/a-1"},
			notes: []string{"f.yaml:1: EndpointSlice default/a-1 belongs to no Service"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, err := parseManifest("f.yaml", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := o.names(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if len(o.Notes) != len(tt.notes) {
				t.Fatalf("got notes %q, want %d", o.Notes, len(tt.notes))
			}
			for i, note := range o.Notes {
				if !strings.HasPrefix(note, tt.notes[i]) {
					t.Errorf("got note %q, want %q…", note, tt.notes[i])
				}
			}
		})
	}
}

// TestManifestMistakes holds that a mistake is reported with file, line and field.
func TestManifestMistakes(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: ns1}\nspec:\n"
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s-1}\n"
	tests := []struct {
		name string
		text string
		want []string
	}{
		{
			name: "misspelt fields and wrong types",
			text: service + "  clusterIp: 10.96.0.80\n  ports:\n  - port: eighty\n    prot: TCP\n  selector: [a]\n",
			want: []string{
				`f.yaml:5: Service: spec.clusterIp: Forbidden: there is no such field`,
				`f.yaml:7: Service: spec.ports[0].port: Invalid value: "eighty": must be a whole number, not a string`,
				`f.yaml:8: Service: spec.ports[0].prot: Forbidden: there is no such field`,
				`f.yaml:9: Service: spec.selector: Invalid value: ["a"]: must be a mapping, not a list`,
			},
		},
		{
			name: "no cluster IP",
			text: service + "  ports:\n  - port: 80\n",
			want: []string{`f.yaml:4: Service ns1/s: spec.clusterIP: Required value: there is no API server to allocate one`},
		},
		{
			name: "addresses",
			text: service + `  clusterIP: 10.96.0
  ports: [{port: 80}]
  type: LoadBalancer
  externalIPs:
  - 10.60.0.10
  - 10.60.0.256
  loadBalancerSourceRanges:
  - " 10.0.0.0/8 "
  - 10.0.0.1
status:
  loadBalancer:
    ingress:
    - ip: x
`,
			want: []string{
				`f.yaml:4: Service ns1/s: spec.clusterIPs[0]: Invalid value: "10.96.0": must be an IP address`,
				`f.yaml:10: Service ns1/s: spec.externalIPs[1]: Invalid value: "10.60.0.256": must be an IP address`,
				`f.yaml:13: Service ns1/s: spec.loadBalancerSourceRanges[1]: Invalid value: "10.0.0.1": must be a CIDR`,
				`f.yaml:17: Service ns1/s: status.loadBalancer.ingress[0].ip: Invalid value: "x"`,
			},
		},
		{
			name: "cluster IPs that differ, of one family",
			text: service + "  clusterIP: 10.96.0.1\n  clusterIPs:\n  - 10.96.0.2\n  - 10.96.0.3\n  ports: [{port: 80}]\n",
			want: []string{
				`f.yaml:6: Service ns1/s: spec.clusterIPs: Invalid value: ["10.96.0.2","10.96.0.3"]: at most one address of each family`,
				`f.yaml:7: Service ns1/s: spec.clusterIPs[0]: Invalid value: "10.96.0.2": must be the same as spec.clusterIP`,
			},
		},
		{
			name: "ports",
			text: service + `  clusterIP: 10.96.0.80
  ports:
  - port: 0
    name: a
  - port: 70000
    name: a
  - port: 80
    name: B
    nodePort: 30080
  - port: 80
    protocol: ICMP
`,
			want: []string{
				`f.yaml:7: Service ns1/s: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535`,
				`f.yaml:9: Service ns1/s: spec.ports[1].port: Invalid value: 70000`,
				`f.yaml:10: Service ns1/s: spec.ports[1].name: Duplicate value: "a"`,
				`f.yaml:12: Service ns1/s: spec.ports[2].name: Invalid value: "B"`,
				`f.yaml:13: Service ns1/s: spec.ports[2].nodePort: Forbidden: a Service of type ClusterIP has no node ports`,
				`f.yaml:14: Service ns1/s: spec.ports[3].name: Required value: each of several ports needs a name`,
				`f.yaml:15: Service ns1/s: spec.ports[3].protocol: Unsupported value: "ICMP"`,
			},
		},
		{
			name: "one number twice",
			text: service + "  clusterIP: 10.96.0.80\n  ports:\n  - {name: a, port: 80}\n  - {name: b, port: 80}\n",
			want: []string{"f.yaml:8: Service ns1/s: spec.ports[1].port: Duplicate value: 80"},
		},
		{
			name: "no ports, no node port",
			text: service + "  clusterIP: 10.96.0.80\n---\n" + service + "  type: NodePort\n  clusterIP: 10.96.0.81\n  ports:\n  - port: 80\n",
			want: []string{
				"f.yaml:4: Service ns1/s: spec.ports: Required value: a Service needs a port",
				`f.yaml:9: Service ns1/s: metadata.name: Duplicate value: "s"`,
				"f.yaml:14: Service ns1/s: spec.ports[0].nodePort: Required value: there is no API server to allocate one",
			},
		},
		{
			name: "words",
			text: service + `  clusterIP: 10.96.0.80
  type: NodePort
  ports: [{port: 80, nodePort: 30080}]
  internalTrafficPolicy: local
  externalTrafficPolicy: local
  sessionAffinity: clientIP
  healthCheckNodePort: -1
`,
			want: []string{
				`f.yaml:8: Service ns1/s: spec.internalTrafficPolicy: Unsupported value: "local"`,
				`f.yaml:9: Service ns1/s: spec.externalTrafficPolicy: Unsupported value: "local": supported values: "Cluster", "Local"`,
				`f.yaml:10: Service ns1/s: spec.sessionAffinity: Unsupported value: "clientIP"`,
				`f.yaml:11: Service ns1/s: spec.healthCheckNodePort: Invalid value: -1`,
			},
		},
		{
			name: "type, name and affinity timeout",
			text: "apiVersion: v1\nkind: Service\nmetadata: {name: \"a b\", namespace: A}\nspec: {type: Clusterip, clusterIP: 10.96.0.80, ports: [{port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}\n",
			want: []string{
				`f.yaml:3: Service A/a b: metadata.name: Invalid value: "a b"`,
				`f.yaml:3: Service A/a b: metadata.namespace: Invalid value: "A"`,
				`f.yaml:4: Service A/a b: spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0`,
				`f.yaml:4: Service A/a b: spec.type: Unsupported value: "Clusterip"`,
			},
		},
		{
			name: "slice",
			text: slice + `addressType: IPv4
ports:
- {name: a, port: 0, protocol: tcp}
- {name: a, port: 80}
endpoints:
- addresses: ["fd00::1", here]
- conditions: {ready: "yes, it is"}
`,
			want: []string{`f.yaml:10: EndpointSlice: endpoints[1].conditions.ready: Invalid value: "yes, it is": must be a boolean, not a string`},
		},
		{
			name: "slice values",
			text: slice + `addressType: IPv4
ports:
- {name: a, port: 0, protocol: tcp}
- {name: a, port: 80}
endpoints:
- addresses: ["fd00::1", here]
- conditions: {ready: true}
`,
			want: []string{
				`f.yaml:6: EndpointSlice default/s-1: ports[0].port: Invalid value: 0`,
				`f.yaml:6: EndpointSlice default/s-1: ports[0].protocol: Unsupported value: "tcp"`,
				`f.yaml:7: EndpointSlice default/s-1: ports[1].name: Duplicate value: "a"`,
				`f.yaml:9: EndpointSlice default/s-1: endpoints[0].addresses[0]: Invalid value: "fd00::1": is not an address of addressType IPv4`,
				`f.yaml:9: EndpointSlice default/s-1: endpoints[0].addresses[1]: Invalid value: "here": must be an IP address`,
				`f.yaml:10: EndpointSlice default/s-1: endpoints[1].addresses: Required value`,
			},
		},
		{name: "slice without a type", text: slice, want: []string{`f.yaml:1: EndpointSlice default/s-1: addressType: Unsupported value: ""`}},
		{
			name: "node",
			text: "apiVersion: v1\nkind: Node\nmetadata: {name: N1}\nspec: {podCIDR: 10.244.1.0, podCIDRs: [x]}\nstatus:\n  addresses:\n  - {type: Hostname, address: n1}\n  - {type: InternalIP, address: n1}\n",
			want: []string{
				`f.yaml:3: Node N1: metadata.name: Invalid value: "N1"`,
				`f.yaml:4: Node N1: spec.podCIDR: Invalid value: "10.244.1.0": must be a CIDR`,
				`f.yaml:4: Node N1: spec.podCIDRs[0]: Invalid value: "x"`,
				`f.yaml:8: Node N1: status.addresses[1].address: Invalid value: "n1": must be an IP address`,
			},
		},
		{
			name: "in a list",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n1\n  spek: {}\n- 7\n",
			want: []string{
				"f.yaml:8: Node: items[0].spek: Forbidden: there is no such field",
				"f.yaml:9: object: items[1].kind: Invalid value: 7: must be an object",
			},
		},
		{name: "no kind", text: "# x\nmetadata: {name: a}\n", want: []string{
			"f.yaml:2: object: apiVersion: Required value: v1 for Service and Node",
			"f.yaml:2: object: kind: Required value: Service, EndpointSlice or Node",
		}},
		{name: "not an object", text: "hello\n", want: []string{"f.yaml:1: object: "}},
		{name: "not YAML", text: shop + "---\na: b: c\n", want: []string{"f.yaml:29: mapping values are not allowed"}},
		{name: "repeated key", text: service + "  clusterIP: 10.96.0.1\n  clusterIP: 10.96.0.2\n", want: []string{`f.yaml:6: key "clusterIP" already set in map`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, err := parseManifest("f.yaml", []byte(tt.text))
			if err == nil {
				t.Fatalf("got no error and %q", o.names())
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Errorf("got %d lines, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for i := range min(len(lines), len(tt.want)) {
				if !strings.HasPrefix(lines[i], tt.want[i]) {
					t.Errorf("line %d\n got: %s\nwant: %s…", i+1, lines[i], tt.want[i])
				}
			}
		})
	}
}

func TestReadManifests(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"b.yaml":       "{apiVersion: v1, kind: Node, metadata: {name: n2}}",
		"a.json":       `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`,
		"c.yml":        "{apiVersion: v1, kind: Node, metadata: {name: n3}}",
		".hidden.yaml": "no: good",
		"README.md":    "no good",
		"b.yaml~":      "no good",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	single := write(t, "shop", strings.ReplaceAll(shop, "{name: n1}", "{name: n4}"))
	o, err := ReadManifests(dir, single)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := o.names(), []string{"service ns1/shop", "slice ns1/shop-1", "node n1", "node n2", "node n3", "node n4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	o, err = ReadManifests(dir, filepath.Join(dir, "b.yaml"), filepath.Join(dir, "missing"), filepath.Join(dir, ".hidden.yaml"))
	if err == nil || len(o.names()) > 0 {
		t.Fatalf("got %q and error %v, want only an error", o.names(), err)
	}
	for _, want := range []string{
		"b.yaml: Node n2 is in an earlier file too",
		"missing: no such file or directory",
		".hidden.yaml:1: object: apiVersion: Required value",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error has no %q:\n%v", want, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(shop))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, spec: {clusterIPs: [\"fd00::1\", 10.0.0.1], sessionAffinity: ClientIP, ports: [{port: 80}]}}\n"))
	f.Add([]byte("a: &a [*a]\n---\n- x\n---\n7"))
	f.Add([]byte("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: None, ports: [{port: 1, targetPort: {}}]}, status: {loadBalancer: {ingress: [{ip: 1.2.3.4}]}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseManifest("f.yaml", data)
		switch {
		case err != nil && len(o.names())+len(o.Notes) > 0:
			t.Fatalf("got objects %q and error %v, want one of them", o.names(), err)
		case err != nil && strings.TrimSpace(err.Error()) == "":
			t.Fatal("an error without words")
		}
		for _, svc := range o.Services {
			if svc.Spec.Type != v1.ServiceTypeExternalName && (len(svc.Spec.ClusterIPs) == 0 || svc.Spec.InternalTrafficPolicy == nil) {
				t.Fatalf("a valid Service without its defaults: %+v", svc)
			}
		}
	})
}
