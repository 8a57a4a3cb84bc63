package config

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

// host is a machine called Worker-1.example with nothing in its environment.
var host = environment{
	getenv:   func(string) string { return "" },
	hostname: func() (string, error) { return "Worker-1.example\n", nil },
}

// parse returns the configuration of a command line on host.
func parse(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return flags.configFrom(host)
}

func mustParse(t *testing.T, args ...string) *Config {
	t.Helper()
	c, err := parse(t, args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return c
}

// write makes a file in a directory of the test's own and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// header is what a configuration file begins with.
const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// TestFlagDefaults pins every flag and its default: kube-proxy's, then our own.
func TestFlagDefaults(t *testing.T) {
	want := map[string]string{
		"bind-address":                      "0.0.0.0",
		"bind-address-hard-fail":            "false",
		"cleanup":                           "false",
		"cluster-cidr":                      "",
		"config":                            "",
		"config-sync-period":                "15m0s",
		"conntrack-max-per-core":            "32768",
		"conntrack-min":                     "131072",
		"conntrack-tcp-be-liberal":          "false",
		"conntrack-tcp-timeout-close-wait":  "1h0m0s",
		"conntrack-tcp-timeout-established": "24h0m0s",
		"conntrack-udp-timeout":             "0s",
		"conntrack-udp-timeout-stream":      "0s",
		"detect-local-mode":                 "",
		"feature-gates":                     "",
		"healthz-bind-address":              "0.0.0.0:10256",
		"healthz-port":                      "10256",
		"hostname-override":                 "",
		"init-only":                         "false",
		"iptables-localhost-nodeports":      "true",
		"iptables-masquerade-bit":           "14",
		"iptables-min-sync-period":          "1s",
		"iptables-sync-period":              "30s",
		"ipvs-exclude-cidrs":                "[]",
		"ipvs-min-sync-period":              "1s",
		"ipvs-scheduler":                    "",
		"ipvs-strict-arp":                   "false",
		"ipvs-sync-period":                  "30s",
		"ipvs-tcp-timeout":                  "0s",
		"ipvs-tcpfin-timeout":               "0s",
		"ipvs-udp-timeout":                  "0s",
		"kube-api-burst":                    "10",
		"kube-api-content-type":             "application/vnd.kubernetes.protobuf",
		"kube-api-qps":                      "5",
		"kubeconfig":                        "",
		"log-flush-frequency":               "5s",
		"log-json-info-buffer-size":         "0",
		"log-json-split-stream":             "false",
		"log-text-info-buffer-size":         "0",
		"log-text-split-stream":             "false",
		"logging-format":                    "text",
		"masquerade-all":                    "false",
		"master":                            "",
		"metrics-bind-address":              "127.0.0.1:10249",
		"metrics-port":                      "10249",
		"nodeport-addresses":                "[]",
		"oom-score-adj":                     "-999",
		"pod-bridge-interface":              "",
		"pod-interface-name-prefix":         "",
		"profiling":                         "false",
		"proxy-mode":                        "",
		"show-hidden-metrics-for-version":   "",
		"v":                                 "0",
		"version":                           "false",
		"vmodule":                           "",
		"write-config-to":                   "",

		"api-servers": "[]",
		"manifests":   "",
	}
	fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
	NewFlags(fs)
	got := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		got[f.Name] = f.DefValue
		if f.Usage == "" {
			t.Errorf("--%s has no usage text", f.Name)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if value, ok := got[name]; !ok || value != want[name] {
			t.Errorf("--%s: got %q (there: %v), want %q", name, value, ok, want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("--%s is not in the table of flags", name)
		}
	}
}

func TestFlagsAreKnownByEitherDash(t *testing.T) {
	c := mustParse(t, "--cluster_cidr=10.244.0.0/16", "--iptables_masquerade-bit=3")
	if c.Raw.ClusterCIDR != "10.244.0.0/16" || c.MasqueradeMark != 8 {
		t.Errorf("got clusterCIDR %q, mark %#x; want 10.244.0.0/16 and 0x8", c.Raw.ClusterCIDR, c.MasqueradeMark)
	}
}

// TestFlagsOfOthers holds that a flag somebody else registered is not said to be
// replaced by the file.
func TestFlagsOfOthers(t *testing.T) {
	fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
	flags := NewFlags(fs)
	fs.Bool("own", false, "a flag of the command")
	file := write(t, "config.yaml", header+"nodePortAddresses: [primary]\nclusterCIDR: 10.0.0.0/8\n")
	if err := fs.Parse([]string{"--own", "--config=" + file}); err != nil {
		t.Fatal(err)
	}
	c, err := flags.configFrom(host)
	if err != nil || len(c.Warnings) > 0 {
		t.Errorf("got %v, warnings %q; want none", err, c.Warnings)
	}
}

func TestVersionFlag(t *testing.T) {
	tests := []struct {
		name, arg, want string
	}{
		{"not given", "-v=0", ""},
		{"bare", "--version", "true"},
		{"true", "--version=true", "true"},
		{"false", "--version=false", ""},
		{"raw", "--version=raw", "raw"},
		{"another", "--version=v1.2.3", "v1.2.3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
			flags := NewFlags(fs)
			if err := fs.Parse([]string{tt.arg}); err != nil {
				t.Fatal(err)
			}
			if got := flags.Version(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if _, err := parse(t, "--version=maybe"); err == nil || !strings.Contains(err.Error(), "must be true, false, raw") {
		t.Errorf("--version=maybe: got error %v, want one that names the choices", err)
	}
}

// TestLoggingFlagsAreCopied holds the list of logging flags against the library's: a
// flag that is missing in ours would be lost with --config.
func TestLoggingFlagsAreCopied(t *testing.T) {
	fs := pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if loggingFlag(f.Name) == nil {
			t.Errorf("--%s is lost with --config", f.Name)
		}
	})
}

func TestLoggingFlagsWinOverFile(t *testing.T) {
	file := write(t, "config.yaml", header+`
featureGates: {LoggingAlphaOptions: true}
logging:
  format: json
  verbosity: 1
  options: {json: {splitStream: true, infoBufferSize: 1Ki}, text: {splitStream: true}}
`)
	kept := mustParse(t, "--config="+file)
	if l := kept.Raw.Logging; l.Format != "json" || l.Verbosity != 1 || !l.Options.JSON.SplitStream || !l.Options.Text.SplitStream {
		t.Errorf("without flags the file's logging must stay: got %+v", l)
	}
	file = write(t, "config.yaml", header+"featureGates: {LoggingAlphaOptions: true}\nlogging: {verbosity: 1, vmodule: [{filePattern: a, verbosity: 1}]}\n")
	c := mustParse(t, "--config="+file, "-v=5", "--vmodule=b=2", "--log-flush-frequency=9s",
		"--log-text-split-stream", "--log-text-info-buffer-size=2Ki", "--log-json-split-stream", "--log-json-info-buffer-size=3Ki")
	l := c.Raw.Logging
	if l.Verbosity != 5 || l.FlushFrequency.Duration.Duration.String() != "9s" {
		t.Errorf("got verbosity %d, flush %v; want 5 and 9s", l.Verbosity, l.FlushFrequency.Duration)
	}
	if len(l.VModule) != 2 || l.VModule[0].FilePattern != "b" || l.VModule[1].FilePattern != "a" {
		t.Errorf("got vmodule %v, want b (flag) before a (file)", l.VModule)
	}
	if o := l.Options; !o.Text.SplitStream || o.Text.InfoBufferSize.String() != "2Ki" || !o.JSON.SplitStream || o.JSON.InfoBufferSize.String() != "3Ki" {
		t.Errorf("options are not the flags': %+v", o)
	}
	if c = mustParse(t, "--config="+write(t, "config.yaml", header), "--logging-format=json"); c.Raw.Logging.Format != "json" {
		t.Errorf("got format %q, want json", c.Raw.Logging.Format)
	}
}

// The logger is the whole process's, and goroutines of other tests may be using it.
func TestSetUpLogging(t *testing.T) {
	const child = "MINIPROXY_TEST_LOGGING"
	if os.Getenv(child) != "" {
		if err := mustParse(t, "--logging-format=json").SetUpLogging(); err != nil {
			t.Fatalf("setting up JSON logging: %v", err)
		}
		klog.Background().Info("Hello", "from", t.Name())
		klog.Flush()
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSetUpLogging$")
	cmd.Env = append(os.Environ(), child+"=1")
	output, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(output), `"msg":"Hello"`) {
		t.Errorf("%v; want a line of JSON in\n%s", err, output)
	}
}
