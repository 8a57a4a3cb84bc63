package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// outcome is what a command ends with.
type outcome struct {
	code     int
	out, err string
}

// runCommand runs a command line in this process.
func runCommand(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	code := execute(t.Context(), args, streams{&out, &err})
	return outcome{code, out.String(), err.String()}
}

// runProcess runs a command line in a process of its own, as it must be that sets up
// logging.
func runProcess(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &err
	if failed := cmd.Run(); failed != nil && cmd.ProcessState == nil {
		t.Fatal(failed)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

// write writes a file and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Nothing in these tables gets so far as to look at the kernel's tables.

func TestUsageErrors(t *testing.T) {
	badConfig := write(t, "config.yaml", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\niptables: {masqueradeBit: 32}\n")
	noYAML := write(t, "none.yaml", "\tx")
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"unknown command", []string{"rendr"}, `unknown command "rendr"; see miniproxy help`},
		{"help for an unknown command", []string{"help", "rendr"}, `unknown command "rendr"`},
		{"manifests that are missing", []string{"--manifests", "/does/not/exist"}, "/does/not/exist"},
		{"empty command", []string{""}, `unknown command ""`},
		{"unknown flag", []string{"--nonsense"}, "unknown flag: --nonsense; see miniproxy run --help"},
		{"unknown flag of run", []string{"run", "--nonsense"}, "unknown flag: --nonsense"},
		{"unknown flag of render", []string{"render", "--nonsense"}, "unknown flag: --nonsense; see miniproxy render --help"},
		{"unknown flag of cleanup", []string{"cleanup", "--nonsense"}, "unknown flag"},
		{"unknown flag of demo", []string{"demo", "--nonsense"}, "unknown flag"},
		{"value of another type", []string{"--iptables-masquerade-bit=many"}, "invalid argument"},
		{"argument of run", []string{"run", "n1"}, `unexpected argument "n1"`},
		{"argument behind flags", []string{"--hostname-override=n1", "extra"}, `unexpected argument "extra"`},
		{"argument of cleanup", []string{"cleanup", "all"}, `unexpected argument "all"`},
		{"argument of render", []string{"render", "examples.yaml"}, `unexpected argument "examples.yaml"`},
		{"argument of diff", []string{"diff", "nat"}, `unexpected argument "nat"`},
		{"family of diff", []string{"diff", "--family", "ipv5"}, "ipv5"},
		{"format of diff", []string{"diff", "-o", "yaml"}, "yaml"},
		{"backend of diff", []string{"diff", "-f", "../../examples", "--iptables-backend=ebtables"}, "ebtables"},
		{"argument of doctor", []string{"doctor", "nat"}, `unexpected argument "nat"`},
		{"format of doctor", []string{"doctor", "-o", "yaml"}, "yaml"},
		{"backend of doctor", []string{"doctor", "--iptables-backend=ebtables"}, "ebtables"},
		{"argument of version", []string{"version", "1"}, "version takes no arguments"},
		{"value out of range", []string{"--iptables-masquerade-bit=32"}, "masqueradeBit"},
		{"value that does not parse", []string{"--cluster-cidr=10.244.0.0"}, "clusterCIDR"},
		{"configuration that is missing", []string{"--config", "/does/not/exist"}, "/does/not/exist"},
		{"configuration that is wrong", []string{"--config", badConfig}, "masqueradeBit"},
		{"configuration that is no YAML", []string{"--config", noYAML}, noYAML},
		{"backend of cleanup", []string{"cleanup", "--iptables-backend=ebtables"}, "ebtables"},
		{"render nothing", []string{"render"}, "name manifests with -f"},
		{"render a missing file", []string{"render", "-f", "/does/not/exist"}, "/does/not/exist"},
		{"render what is no YAML", []string{"render", "-f", noYAML}, noYAML},
		{"family", []string{"render", "-f", "../../examples", "--family", "ipv5"}, "ipv5"},
		{"table", []string{"render", "-f", "../../examples", "--table", "mangle"}, "mangle"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := runCommand(t, test.args...)
			if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, test.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d and %q", got.code, got.out, got.err, exitUsage, test.want)
			}
			for line := range strings.Lines(got.err) {
				if !strings.HasPrefix(line, "miniproxy: ") {
					t.Errorf("stderr line %q does not say who speaks", line)
				}
			}
		})
	}
}

