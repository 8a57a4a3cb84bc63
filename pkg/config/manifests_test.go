package config

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runManifests runs a manifest source and returns what it tells and logs.
func runManifests(t *testing.T, path string) (*recorder, <-chan string) {
	t.Helper()
	ev := newRecorder(t)
	ctx, lines := logged(t)
	background(t, ctx, func(ctx context.Context) error { return NewManifests(path, "n1").Run(ctx, ev) })
	return ev, lines
}

func serviceText(name, clusterIP string) string {
	return "{apiVersion: v1, kind: Service, metadata: {name: " + name + ", namespace: ns1}, spec: {clusterIP: " + clusterIP + ", ports: [{port: 80}]}}\n---\n"
}

func TestManifestsFollowFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	overwrite(t, file("a.yaml"), shop+"---\n{apiVersion: v1, kind: Node, metadata: {name: n2}}\n")
	overwrite(t, file("b.yaml"), serviceText("t", "10.96.0.81")+serviceText("u", "10.96.0.82"))
	ev, _ := runManifests(t, dir)
	calls, want := ev.await("synced"), []string{"+node n1", "+service ns1/shop", "+service ns1/t", "+service ns1/u", "+slice ns1/shop-1", "synced"}
	if !slices.Equal(calls, want) {
		t.Fatalf("got %q, want %q", calls, want)
	}

	rewrite(t, file("b.yaml"), serviceText("t", "10.96.0.91")+serviceText("u", "10.96.0.82")+serviceText("v", "10.96.0.83"))
	if calls, want := ev.await("+service ns1/v"), []string{"~service ns1/t", "+service ns1/v"}; !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q: what did not change is not told", calls, want)
	}

	// An address moves to another Service in one step: it must be free first.
	rewrite(t, file("b.yaml"), serviceText("a", "10.96.0.91"))
	calls, want = ev.await("+service ns1/a"), []string{"-service ns1/t", "-service ns1/u", "-service ns1/v", "+service ns1/a"}
	if !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q", calls, want)
	}

	overwrite(t, file("c.yaml"), serviceText("w", "10.96.0.84"))
	ev.await("+service ns1/w")
	if err := os.Remove(file("a.yaml")); err != nil {
		t.Fatal(err)
	}
	ev.await("-service ns1/shop", "-slice ns1/shop-1", "-node n1")
}

// TestManifestsHiddenService holds that a Service that is given to another proxy
// disappears, as it does from the view of an API server's selector.
func TestManifestsHiddenService(t *testing.T) {
	path := write(t, "s.yaml", serviceText("s", "10.96.0.80"))
	ev, _ := runManifests(t, filepath.Dir(path))
	ev.await("synced")
	rewrite(t, path, strings.Replace(serviceText("s", "10.96.0.80"), "name: s,", "name: s, labels: {service.kubernetes.io/service-proxy-name: x},", 1))
	ev.await("-service ns1/s")
	rewrite(t, path, serviceText("s", "10.96.0.80"))
	ev.await("+service ns1/s")
}

func TestManifestsConfigMap(t *testing.T) {
	cm := newConfigMap(t, map[string]string{"a.yaml": serviceText("a", "10.96.0.1"), "b.yaml": serviceText("b", "10.96.0.2")})
	ev, _ := runManifests(t, cm.dir)
	if calls, want := ev.await("synced"), []string{"+service ns1/a", "+service ns1/b", "synced"}; !slices.Equal(calls, want) {
		t.Fatalf("got %q, want %q", calls, want)
	}
	cm.set(map[string]string{"a.yaml": serviceText("a", "10.96.0.3"), "c.yaml": serviceText("c", "10.96.0.4")})
	ev.await("~service ns1/a", "-service ns1/b", "+service ns1/c")
}

