package render

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// The names are kube-proxy's, as it was seen to write them, so that a node can change
// hands without a flush.
func TestChainNames(t *testing.T) {
	name := service("s").Name
	tests := []struct{ what, got, want string }{
		{"Service port", clusterPrefix + serviceHash(name), "KUBE-SVC-SX5RYH7GYXFF325S"},
		{"endpoint A", endpointChain(name, A.Addr), "KUBE-SEP-CPIJPS443VEYUIJJ"},
		{"endpoint B", endpointChain(name, B.Addr), "KUBE-SEP-LWCFL5Z45VBN74RH"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%s: chain %s, want %s", test.what, test.got, test.want)
		}
	}
}

func TestChainNamesDiffer(t *testing.T) {
	seen := map[string]model.ServicePortName{}
	for _, name := range []model.ServicePortName{
		{ServiceName: model.ServiceName{Namespace: "ns1", Name: "s"}, Port: "http", Protocol: model.TCP},
		{ServiceName: model.ServiceName{Namespace: "ns1", Name: "s"}, Port: "http", Protocol: model.UDP},
		{ServiceName: model.ServiceName{Namespace: "ns1", Name: "s"}, Protocol: model.TCP},
		{ServiceName: model.ServiceName{Namespace: "ns1", Name: "t"}, Port: "http", Protocol: model.TCP},
		{ServiceName: model.ServiceName{Namespace: "ns2", Name: "s"}, Port: "http", Protocol: model.TCP},
	} {
		if other, taken := seen[serviceHash(name)]; taken {
			t.Errorf("%v %s has the chains of %v %s", name, name.Protocol, other, other.Protocol)
		}
		seen[serviceHash(name)] = name
	}
}

func TestOwns(t *testing.T) {
	tests := []struct {
		chain            string
		owned, isService bool
	}{
		{"nat/KUBE-SERVICES", true, false},
		{"nat/KUBE-NODEPORTS", true, false},
		{"nat/KUBE-POSTROUTING", true, false},
		{"nat/KUBE-MARK-MASQ", true, false},
		{"nat/KUBE-PROXY-CANARY", true, false},
		{"mangle/KUBE-PROXY-CANARY", true, false},
		{"filter/KUBE-PROXY-CANARY", true, false},
		{"filter/KUBE-PROXY-FIREWALL", true, false},
		{"filter/KUBE-EXTERNAL-SERVICES", true, false},
		{"filter/KUBE-FORWARD", true, false},
		{"nat/KUBE-SVC-SX5RYH7GYXFF325S", true, true},
		{"nat/KUBE-SVL-SX5RYH7GYXFF325S", true, true},
		{"nat/KUBE-EXT-SX5RYH7GYXFF325S", true, true},
		{"nat/KUBE-FW-SX5RYH7GYXFF325S", true, true},
		{"nat/KUBE-SEP-CPIJPS443VEYUIJJ", true, true},
		{"nat/KUBE-XLB-SX5RYH7GYXFF325S", true, true},
		{"nat/KUBE-SVC-10.96.0.0/26", true, true},
		{"filter/KUBE-SVC-S10.96.0.0/26", true, true},

		{"filter/KUBE-FIREWALL", false, false}, // the kubelet's as well
		{"nat/KUBE-MARK-DROP", false, false},   // the kubelet's
		{"mangle/KUBE-KUBELET-CANARY", false, false},
		{"mangle/KUBE-IPTABLES-HINT", false, false},
		{"nat/KUBE-HP-SX5RYH7GYXFF325S", false, false}, // host ports of a CNI
		{"nat/KUBE-SERVICESX", false, false},
		{"nat/KUBE-SVCX", false, false},
		{"filter/KUBE-SEP-CPIJPS443VEYUIJJ", false, false},
		{"mangle/KUBE-SERVICES", false, false},
		{"nat/PREROUTING", false, false},
		{"nat/DOCKER", false, false},
		{"nat/cali-PREROUTING", false, false},
	}
	for _, test := range tests {
		table, name, _ := strings.Cut(test.chain, "/")
		id := ruleset.ChainID{Table: ruleset.Table(table), Name: name}
		if Owns(id) != test.owned || IsPerService(id) != test.isService {
			t.Errorf("%s: Owns %v, IsPerService %v, want %v and %v", id, Owns(id), IsPerService(id), test.owned, test.isService)
		}
	}
}

