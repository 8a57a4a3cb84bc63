package kind

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/yaml"
)

// configFile is what `make kind-up` gives to kind.
const configFile = "../../hack/kind-config.yaml"

func readConfig(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(configFile)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestConfigSaysWhatWeMean reads the file with kind's published types and defaults.
func TestConfigSaysWhatWeMean(t *testing.T) {
	var c v1alpha4.Cluster
	if err := yaml.UnmarshalStrict(readConfig(t), &c); err != nil {
		t.Fatal(err)
	}
	v1alpha4.SetDefaultsCluster(&c)
	if c.Networking.KubeProxyMode != "none" {
		t.Errorf("kubeProxyMode: got %q, want none: two proxies would undo each other's work", c.Networking.KubeProxyMode)
	}
	if c.Networking.DisableDefaultCNI {
		t.Error("disableDefaultCNI: got true; without a network plugin no node gets ready")
	}
	var roles []v1alpha4.NodeRole
	for _, n := range c.Nodes {
		roles = append(roles, n.Role)
	}
	if want := []v1alpha4.NodeRole{v1alpha4.ControlPlaneRole, v1alpha4.WorkerRole, v1alpha4.WorkerRole}; !slices.Equal(roles, want) {
		t.Errorf("node roles: got %v, want %v", roles, want)
	}
}

// TestPodSubnetIsInTheAgentsClusterCIDR holds kind's ranges against the ConfigMap:
// pods outside of clusterCIDR would lose their source address on every Service.
func TestPodSubnetIsInTheAgentsClusterCIDR(t *testing.T) {
	manifest, err := os.ReadFile(manifestFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []v1alpha4.ClusterIPFamily{v1alpha4.IPv4Family, v1alpha4.IPv6Family, v1alpha4.DualStackFamily} {
		t.Run(string(family), func(t *testing.T) {
			c := v1alpha4.Cluster{Networking: v1alpha4.Networking{IPFamily: family}}
			v1alpha4.SetDefaultsCluster(&c)
			for subnet := range strings.SplitSeq(c.Networking.PodSubnet, ",") {
				if !strings.Contains(string(manifest), subnet) {
					t.Errorf("%s names no %s, kind's pod subnet", manifestFile, subnet)
				}
			}
		})
	}
}

// TestKindBuildsWithConfig lets kind itself load, validate and carry out the
// configuration, up to the point where a container would have to run kubeadm.
func TestKindBuildsWithConfig(t *testing.T) {
	config := string(readConfig(t))
	for _, family := range []string{"ipv4", "dual"} {
		t.Run(family, func(t *testing.T) {
			docker := newStubs(t, "docker")
			raw := strings.Replace(config, "ipFamily: ipv4", "ipFamily: "+family, 1)
			err := create(raw)
			if err == nil || !strings.Contains(err.Error(), "failed to init node with kubeadm") {
				t.Fatalf("got error %v, want kind to get as far as kubeadm", err)
			}
			calls := docker.calls(t)
			want := []string{"miniproxy-control-plane", "miniproxy-worker", "miniproxy-worker2"}
			if got := started(calls); !slices.Equal(got, want) {
				t.Errorf("containers: got %q, want %q", got, want)
			}
			at := find(calls, "miniproxy-control-plane cp /dev/stdin /kind/kubeadm.conf")
			if at < 0 {
				t.Fatalf("kind wrote no configuration for kubeadm; calls:\n%s", strings.Join(lines(calls), "\n"))
			}
			if kubeadm := calls[at].Stdin; !strings.Contains(kubeadm, "- addon/kube-proxy") {
				t.Errorf("kubeadm's configuration skips no addon/kube-proxy:\n%s", kubeadm)
			}
		})
	}
}

// TestKindRefuses shows that kind checks what TestKindBuildsWithConfig relies on.
func TestKindRefuses(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{name: "an unknown proxy mode", old: "kubeProxyMode: none", new: "kubeProxyMode: nothing", want: "invalid kubeProxyMode"},
		{name: "an unknown field", old: "kubeProxyMode", new: "kubeProxy", want: "kubeProxy not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			docker := newStubs(t, "docker")
			err := create(strings.Replace(string(readConfig(t)), tt.old, tt.new, 1))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %q in it", err, tt.want)
			}
			if got := started(docker.calls(t)); len(got) > 0 {
				t.Errorf("containers: got %q, want none", got)
			}
		})
	}
}

func create(config string) error {
	return cluster.NewProvider(cluster.ProviderWithDocker()).Create("", cluster.CreateWithRawConfig([]byte(config)))
}
