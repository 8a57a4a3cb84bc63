package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// shipped is what deploy/daemonset.yaml says of the agent's pods.
type shipped struct {
	init, stays v1.Container
	volumes     []v1.Volume
	config      string // the text of config.yaml
}

// readShipped reads the manifest.
func readShipped(t *testing.T) shipped {
	t.Helper()
	objects, err := readObjects(deployFile)
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	var config v1.ConfigMap
	places := map[string]any{"DaemonSet": &set, "ConfigMap": &config}
	for _, obj := range objects {
		into := places[obj.GetKind()]
		if into == nil {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, into); err != nil {
			t.Fatal(err)
		}
	}
	pod := set.Spec.Template.Spec
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		t.Fatalf("%d init containers and %d containers, want one of each", len(pod.InitContainers), len(pod.Containers))
	}
	return shipped{pod.InitContainers[0], pod.Containers[0], pod.Volumes, config.Data["config.yaml"]}
}

// runtimeScript does what a container runtime does. It runs as the first process of
// new mount and process id namespaces, builds a root file system in the directory
// $root, in which the machine's programs stand for the image's, and becomes its
// arguments there. $volumes has a line for each: source, target, ro or rw. $kernel is
// ro where the container may not change kernel settings.
const runtimeScript = `set -eu
mount -t tmpfs -o mode=755 root "$root"
cd "$root"
mkdir etc tmp proc sys dev usr
for dir in bin sbin lib lib64; do
	if [ -L "/$dir" ]; then
		cp -P "/$dir" .
	elif [ -d "/$dir" ]; then
		mkdir "$dir"
		mount -o bind,ro "/$dir" "$dir"
	fi
done
mount -o bind,ro /usr usr
mount -t proc proc proc
mount -t sysfs -o "$kernel" sys sys
mount -o "bind,$kernel" proc/sys proc/sys
for device in null zero urandom; do
	touch "dev/$device"
	mount -o bind "/dev/$device" "dev/$device"
done
while read -r source target access; do
	if [ -d "$source" ]; then
		mkdir -p "./$target"
	else
		mkdir -p "./${target%/*}"
		touch "./$target"
	fi
	mount -o "bind,$access" "$source" "./$target"
done <<END
$volumes
END
mount -o remount,ro "$root"
exec chroot "$root" "$@"
`

// binaryPath is where the program under test is in a container.
const binaryPath = "/miniproxy"

// container is the command that runs one of the shipped containers on a node, as the
// kubelet and a container runtime would: the same arguments, environment, volumes,
// capabilities and read-only root file system. What is missing is the seccomp profile.
// The capabilities named in without are not given although the manifest adds them.
func (n *node) container(t *testing.T, c *cluster, s shipped, spec v1.Container, without ...v1.Capability) *exec.Cmd {
	t.Helper()
	security := spec.SecurityContext
	if security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
		t.Fatalf("container %s has a root file system that can be written to", spec.Name)
	}
	program := []string{binaryPath}
	kernel := "rw"
	if security.Privileged == nil || !*security.Privileged {
		kernel = "ro"
		program = append(setpriv(security, without...), program...)
	}
	for _, arg := range spec.Args {
		program = append(program, strings.ReplaceAll(arg, "$(NODE_NAME)", n.Plan.Name))
	}
	cmd := n.Command(t.Context(), "sh", append([]string{"-c", runtimeScript, "runtime"}, program...)...)
	// The first process of its ids, as in a container: signals must be asked for.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	cmd.Env = append(n.containerEnv(t, spec),
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"root="+t.TempDir(), "kernel="+kernel, "volumes="+strings.Join(n.volumes(t, c, s, spec), "\n"))
	return cmd
}

// setpriv is the command that leaves a program the capabilities which a container gets
// from the manifest: those it adds after all were dropped, and none of them can come
// back. Root keeps its user id.
func setpriv(security *v1.SecurityContext, without ...v1.Capability) []string {
	bounding := "-all"
	for _, capability := range security.Capabilities.Add {
		if !slices.Contains(without, capability) {
			bounding += ",+" + strings.ToLower(string(capability))
		}
	}
	args := []string{"setpriv", "--bounding-set=" + bounding, "--inh-caps=-all", "--ambient-caps=-all"}
	if allow := security.AllowPrivilegeEscalation; allow != nil && !*allow {
		args = append(args, "--no-new-privs")
	}
	return append(args, "--")
}

// containerEnv is the environment that the kubelet makes from the manifest.
func (n *node) containerEnv(t *testing.T, spec v1.Container) []string {
	t.Helper()
	env := []string{
		"KUBERNETES_SERVICE_HOST=" + kubernetesIP.String(),
		"KUBERNETES_SERVICE_PORT=443",
	}
	for _, e := range spec.Env {
		value := e.Value
		switch from := e.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil && from.FieldRef.FieldPath == "spec.nodeName":
			value = n.Plan.Name
		case from.ConfigMapKeyRef != nil && from.ConfigMapKeyRef.Key == "endpoint":
			value = fmt.Sprintf("%s:%d", controlAddrs[0].Addr(), apiPort)
		default:
			t.Fatalf("variable %s: this test does not know where its value comes from", e.Name)
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// volumes are the lines about a container's mounts for runtimeScript.
func (n *node) volumes(t *testing.T, c *cluster, s shipped, spec v1.Container) []string {
	t.Helper()
	lines := []string{
		os.Getenv(envBinary) + " " + binaryPath + " ro",
		c.accountVolume(t) + " /var/run/secrets/kubernetes.io/serviceaccount ro",
	}
	for _, mount := range spec.VolumeMounts {
		at := slices.IndexFunc(s.volumes, func(v v1.Volume) bool { return v.Name == mount.Name })
		if at < 0 {
			t.Fatalf("no volume %s", mount.Name)
		}
		access := "rw"
		if mount.ReadOnly {
			access = "ro"
		}
		if source := volumeSource(t, s, s.volumes[at]); source != "" {
			lines = append(lines, fmt.Sprintf("%s %s %s", source, mount.MountPath, access))
		}
	}
	return lines
}

// volumeSource is the file or directory that a volume shows; "" for one that a machine
// does not have, as /lib/modules of a kernel without modules.
func volumeSource(t *testing.T, s shipped, volume v1.Volume) string {
	t.Helper()
	switch {
	case volume.ConfigMap != nil:
		config := &configMap{dir: t.TempDir()}
		config.write(t, s.config)
		return config.dir
	case volume.HostPath == nil:
		t.Fatalf("volume %s: this test does not know its kind", volume.Name)
	case volume.HostPath.Type != nil && *volume.HostPath.Type == v1.HostPathFileOrCreate:
		// Here /run is the test's own.
		f, err := os.OpenFile(volume.HostPath.Path, os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if _, err := os.Stat(volume.HostPath.Path); err != nil {
		return ""
	}
	return volume.HostPath.Path
}

// accountVolume is the directory that the kubelet makes for a pod with the agent's
// ServiceAccount.
func (c *cluster) accountVolume(t *testing.T) string {
	t.Helper()
	hour := int64(60 * 60)
	token, err := c.client().CoreV1().ServiceAccounts(agentNamespace).CreateToken(t.Context(), agentAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": token.Status.Token, "ca.crt": string(c.cp.ca.pem()), "namespace": agentNamespace,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
