package config

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// configMap is a directory as the kubelet mounts a ConfigMap: files are links into
// ..data, which is a link to a directory with a time in its name.
type configMap struct {
	t   *testing.T
	dir string
	n   int
}

func newConfigMap(t *testing.T, files map[string]string) *configMap {
	c := &configMap{t: t, dir: t.TempDir()}
	c.set(files)
	return c
}

// set replaces the content in the kubelet's steps.
func (c *configMap) set(files map[string]string) {
	c.t.Helper()
	c.n++
	data := filepath.Join(c.dir, "..v"+string(rune('0'+c.n)))
	old, _ := os.Readlink(filepath.Join(c.dir, "..data"))
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	must(os.Mkdir(data, 0o700))
	for name, content := range files {
		must(os.WriteFile(filepath.Join(data, name), []byte(content), 0o600))
	}
	must(os.Symlink(filepath.Base(data), filepath.Join(c.dir, "..data_tmp")))
	must(os.Rename(filepath.Join(c.dir, "..data_tmp"), filepath.Join(c.dir, "..data")))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(c.dir, name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(c.dir, name)))
		}
	}
	entries, err := os.ReadDir(c.dir)
	must(err)
	for _, entry := range entries {
		if name := entry.Name(); name[0] != '.' && files[name] == "" {
			must(os.Remove(filepath.Join(c.dir, name)))
		}
	}
	if old != "" {
		must(os.RemoveAll(filepath.Join(c.dir, old)))
	}
}

// rewrite replaces a file as editors do: write beside it, then rename.
func rewrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".tmp", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// overwrite replaces a file's content in place.
func overwrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// logged is a context whose log lines come out of the channel.
func logged(t *testing.T) (context.Context, <-chan string) {
	lines := make(chan string, 1000)
	logger := funcr.New(func(_, args string) { lines <- args }, funcr.Options{Verbosity: 2})
	return klog.NewContext(t.Context(), logger), lines
}

// awaitLine reads log lines until one contains the words.
func awaitLine(t *testing.T, lines <-chan string, words string) {
	t.Helper()
	for !strings.Contains(receive(t, lines), words) {
	}
}

// background runs f until the test ends.
func background(t *testing.T, ctx context.Context, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with an error: %v", err)
		}
	})
}

// TestWatchFile holds that each way of replacing a file is seen, and that contents
// are compared, not times: what is told next is always another content.
func TestWatchFile(t *testing.T) {
	cm := newConfigMap(t, map[string]string{"config.conf": "one"})
	plain := write(t, "config.conf", "one")
	tests := []struct {
		name   string
		path   string
		change func(content string)
	}{
		{"ConfigMap volume", filepath.Join(cm.dir, "config.conf"), func(s string) { cm.set(map[string]string{"config.conf": s}) }},
		{"editor", plain, func(s string) { rewrite(t, plain, s) }},
		{"in place", plain, func(s string) { overwrite(t, plain, s) }},
		{"removed and made again", plain, func(s string) {
			if err := os.Remove(plain); err != nil {
				t.Fatal(err)
			}
			rewrite(t, plain, s)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.change("one")
			told := make(chan string, 10)
			background(t, t.Context(), func(ctx context.Context) error {
				return WatchFile(ctx, tt.path, func(content []byte) {
					if len(content) > 0 { // in place, there is a moment without content
						told <- string(content)
					}
				})
			})
			for _, want := range []string{"one", "two", "three"} {
				if got := receive(t, told); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				tt.change(want)
				tt.change(map[string]string{"one": "two", "two": "three", "three": "four"}[want])
			}
		})
	}
}

// TestFollow holds when a directory is looked at: at once, a moment after the first
// of a burst of signs, and from time to time without any sign.
func TestFollow(t *testing.T) {
	ms := time.Millisecond
	tests := []struct {
		name string
		sent []time.Duration // when signs come
		want []time.Duration // when it is looked
	}{
		{"no signs, as on a node without inotify instances left", nil, []time.Duration{0, pollPeriod, 2 * pollPeriod}},
		{"one sign", []time.Duration{time.Second}, []time.Duration{0, time.Second + settle, pollPeriod, 2 * pollPeriod}},
		{"a burst", []time.Duration{time.Second, time.Second + 50*ms, time.Second + 100*ms}, []time.Duration{0, time.Second + settle, pollPeriod, 2 * pollPeriod}},
		{"a stream does not put it off", []time.Duration{100 * ms, 250 * ms, 400 * ms}, []time.Duration{0, 300 * ms, 600 * ms, pollPeriod, 2 * pollPeriod}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, events := time.Now(), make(chan fsnotify.Event)
				for _, at := range tt.sent {
					time.AfterFunc(at, func() { events <- fsnotify.Event{} })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*pollPeriod+time.Second)
				defer cancel()
				var got []time.Duration
				err := follow(ctx, signs{events: events}, func() []string { return nil }, func() { got = append(got, time.Since(start)) })
				if err != nil || !slices.Equal(got, tt.want) {
					t.Errorf("looked at %v (%v), want %v", got, err, tt.want)
				}
			})
		})
	}
}

func TestDirectoriesOf(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	overwrite(t, file, "")
	tests := []struct {
		name, path string
		want       []string
	}{
		{"directory", dir, []string{dir}},
		{"linked directory", link, []string{link, filepath.Dir(link)}},
		{"file", file, []string{dir}},
		{"file to come", file + "2", []string{dir}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := directoriesOf(tt.path); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestWatchConfig holds that only a valid configuration that differs is told.
func TestWatchConfig(t *testing.T) {
	path := write(t, "config.yaml", header)
	fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse([]string{"--config=" + path}); err != nil {
		t.Fatal(err)
	}
	current, err := flags.Config()
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan *Config, 10)
	ctx, lines := logged(t)
	background(t, ctx, func(ctx context.Context) error {
		return flags.WatchConfig(ctx, current, func(c *Config) { told <- c })
	})
	awaitLine(t, lines, "says what is in force")
	rewrite(t, path, header+"mode: ipvs\n")
	awaitLine(t, lines, "is not valid; the old configuration stays in force")
	rewrite(t, path, header+"# the same\n")
	awaitLine(t, lines, "says what is in force")
	rewrite(t, path, header+"oomScoreAdj: 5\n")
	if got := receive(t, told); got.OOMScoreAdj != 5 {
		t.Errorf("got oomScoreAdj %d, want 5", got.OOMScoreAdj)
	}
}

// TestWatchConfigMissesNothing holds that a change between the reading of the
// configuration and the beginning of the watch is seen.
func TestWatchConfigMissesNothing(t *testing.T) {
	path := write(t, "config.yaml", header)
	fs := pflag.NewFlagSet("miniproxy", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse([]string{"--config=" + path}); err != nil {
		t.Fatal(err)
	}
	current, err := flags.Config()
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, path, header+"oomScoreAdj: 5\n")
	told := make(chan *Config, 10)
	background(t, t.Context(), func(ctx context.Context) error {
		return flags.WatchConfig(ctx, current, func(c *Config) { told <- c })
	})
	if got := receive(t, told); got.OOMScoreAdj != 5 {
		t.Errorf("got oomScoreAdj %d, want 5", got.OOMScoreAdj)
	}
}

func TestWatchConfigWithoutFile(t *testing.T) {
	var flags Flags
	if err := flags.WatchConfig(t.Context(), &Config{}, nil); err != nil {
		t.Error(err)
	}
}