func TestHooksLeadToKnownChains(t *testing.T) {
	for _, hook := range Hooks() {
		to := ruleset.ChainID{Table: hook.From.Table, Name: hook.Rule.Target()}
		if !hook.From.IsBuiltin() || !Owns(to) && !Shares(to) {
			t.Errorf("hook from %s to %s", hook.From, to)
		}
	}
}

// TestLongestNames is B-42: what the API allows never breaks a limit of iptables.
func TestLongestNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, endpoints := range [][]model.Endpoint{nil, {longest6}, {B6, longest6}, {A6, B6}} {
		for _, flat := range []int{0, 1} {
			o := options(ipv6, func(o *Options) { o.FlatDispatch, o.FlatBalance = flat, flat })
			w := newWorld().with(everything6(long, long, long), endpoints...)
			for i := range 12 {
				w.with(service("t", at(netip.AddrFrom16([16]byte{0xfd, byte(i), 0xff, byte(i), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(i)}).String()),
					func(p *model.ServicePort) { p.Name.Name += string(rune('a' + i)); p.NodePort = uint16(30100 + i) }), endpoints...)
			}
			for _, chain := range w.render(o).chains {
				if len(chain.Name) > ruleset.MaxChainName {
					t.Errorf("B-42 chain %s has %d characters", chain.Name, len(chain.Name))
				}
				for _, rule := range chain.Rules {
					if len(rule.Comment) > ruleset.MaxComment {
						t.Errorf("B-42 comment of %d bytes: %s", len(rule.Comment), rule.Comment)
					}
				}
			}
		}
	}
}

// TestOptionsEqual changes every field, so that one that is added later cannot be
// forgotten.
func TestOptionsEqual(t *testing.T) {
	if !options().Equal(options()) {
		t.Error("options are not equal to their copy")
	}
	fields := reflect.TypeFor[Options]()
	for i := range fields.NumField() {
		changed := options()
		field := reflect.ValueOf(&changed).Elem().Field(i)
		switch field.Kind() {
		case reflect.Struct:
			if lacks, ok := field.Addr().Interface().(*Lacks); ok {
				lacks.SCTP = true
				break
			}
			field.SetZero()
		case reflect.Bool:
			field.SetBool(!field.Bool())
		case reflect.String:
			field.SetString("changed")
		case reflect.Int:
			field.SetInt(7)
		case reflect.Uint8, reflect.Uint32:
			field.SetUint(field.Uint() + 1)
		default:
			field.SetZero()
		}
		if options().Equal(changed) {
			t.Errorf("a change of %s is not seen", fields.Field(i).Name)
		}
	}
	for what, change := range map[string]func(*Options){
		"the zone":                func(o *Options) { o.Node.Zone = "zone-b" },
		"the primary address":     func(o *Options) { o.Node.Addresses = []netip.Addr{addr("10.0.0.3")} },
		"the node's name":         func(o *Options) { o.Node.Name = "n2" },
		"the pods' interface":     func(o *Options) { o.Local = LocalTraffic{Interface: "cni0"} },
		"the node port addresses": func(o *Options) { o.NodePorts = NodePortAddresses{Addresses: []netip.Addr{addr("10.0.0.1")}} },
	} {
		if options().Equal(options(change)) {
			t.Errorf("a change of %s is not seen", what)
		}
	}
}

func TestFrontendString(t *testing.T) {
	tests := []struct {
		frontend Frontend
		want     string
	}{
		{Frontend{Addr: addr("10.96.0.80"), Protocol: model.TCP, Port: 80}, "10.96.0.80:80/TCP"},
		{Frontend{Addr: addr("fd00:96::80"), Protocol: model.UDP, Port: 53}, "[fd00:96::80]:53/UDP"},
		{Frontend{Protocol: model.SCTP, Port: 30080}, "node port 30080/SCTP"},
	}
	for _, test := range tests {
		if got := test.frontend.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