func TestHelp(t *testing.T) {
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"help"}, []string{"Usage: miniproxy [COMMAND] [FLAGS]", "render", "cleanup", "version", "Exit codes"}},
		{[]string{"help", "--help"}, []string{"Usage: miniproxy [COMMAND] [FLAGS]"}},
		{[]string{"help", "render"}, []string{"Usage: miniproxy render [FLAGS]"}},
		{[]string{"--help"}, []string{"miniproxy help lists the other commands", "Usage: miniproxy run [FLAGS]", "--hostname-override", "--iptables-backend"}},
		{[]string{"-h"}, []string{"Usage: miniproxy run [FLAGS]"}},
		{[]string{"run", "--help"}, []string{"Usage: miniproxy run [FLAGS]"}},
		{[]string{"render", "--help"}, []string{"Usage: miniproxy render [FLAGS]", "--file", "--family"}},
		{[]string{"cleanup", "-h"}, []string{"Usage: miniproxy cleanup [FLAGS]", "both backends"}},
		{[]string{"demo", "--help"}, []string{"Usage: miniproxy demo [FLAGS]", "namespaces", "--keep"}},
		{[]string{"version", "--help"}, []string{"Usage: miniproxy version"}},
		{[]string{"diff", "--help"}, []string{"Usage: miniproxy diff [FLAGS]", "writes nothing", "Exit codes", "--file", "--output"}},
		{[]string{"doctor", "--help"}, []string{"Usage: miniproxy doctor [FLAGS]", "changes nothing", "Exit codes", "--output"}},
		// A wrong flag behind it is not looked at.
		{[]string{"render", "--help", "--nonsense"}, []string{"Usage: miniproxy render"}},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			got := runCommand(t, test.args...)
			if got.code != exitOK || got.err != "" {
				t.Errorf("exit code %d, stderr %q", got.code, got.err)
			}
			for _, want := range test.want {
				if !strings.Contains(got.out, want) {
					t.Errorf("%q is not in:\n%s", want, got.out)
				}
			}
		})
	}
}

// Every command is in the help, and every one has a help of its own.
func TestHelpIsComplete(t *testing.T) {
	all := runCommand(t, "help").out
	for _, c := range commands() {
		if !strings.Contains(all, "\n  "+c.name+" ") {
			t.Errorf("%s is not in the help", c.name)
		}
		if got := runCommand(t, c.name, "--help"); got.code != exitOK {
			t.Errorf("%s --help: exit code %d", c.name, got.code)
		}
	}
}

func TestVersion(t *testing.T) {
	want := runCommand(t, "version")
	if want.code != exitOK || !strings.HasPrefix(want.out, "miniproxy ") || strings.Count(want.out, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q", want.code, want.out)
	}
	for _, args := range [][]string{{"--version"}, {"run", "--version"}, {"--version=raw"}} {
		if got := runCommand(t, args...); got != want {
			t.Errorf("%v: %+v, want %+v", args, got, want)
		}
	}
}

func TestWriteConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if got := runCommand(t, "--write-config-to", path, "--iptables-masquerade-bit=15"); got.code != exitOK || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var written struct {
		Kind     string `json:"kind"`
		IPTables struct {
			MasqueradeBit int `json:"masqueradeBit"`
		} `json:"iptables"`
	}
	if err := yaml.Unmarshal(text, &written); err != nil || written.Kind != "KubeProxyConfiguration" || written.IPTables.MasqueradeBit != 15 {
		t.Errorf("error %v, wrote:\n%s", err, text)
	}
	// What was written can be read.
	again := filepath.Join(t.TempDir(), "again.yaml")
	if got := runCommand(t, "--config", path, "--write-config-to", again); got.code != exitOK {
		t.Errorf("with what was written: %+v", got)
	}
	if got := runCommand(t, "--write-config-to", "/does/not/exist/config.yaml"); got.code != exitFailed || !strings.Contains(got.err, "/does/not/exist") {
		t.Errorf("to a directory that is missing: %+v, want exit code %d", got, exitFailed)
	}
}

// What goes wrong at run time, before the kernel is looked at.
func TestRunFails(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no kubeconfig", []string{"run", "--kubeconfig=/does/not/exist"}, exitFailed, "/does/not/exist"},
		{"unknown backend", []string{"run", "--manifests=" + t.TempDir(), "--iptables-backend=ebtables"}, exitUsage, "ebtables"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := runProcess(t, "", test.args...)
			if got.code != test.code || !strings.Contains(got.err, test.want) {
				t.Errorf("exit code %d, stderr:\n%s\nwant %d and %q", got.code, got.err, test.code, test.want)
			}
		})
	}
}
