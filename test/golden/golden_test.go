package golden

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

func TestLoadAll(t *testing.T) {
	names, err := Names()
	if err != nil || len(names) < 40 {
		t.Fatalf("%d cases, error %v, want at least 40", len(names), err)
	}
	services, slices := 0, 0
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			c, err := Load(name)
			if err != nil {
				t.Fatal(err)
			}
			if c.Name != name || c.About == "" || len(c.Config) == 0 {
				t.Errorf("name %q, about %q, %d bytes of configuration", c.Name, c.About, len(c.Config))
			}
			for i, step := range c.Steps {
				if len(step.Objects.Nodes) == 0 {
					t.Errorf("step %d: no Node", i+1)
				}
				services += len(step.Objects.Services)
				slices += len(step.Objects.Slices)
				for family, results := range step.Results {
					for _, rs := range results {
						if err := ruleset.Check(rs); err != nil {
							t.Errorf("step %d, %s: %v", i+1, family, err)
						}
						if len(rs.Tables()) != 2 {
							t.Errorf("step %d, %s: tables %v, want nat and filter", i+1, family, rs.Tables())
						}
					}
				}
			}
		})
	}
	if services == 0 || slices == 0 {
		t.Errorf("%d Services, %d slices", services, slices)
	}
}

func TestLoadSteps(t *testing.T) {
	c, err := Load("step-rollout")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Steps) != 5 {
		t.Errorf("%d steps, want 5", len(c.Steps))
	}
	c, err = Load("dual-stack")
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Steps[0].Results; len(r[model.IPv4]) != 1 || len(r[model.IPv6]) != 1 {
		t.Errorf("results of %d and %d rulesets, want one of each family", len(r[model.IPv4]), len(r[model.IPv6]))
	}
	if _, err := Load("no-such-case"); err == nil {
		t.Error("no error for a case that is not there")
	}
}

func TestParseHost(t *testing.T) {
	got, err := parseHost("# comment\neth0 10.0.0.1/24 fd00::1/64 # uplink\n\nroute 10.244.1.0/24 dev veth7\nport veth1 of cni0\ncni0\n")
	if err != nil {
		t.Fatal(err)
	}
	want := trace.Host{
		Interfaces: []trace.Interface{
			{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")}},
			{Name: "cni0"},
		},
		Routes:      []trace.Route{{To: netip.MustParsePrefix("10.244.1.0/24"), Dev: "veth7"}},
		BridgePorts: []trace.BridgePort{{Name: "veth1", Bridge: "cni0"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, text := range []string{"", "eth0 10.0.0.1", "eth0\nroute x dev y", "eth0\nroute 10.0.0.0/8 y", "eth0\nport a b c"} {
		if _, err := parseHost(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
