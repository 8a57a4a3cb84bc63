package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestDefaultsAreKubeProxys(t *testing.T) {
	got, err := mustParse(t).YAML()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestEmptyFieldsMeanDefaults reads the file that kubeadm writes, in which all fields
// are present and most are empty.
func TestEmptyFieldsMeanDefaults(t *testing.T) {
	c := mustParse(t, "--config=testdata/kubeadm.yaml")
	want := Defaults()
	want.ClusterCIDR = "10.244.0.0/16"
	want.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.Mode = "iptables"
	// A number in the file stays a number when it is shown.
	want.Logging.FlushFrequency = c.Raw.Logging.FlushFrequency
	if !reflect.DeepEqual(&c.Raw, want) {
		t.Errorf("got:\n%+v\nwant:\n%+v", c.Raw, *want)
	}
	if got := c.Raw.Logging.FlushFrequency.Duration.Duration; got != 5*time.Second {
		t.Errorf("logging.flushFrequency: got %v, want 5s", got)
	}
	if c.MinSyncPeriodSet {
		t.Error("minSyncPeriod: 0s in a file counts as chosen, want not chosen")
	}
	if got := c.Warnings; len(got) != 1 || !strings.HasPrefix(got[0], "nodePortAddresses is not set") {
		t.Errorf("got warnings %q, want one about nodePortAddresses", got)
	}
}

func TestParsedValues(t *testing.T) {
	c := mustParse(t, "--config="+write(t, "config.yaml", header+`
bindAddress: "fd00:0::1"
clusterCIDR: 10.244.3.4/16, fd00:244::1/48
nodePortAddresses: [primary, 10.1.2.3/8, "fd00::/8"]
enableProfiling: true
bindAddressHardFail: true
clientConnection: {qps: -1, burst: 7, acceptContentTypes: a/b}
iptables: {masqueradeBit: 31, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 1m, minSyncPeriod: 10s}
conntrack: {maxPerCore: 0, min: 5, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 2m, udpTimeout: 3s, udpStreamTimeout: 4s, tcpBeLiberal: true}
oomScoreAdj: -5
configSyncPeriod: 1h
featureGates: {AllowServiceExternalIPs: false}
`))
	want := Config{
		NodeName:            "worker-1.example",
		BindAddress:         netip.MustParseAddr("fd00::1"),
		Healthz:             netip.MustParseAddrPort("[::]:10256"),
		Metrics:             netip.MustParseAddrPort("[::1]:10249"),
		BindAddressHardFail: true,
		Profiling:           true,
		MasqueradeMark:      1 << 31,
		MasqueradeAll:       true,
		NodePortAddresses:   NodePortAddresses{Primary: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		LocalDetector: LocalDetector{
			Mode:         LocalModeClusterCIDR,
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
		},
		SyncPeriod: time.Minute, MinSyncPeriod: 10 * time.Second, MinSyncPeriodSet: true,
		Conntrack: Conntrack{
			Min: 5, TCPEstablishedTimeout: time.Hour, TCPCloseWaitTimeout: 2 * time.Minute,
			UDPTimeout: 3 * time.Second, UDPStreamTimeout: 4 * time.Second, TCPBeLiberal: true,
		},
		OOMScoreAdj:   -5,
		API:           API{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "a/b", QPS: -1, Burst: 7, Resync: time.Hour},
		ModeDefaulted: true,
	}
	if c.FeatureGates.Enabled(AllowServiceExternalIPs) || !c.FeatureGates.Enabled(PreferSameTrafficDistribution) {
		t.Error("feature gates are not as set")
	}
	got := *c
	got.File, got.FeatureGates, got.Raw = "", nil, want.Raw
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got:\n%+v\nwant:\n%+v", got, want)
	}
}

func TestLocalDetector(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want LocalDetector
	}{
		{"nothing said", nil, LocalDetector{Mode: LocalModeClusterCIDR}},
		{"node", []string{"--detect-local-mode=NodeCIDR"}, LocalDetector{Mode: LocalModeNodeCIDR}},
		{"bridge", []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"}, LocalDetector{Mode: LocalModeBridgeInterface, Interface: "cni0"}},
		{"prefix", []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"}, LocalDetector{Mode: LocalModeInterfaceNamePrefix, Interface: "veth"}},
		{"unused cluster CIDR is not looked at", []string{"--detect-local-mode=NodeCIDR", "--cluster-cidr=nonsense"}, LocalDetector{Mode: LocalModeNodeCIDR}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := mustParse(t, tt.args...).LocalDetector; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestServerAddresses(t *testing.T) {
	tests := []struct {
		name             string
		args             []string
		healthz, metrics string // "" for the zero value
	}{
		{"defaults", nil, "0.0.0.0:10256", "127.0.0.1:10249"},
		{"health disabled", []string{"--healthz-bind-address="}, "", "127.0.0.1:10249"},
		{"health disabled the old way", []string{"--healthz-port=0"}, "", "127.0.0.1:10249"},
		{"address without port", []string{"--healthz-bind-address=10.0.0.1", "--metrics-bind-address=::"}, "10.0.0.1:10256", "[::]:10249"},
		{"port the old way", []string{"--healthz-bind-address=10.0.0.1", "--healthz-port=1", "--metrics-bind-address=[::1]", "--metrics-port=2"}, "10.0.0.1:1", "[::1]:2"},
		{"old way loses against a whole address", []string{"--healthz-port=1"}, "0.0.0.0:10256", "127.0.0.1:10249"},
		{"in a file", []string{"--config=" + write(t, "c", header+"healthzBindAddress: 10.0.0.2\nmetricsBindAddress: '[fd00::2]:7'\n")}, "10.0.0.2:10256", "[fd00::2]:7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := mustParse(t, tt.args...)
			var want netip.AddrPort
			if tt.healthz != "" {
				want = netip.MustParseAddrPort(tt.healthz)
			}
			if c.Healthz != want || c.Metrics != netip.MustParseAddrPort(tt.metrics) {
				t.Errorf("got healthz %v, metrics %v; want %v, %v", c.Healthz, c.Metrics, want, tt.metrics)
			}
		})
	}
}

// TestNodeName covers B-65: the agent's name must be the Node's, whatever case and
// blanks it is given in.
func TestNodeName(t *testing.T) {
	file := "--config=" + write(t, "config.yaml", header+"hostnameOverride: from-FILE\n")
	tests := []struct {
		name string
		args []string
		env  string
		host string
		want string
		fail string
	}{
		{name: "host's name", host: "Worker-1.Example\n", want: "worker-1.example"},
		{name: "NODE_NAME before the host's name", env: " N2 ", host: "h", want: "n2"},
		{name: "flag before NODE_NAME", args: []string{"--hostname-override= N1 "}, env: "n2", want: "n1"},
		{name: "file before NODE_NAME", args: []string{file}, env: "n2", want: "from-file"},
		{name: "flag before file", args: []string{file, "--hostname-override=N1"}, want: "n1"},
		{name: "blank flag", args: []string{"--hostname-override= "}, env: "n2", fail: "hostnameOverride is blank"},
		{name: "no name at all", fail: "the host's name is blank"},
		{name: "name cannot be had", host: "error", fail: "set --hostname-override"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
			flags := NewFlags(fs)
			if err := fs.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			c, err := flags.configFrom(environment{
				getenv: func(name string) string {
					if name != "NODE_NAME" {
						return ""
					}
					return tt.env
				},
				hostname: func() (string, error) {
					if tt.host == "error" {
						return "", errors.New("no such thing")
					}
					return tt.host, nil
				},
			})
			switch {
			case tt.fail != "":
				if err == nil || !strings.Contains(err.Error(), tt.fail) {
					t.Errorf("got %v, want an error with %q", err, tt.fail)
				}
			case err != nil:
				t.Error(err)
			case c.NodeName != tt.want:
				t.Errorf("got %q, want %q", c.NodeName, tt.want)
			}
		})
	}
}

func TestMinSyncPeriodIsRemembered(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want time.Duration
		set  bool
	}{
		{"nothing said", nil, time.Second, false},
		{"flag", []string{"--iptables-min-sync-period=2s"}, 2 * time.Second, true},
		{"flag with the default's value", []string{"--iptables-min-sync-period=1s"}, time.Second, true},
		{"flag with zero", []string{"--iptables-min-sync-period=0s"}, 0, true},
		{"file without it", []string{"--config=" + write(t, "c", header)}, time.Second, false},
		{"file with zero", []string{"--config=" + write(t, "c", header+"iptables: {minSyncPeriod: 0s}\n")}, time.Second, false},
		{"file with the default's value", []string{"--config=" + write(t, "c", header+"iptables: {minSyncPeriod: 1s}\n")}, time.Second, true},
		{"a short syncPeriod is fine with own pacing", []string{"--iptables-sync-period=100ms"}, time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if c := mustParse(t, tt.args...); c.MinSyncPeriod != tt.want || c.MinSyncPeriodSet != tt.set {
				t.Errorf("got %v (set: %v), want %v (set: %v)", c.MinSyncPeriod, c.MinSyncPeriodSet, tt.want, tt.set)
			}
		})
	}
}

// TestMistakes holds that every mistake is reported, by field, all at once, in one
// line each.
func TestMistakes(t *testing.T) {
	tests := []struct {
		name string
		file string
		args []string
		want []string // the beginning of each line, without the file's name
	}{
		{
			name: "values",
			file: header + `
mode: ipvs
bindAddress: here
healthzBindAddress: localhost:10256
metricsBindAddress: 127.0.0.1:0
showHiddenMetricsForVersion: "7"
detectLocalMode: Magic
nodePortAddresses: [primary, 10.0.0.1, primary]
oomScoreAdj: 1001
configSyncPeriod: -1s
clientConnection: {burst: -1}
iptables: {masqueradeBit: -1, syncPeriod: -1s, minSyncPeriod: -1s}
conntrack: {maxPerCore: -1, min: -1, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -1s, udpTimeout: -1s, udpStreamTimeout: -1s}
featureGates: {NoSuchGate: true}
`,
			want: []string{
				`bindAddress: Invalid value: "here": must be an IP address`,
				`clientConnection.burst: Invalid value: -1: must be from 0 to`,
				`configSyncPeriod: Invalid value: "-1s": must be longer than 0s`,
				`conntrack.maxPerCore: Invalid value: -1:`,
				`conntrack.min: Invalid value: -1:`,
				`conntrack.tcpCloseWaitTimeout: Invalid value: "-1s": must not be negative`,
				`conntrack.tcpEstablishedTimeout: Invalid value: "-1s":`,
				`conntrack.udpStreamTimeout: Invalid value: "-1s":`,
				`conntrack.udpTimeout: Invalid value: "-1s":`,
				`detectLocalMode: Unsupported value: "Magic": supported values: "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"`,
				`featureGates: Invalid value: {"NoSuchGate":true}: unrecognized feature gate: NoSuchGate`,
				`healthzBindAddress: Invalid value: "localhost:10256": must be an IP address and a port`,
				`iptables.masqueradeBit: Invalid value: -1: must be from 0 to 31`,
				`iptables.minSyncPeriod: Invalid value: "-1s": must not be negative`,
				`iptables.syncPeriod: Invalid value: "-1s": must be longer than 0s`,
				`metricsBindAddress: Invalid value: "127.0.0.1:0": must be an IP address and a port`,
				`mode: Invalid value: "ipvs": miniproxy writes iptables rules only`,
				`nodePortAddresses[1]: Invalid value: "10.0.0.1": must be a CIDR`,
				`nodePortAddresses[2]: Duplicate value: "primary"`,
				`oomScoreAdj: Invalid value: 1001: must be from -1000 to 1000`,
				`showHiddenMetricsForVersion: Invalid value: "7":`,
			},
		},
		{
			name: "types",
			file: header + `
bindAddress: 7
iptables: {syncPeriod: 30, minSyncPeriod: soon, masqueradeAll: 1, masqueradeBit: fourteen}
nodePortAddresses: primary
conntrack: []
`,
			want: []string{
				`bindAddress: Invalid value: 7: must be a string, not a number`,
				`conntrack: Invalid value: []: must be a mapping, not a list`,
				`iptables.masqueradeAll: Invalid value: 1: must be a boolean, not a number`,
				`iptables.masqueradeBit: Invalid value: "fourteen": must be a whole number, not a string`,
				`iptables.minSyncPeriod: Invalid value: "soon": time: invalid duration "soon"`,
				`iptables.syncPeriod: Invalid value: 30: must be a string, not a number`,
				`nodePortAddresses: Invalid value: "primary": must be a list, not a string`,
			},
		},
		{
			name: "minSyncPeriod longer than syncPeriod",
			file: header + "iptables: {syncPeriod: 1s, minSyncPeriod: 2s}\n",
			want: []string{`iptables.minSyncPeriod: Invalid value: "2s": must not be longer than iptables.syncPeriod (1s)`},
		},
		{
			name: "three cluster CIDRs",
			file: header + "clusterCIDR: 10.0.0.0/8,fd00::/8,11.0.0.0/8\n",
			want: []string{"clusterCIDR: Invalid value: \"10.0.0.0/8,fd00::/8,11.0.0.0/8\": at most one CIDR of each family"},
		},
		{
			name: "two cluster CIDRs of one family",
			file: header + "clusterCIDR: 10.0.0.0/8,11.0.0.0/8\n",
			want: []string{"clusterCIDR: Invalid value"},
		},
		{
			name: "not a CIDR",
			file: header + "clusterCIDR: 10.0.0.0\n",
			want: []string{"clusterCIDR: Invalid value: \"10.0.0.0\": must be a CIDR"},
		},
		{name: "bridge without a name", file: header + "detectLocalMode: BridgeInterface\n", want: []string{"detectLocal.bridgeInterface: Required value"}},
		{name: "prefix without a name", file: header + "detectLocalMode: InterfaceNamePrefix\n", want: []string{"detectLocal.interfaceNamePrefix: Required value"}},
		{
			name: "bridge with a name that no interface can have",
			file: header + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: \"br 0\"}\n",
			want: []string{`detectLocal.bridgeInterface: Invalid value: "br 0": must be at most 15 bytes, without blanks`},
		},
		{
			name: "prefix that leaves no room for what comes after it",
			file: header + "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: fifteen-letters}\n",
			want: []string{`detectLocal.interfaceNamePrefix: Invalid value: "fifteen-letters": must be at most 14 bytes`},
		},
		{
			name: "something else",
			file: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
			want: []string{
				`apiVersion: Unsupported value: "kubelet.config.k8s.io/v1beta1": supported values: "kubeproxy.config.k8s.io/v1alpha1"`,
				`kind: Unsupported value: "KubeletConfiguration": supported values: "KubeProxyConfiguration"`,
			},
		},
		{name: "empty file", file: "", want: []string{"apiVersion: Unsupported value", "kind: Unsupported value"}},
		{name: "list", file: "[]", want: []string{"not a KubeProxyConfiguration: the file must hold one mapping"}},
		{name: "not YAML", file: "a: b: c\n", want: []string{"1: mapping values are not allowed"}},
		{name: "wrong logging format", file: header + "logging: {format: xml}\n", want: []string{`logging.format: Invalid value: "xml"`}},
		{name: "flags", args: []string{"--oom-score-adj=-1001", "--proxy-mode=nftables", "--metrics-bind-address="}, want: []string{
			`metricsBindAddress: Invalid value: "": must be an IP address and a port`,
			`mode: Invalid value: "nftables": miniproxy writes iptables rules only`,
			"oomScoreAdj: Invalid value: -1001: must be from -1000 to 1000",
		}},
		{name: "flag of locked gate", args: []string{"--feature-gates=PreferSameTrafficDistribution=false"}, want: []string{"featureGates: Invalid value"}},
		{name: "argument", args: []string{"--cleanup", "true"}, want: []string{`unexpected argument "true": flags begin with --`}},
		{name: "no such file", args: []string{"--config=/does/not/exist"}, want: []string{"read the configuration: open /does/not/exist: no such file or directory; check --config"}},
		{name: "API server twice", args: []string{"--master=a", "--api-servers=b"}, want: []string{"--master and --api-servers exclude each other"}},
		{name: "manifests and API server", args: []string{"--manifests=d", "--api-servers=b"}, want: []string{"--manifests takes the place of an API server"}},
		{name: "API server addresses", args: []string{"--api-servers=ftp://a,ok,https://"}, want: []string{
			`--api-servers[0]: Invalid value: "ftp://a": must be an address like https://10.0.0.1:6443`,
			`--api-servers[2]: Invalid value: "https://"`,
		}},
		{name: "master address", args: []string{"--master=a b"}, want: []string{`--master: Invalid value: "a b"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args, prefix := tt.args, ""
			if args == nil {
				path := write(t, "config.yaml", tt.file)
				args, prefix = []string{"--config=" + path}, path+":"
			}
			c, err := parse(t, args...)
			if err == nil {
				t.Fatalf("got no error and %+v", c)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Errorf("got %d lines, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for i := range min(len(lines), len(tt.want)) {
				if !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(lines[i], prefix), " "), tt.want[i]) {
					t.Errorf("line %d\n got: %s\nwant: %s%s…", i+1, lines[i], prefix, tt.want[i])
				}
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	quiet := []string{"--nodeport-addresses=primary", "--cluster-cidr=10.0.0.0/8"}
	quietFile := header + "nodePortAddresses: [primary]\nclusterCIDR: 10.0.0.0/8\n"
	tests := []struct {
		name string
		args []string
		file string
		want []string // a part of each warning
	}{
		{name: "nothing wrong", args: quiet},
		{name: "nothing said", want: []string{"clusterCIDR is not set", "nodePortAddresses is not set"}},
		{name: "other modes' flags", args: append(quiet, "--ipvs-scheduler=rr", "--ipvs-sync-period=1s"), want: []string{
			"--ipvs-scheduler, --ipvs-sync-period: no effect", "ipvs and nftables have no effect",
		}},
		{name: "deprecated flags", args: append(quiet, "--healthz-port=0"), want: []string{"--healthz-port: deprecated"}},
		{name: "flags beside a file", file: quietFile, args: []string{"--cluster-cidr=10.0.0.0/8", "--masquerade-all", "-v=1", "--hostname-override=n"}, want: []string{
			"--cluster-cidr, --masquerade-all: ignored because of --config",
		}},
		{name: "unknown fields are forgiven", file: quietFile + "iptables: {masqueradebit: 3}\nnewThing: 1\n", want: []string{
			"iptables.masqueradebit: Forbidden: there is no such field", "newThing: Forbidden: there is no such field",
		}},
		{name: "repeated key is forgiven", file: quietFile + "mode: ''\nmode: iptables\n", want: []string{`key "mode" already set`}},
		{name: "other modes' blocks", file: quietFile + "ipvs: {scheduler: rr}\nwinkernel: {enableDSR: true}\nportRange: 1-2\n", want: []string{
			"portRange has no effect", "ipvs and nftables have no effect", "windowsRunAsService and winkernel have no effect",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.file != "" {
				args = append(slices.Clone(args), "--config="+write(t, "config.yaml", tt.file))
			}
			got := mustParse(t, args...).Warnings
			if len(got) != len(tt.want) {
				t.Errorf("got %d warnings, want %d: %q", len(got), len(tt.want), got)
			}
			for i := range min(len(got), len(tt.want)) {
				if !strings.Contains(got[i], tt.want[i]) {
					t.Errorf("warning %d: got %q, want it to contain %q", i, got[i], tt.want[i])
				}
			}
		})
	}
}

func TestFileReplacesFlags(t *testing.T) {
	file := write(t, "config.yaml", header+"clusterCIDR: 10.1.0.0/16\n")
	c := mustParse(t, "--config="+file, "--cluster-cidr=10.2.0.0/16", "--masquerade-all", "--cleanup", "--init-only",
		"--write-config-to=/out", "--api-servers=a,b:1")
	if c.Raw.ClusterCIDR != "10.1.0.0/16" || c.MasqueradeAll {
		t.Errorf("got clusterCIDR %q, masqueradeAll %v; want the file's", c.Raw.ClusterCIDR, c.MasqueradeAll)
	}
	if !c.Cleanup || !c.InitOnly || c.WriteConfigTo != "/out" || c.File != file {
		t.Errorf("flags without a field in the file must hold: got %+v", c)
	}
	var servers []string
	for _, s := range c.API.Servers {
		servers = append(servers, s.String())
	}
	if want := []string{"https://a:6443", "https://b:1"}; !slices.Equal(servers, want) {
		t.Errorf("got servers %q, want %q", servers, want)
	}
}

func TestJSONFile(t *testing.T) {
	file := write(t, "config.json", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"iptables","iptables":{"masqueradeBit":2}}`)
	if c := mustParse(t, "--config="+file); c.MasqueradeMark != 4 || c.ModeDefaulted {
		t.Errorf("got mark %d, mode defaulted %v; want 4, false", c.MasqueradeMark, c.ModeDefaulted)
	}
}

func TestYAMLRoundTrip(t *testing.T) {
	first, err := mustParse(t, "--config=testdata/kubeadm.yaml").YAML()
	if err != nil {
		t.Fatal(err)
	}
	second, err := mustParse(t, "--config="+write(t, "config.yaml", string(first))).YAML()
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != string(second) {
		t.Errorf("reading back what was written changes it:\n%s\nthen:\n%s", first, second)
	}
}

func FuzzConfig(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(header + "clusterCIDR: 10.0.0.0/8,fd00::/8\niptables: {masqueradeBit: -1, syncPeriod: 1h}\nfeatureGates: {AllAlpha: true}\n"))
	f.Add([]byte(header + "nodePortAddresses: [all, 1.2.3.4/5, ]\nlogging: {vmodule: [{filePattern: '='}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := decode("config.yaml", data)
		if (first.KubeProxyConfiguration == nil) == (err == nil) {
			t.Fatalf("got configuration %v and error %v, want one of them", first, err)
		}
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Fatal("an error without words")
			}
			return
		}
		c := &Config{Raw: *first.KubeProxyConfiguration, MinSyncPeriodSet: first.minSyncPeriodSet}
		var p parser
		if p.parse(c); len(p.errs) > 0 {
			return
		}
		text, err := c.YAML()
		if err != nil {
			t.Fatalf("a valid configuration cannot be written: %v", err)
		}
		second, err := decode("written.yaml", text)
		if err != nil {
			t.Fatalf("a valid configuration, written, cannot be read: %v\n%s", err, text)
		}
		if p.parse(&Config{Raw: *second.KubeProxyConfiguration}); len(p.errs) > 0 {
			t.Fatalf("a valid configuration, written, is not valid: %v\n%s", p.errs, text)
		}
	})
}