func TestManifestsLinkedDirectory(t *testing.T) {
	old, new, parent := t.TempDir(), t.TempDir(), t.TempDir()
	overwrite(t, filepath.Join(old, "a.yaml"), serviceText("a", "10.96.0.1"))
	overwrite(t, filepath.Join(new, "a.yaml"), serviceText("b", "10.96.0.1"))
	link := filepath.Join(parent, "manifests")
	for _, step := range []error{os.Symlink(old, link), os.Symlink(new, link+".tmp")} {
		if step != nil {
			t.Fatal(step)
		}
	}
	ev, _ := runManifests(t, link)
	ev.await("synced")
	if err := os.Rename(link+".tmp", link); err != nil {
		t.Fatal(err)
	}
	ev.await("-service ns1/a", "+service ns1/b")
	overwrite(t, filepath.Join(new, "c.yaml"), serviceText("c", "10.96.0.2"))
	ev.await("+service ns1/c")
}

func TestManifestsSingleFile(t *testing.T) {
	path := write(t, "s.yaml", serviceText("s", "10.96.0.80"))
	ev, _ := runManifests(t, path)
	ev.await("+service ns1/s", "synced")
	rewrite(t, path, serviceText("t", "10.96.0.80"))
	ev.await("-service ns1/s", "+service ns1/t")
}

// TestManifestsBrokenFile holds that the last good version of a broken file stays in
// force while other files go on, and that the report says where the mistake is.
func TestManifestsBrokenFile(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	overwrite(t, good, serviceText("g", "10.96.0.1"))
	overwrite(t, bad, "\n\nkind: Service\n")
	ev, lines := runManifests(t, dir)
	if calls, want := ev.await("synced"), []string{"+service ns1/g", "synced"}; !slices.Equal(calls, want) {
		t.Fatalf("broken from the start: got %q, want %q", calls, want)
	}
	awaitLine(t, lines, "bad.yaml:3: Service: apiVersion: Required value")

	rewrite(t, bad, serviceText("b", "10.96.0.2"))
	ev.await("+service ns1/b")
	rewrite(t, bad, serviceText("b", "10.96.0"))
	awaitLine(t, lines, "bad.yaml:1: Service ns1/b: spec.clusterIPs[0]: Invalid value")
	rewrite(t, good, serviceText("g", "10.96.0.9"))
	if calls, want := ev.await("~service ns1/g"), []string{"~service ns1/g"}; !slices.Equal(calls, want) {
		t.Errorf("while a file is broken: got %q, want %q", calls, want)
	}
	rewrite(t, bad, serviceText("b", "10.96.0.3"))
	ev.await("~service ns1/b")
}

func TestManifestsTwiceDefined(t *testing.T) {
	dir := t.TempDir()
	overwrite(t, filepath.Join(dir, "a.yaml"), serviceText("s", "10.96.0.1"))
	overwrite(t, filepath.Join(dir, "b.yaml"), serviceText("s", "10.96.0.2"))
	ev, lines := runManifests(t, dir)
	ev.await("synced")
	awaitLine(t, lines, "Service ns1/s is in an earlier file too")
	if got := ev.service("ns1/s").Spec.ClusterIP; got != "10.96.0.1" {
		t.Errorf("got cluster IP %s, want the first file's 10.96.0.1", got)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	ev.await("~service ns1/s")
	if got := ev.service("ns1/s").Spec.ClusterIP; got != "10.96.0.2" {
		t.Errorf("got cluster IP %s, want the other file's 10.96.0.2", got)
	}
}

func TestManifestsMissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	err := NewManifests(dir, "n1").Run(t.Context(), newRecorder(t))
	if err == nil || !strings.Contains(err.Error(), "check --manifests") {
		t.Errorf("got error %v, want one that names the flag", err)
	}
}

func TestManifestsVanishedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	overwrite(t, filepath.Join(dir, "a.yaml"), serviceText("a", "10.96.0.1"))
	ev, lines := runManifests(t, dir)
	ev.await("synced")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, lines, "Cannot look for manifests; the last good ones stay in force")
	if calls := ev.take(); len(calls) > 0 {
		t.Errorf("got %q, want nothing: a directory that cannot be seen is not an empty one", calls)
	}
}
