package config

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// settle is how long after the first sign of a change files are read: an editor's
	// or kubelet's steps should all have happened.
	settle = 200 * time.Millisecond
	// pollPeriod is how often files are read without a sign. Some file systems give
	// none, and a directory that was replaced gives its last one with the old inode.
	pollPeriod = 10 * time.Second
)

// WatchFile calls changed with the content of the file, and again with each other
// content that it gets. It watches the file's directory, not the file: a ConfigMap
// volume swaps a symbolic link, and editors rename. It blocks until ctx is done.
//
// The first call is for the content at the start, so that a change between an
// earlier reading of the file and this one is not lost.
func WatchFile(ctx context.Context, path string, changed func(content []byte)) error {
	var last [sha256.Size]byte
	return watch(ctx, func() []string { return directoriesOf(path) }, func() {
		content, err := os.ReadFile(path)
		if err != nil {
			// Between two steps of a replacement there is no file.
			klog.FromContext(ctx).V(2).Info("Cannot read a watched file; looking again later", "path", path, "err", err)
			return
		}
		if hash := sha256.Sum256(content); hash != last {
			last = hash
			changed(content)
		}
	})
}

// WatchConfig watches the configuration file that current came from, and calls
// changed with each new configuration that is valid and differs from current. One
// that is not valid is reported and otherwise ignored: the agent goes on with what
// it has. It blocks until ctx is done; without a file it returns at once.
func (f *Flags) WatchConfig(ctx context.Context, current *Config, changed func(*Config)) error {
	if current.File == "" {
		return nil
	}
	logger := klog.FromContext(ctx).WithValues("file", current.File)
	return WatchFile(ctx, current.File, func([]byte) {
		next, err := f.Config()
		switch {
		case err != nil:
			logger.Error(err, "The configuration file changed and is not valid; the old configuration stays in force")
		case reflect.DeepEqual(next.Raw, current.Raw) && next.MinSyncPeriodSet == current.MinSyncPeriodSet:
			logger.V(2).Info("The configuration file says what is in force")
		default:
			logger.Info("The configuration changed")
			changed(next)
		}
	})
}

// watch calls look at once, and again whenever something in the directories may
// have changed. It blocks until ctx is done, and returns nil then.
func watch(ctx context.Context, directories func() []string, look func()) error {
	signs := newSigns(ctx)
	defer signs.close()
	return follow(ctx, signs, directories, look)
}

// follow is watch for given signs.
func follow(ctx context.Context, signs signs, directories func() []string, look func()) error {
	lookAgain := func() {
		signs.add(ctx, directories())
		look()
	}
	lookAgain()
	poll := time.NewTicker(pollPeriod)
	defer poll.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signs.events:
			if settled == nil {
				settled = time.After(settle)
			}
		case err := <-signs.errors:
			klog.FromContext(ctx).V(2).Info("Signs of changes may have been lost", "err", err)
			settled = time.After(settle)
		case <-settled:
			settled = nil
			lookAgain()
		case <-poll.C:
			lookAgain()
		}
	}
}

// signs are the kernel's signs of changes in directories. The channels are nil if
// there can be none: a node that has used up its inotify instances must not lose its
// Services for that, and polling will do.
type signs struct {
	watcher *fsnotify.Watcher
	events  <-chan fsnotify.Event
	errors  <-chan error
}

func newSigns(ctx context.Context) signs {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch files; looking at them from time to time", "period", pollPeriod)
		return signs{}
	}
	return signs{watcher, watcher.Events, watcher.Errors}
}

func (s signs) close() {
	if s.watcher != nil {
		_ = s.watcher.Close()
	}
}

// add watches directories. One that was replaced has to be added again; adding twice
// is harmless.
func (s signs) add(ctx context.Context, directories []string) {
	if s.watcher == nil {
		return
	}
	for _, dir := range directories {
		if err := s.watcher.Add(dir); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot watch a directory; looking at it from time to time", "directory", dir, "err", err)
		}
	}
}

// directoriesOf returns the directories in which signs of a change of path are seen.
func directoriesOf(path string) []string {
	parent := filepath.Dir(path)
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{parent}
	}
	// A link to a directory may be swapped for another one; that is seen beside it.
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return []string{path, parent}
	}
	return []string{path}
}
