package canary

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/iptables/fakekernel"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const period = 30 * time.Second

var errLocked = errors.New("the lock is held")

// tableSet is a kernel with canaries and nothing else.
type tableSet struct {
	mu       sync.Mutex
	canaries map[ruleset.Table]bool
	// locked tables can be neither looked at nor written to.
	locked map[ruleset.Table]bool
	writes int
}

func newTableSet() *tableSet {
	return &tableSet{canaries: map[ruleset.Table]bool{}, locked: map[ruleset.Table]bool{}}
}

func (s *tableSet) HasRule(_ context.Context, id ruleset.ChainID, _ ruleset.Rule) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked[id.Table] {
		return false, errLocked
	}
	return s.canaries[id.Table], nil
}

func (s *tableSet) EnsureRule(_ context.Context, id ruleset.ChainID, _ ruleset.Rule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked[id.Table] {
		return errLocked
	}
	if !s.canaries[id.Table] {
		s.canaries[id.Table] = true
		s.writes++
	}
	return nil
}

// during calls f while nobody else gets to the tables.
func (s *tableSet) during(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// has reports whether all the tables have a canary.
func (s *tableSet) has(tables ...ruleset.Table) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(tables, func(t ruleset.Table) bool { return !s.canaries[t] })
}

// takeWrites returns how many canaries were made since the last call.
func (s *tableSet) takeWrites() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.writes
	s.writes = 0
	return n
}

func (s *tableSet) flush(tables ...ruleset.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tables {
		delete(s.canaries, t)
	}
}

func (s *tableSet) setLock(held bool, tables ...ruleset.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tables {
		s.locked[t] = held
	}
}

func TestMonitor(t *testing.T) {
	all := tables[:]
	// Each step runs between two polls; the first before Run starts.
	type step func(*tableSet)
	nothing := func(*tableSet) {}
	lock := func(s *tableSet) { s.setLock(true, all...) }
	unlock := func(s *tableSet) { s.setLock(false, all...) }
	flush := func(tables ...ruleset.Table) step { return func(s *tableSet) { s.flush(tables...) } }
	lockOnly := func(tables ...ruleset.Table) step { return func(s *tableSet) { s.setLock(true, tables...) } }

	tests := []struct {
		name string
		// steps and want belong together: what is reported by the poll after the step.
		steps []step
		want  []string
	}{
		{
			name:  "nothing happens",
			steps: []step{nothing, nothing, nothing},
			want:  []string{"", "", ""},
		},
		{
			name:  "canaries of an earlier agent are kept",
			steps: []step{func(s *tableSet) { s.canaries[ruleset.NAT] = true }, nothing},
			want:  []string{"", ""},
		},
		{
			name:  "B-45: each table is watched",
			steps: []step{nothing, flush(ruleset.NAT), nothing, flush(ruleset.Filter), flush(ruleset.Mangle)},
			want:  []string{"", "flushed: [nat]", "", "flushed: [filter]", "flushed: [mangle]"},
		},
		{
			name:  "B-47: everything is flushed, again and again",
			steps: []step{nothing, flush(all...), flush(all...), nothing},
			want:  []string{"", "flushed: [mangle nat filter]", "flushed: [mangle nat filter]", ""},
		},
		{
			name:  "a held lock is never a loss",
			steps: []step{nothing, lock, nothing, nothing, nothing, nothing, unlock},
			want:  []string{"", "", "", "", "", "", ""},
		},
		{
			name:  "a loss under the lock is reported when the lock is free",
			steps: []step{nothing, func(s *tableSet) { s.flush(all...); lock(s) }, nothing, unlock},
			want:  []string{"", "", "", "flushed: [mangle nat filter]"},
		},
		{
			name: "one table locked, another one flushed",
			steps: []step{
				nothing,
				func(s *tableSet) { s.setLock(true, ruleset.Filter); s.flush(ruleset.NAT, ruleset.Filter) },
				unlock,
			},
			want: []string{"", "flushed: [nat]", "flushed: [filter]"},
		},
		{
			name:  "locked at the start: unwatched until it has a canary",
			steps: []step{lock, nothing, unlock, nothing},
			want:  []string{"", "", "unwatched: [mangle nat filter]", ""},
		},
		{
			name: "both causes at once",
			steps: []step{
				lockOnly(ruleset.Mangle),
				func(s *tableSet) { unlock(s); s.flush(ruleset.Filter) },
			},
			want: []string{"", "flushed: [filter]; unwatched: [mangle]"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kernel := newTableSet()
				var reports []string
				monitor := New(kernel, period, func(r Report) {
					if !kernel.has(r.Tables...) {
						t.Errorf("reported %v before the canaries were back", r)
					}
					reports = append(reports, r.String())
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for i, act := range test.steps {
					reports = nil
					act(kernel)
					if i == 0 {
						go monitor.Run(ctx)
					} else {
						time.Sleep(period)
					}
					synctest.Wait()
					if got := strings.Join(reports, "; "); got != test.want[i] {
						t.Errorf("step %d: got reports %q, want %q", i, got, test.want[i])
					}
				}
			})
		})
	}
}

// The same with what is used in earnest, on a simulated kernel.
func TestMonitorOnRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := fakekernel.New(model.IPv4, iptables.Legacy)
		var reports []string
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go New(kernel.Runner(), period, func(r Report) { reports = append(reports, r.String()) }).Run(ctx)
		synctest.Wait()
		if got := strings.Count(string(kernel.Save()), "-A "+ChainName+" "); got != len(tables) {
			t.Errorf("got %d canaries, want %d:\n%s", got, len(tables), kernel.Save())
		}
		kernel.SetLocked(true)
		time.Sleep(10 * period)
		synctest.Wait()
		if len(reports) > 0 {
			t.Errorf("reported while the lock was held: %q", reports)
		}
		kernel.SetLocked(false)
		kernel.Flush(ruleset.NAT)
		time.Sleep(period)
		synctest.Wait()
		// iptables -F, without -X.
		if err := kernel.Write("*filter\n:" + ChainName + " - [0:0]\nCOMMIT\n"); err != nil {
			t.Error(err)
		}
		time.Sleep(period)
		synctest.Wait()
		if want := []string{"flushed: [nat]", "flushed: [filter]"}; !slices.Equal(reports, want) {
			t.Errorf("got reports %q, want %q", reports, want)
		}
	})
}

func TestMonitorWritesOnlyWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newTableSet()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go New(kernel, period, func(Report) {}).Run(ctx)
		synctest.Wait()
		if got, want := kernel.takeWrites(), len(tables); got != want {
			t.Errorf("got %d writes at the start, want %d", got, want)
		}
		time.Sleep(10 * period)
		synctest.Wait()
		if got := kernel.takeWrites(); got != 0 {
			t.Errorf("got %d writes in 10 idle polls, want 0", got)
		}
	})
}

func TestMonitorRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); New(newTableSet(), period, func(Report) {}).Run(ctx) }()
		synctest.Wait()
		cancel()
		<-ended
	})
}

func logTo(ctx context.Context, w io.Writer) context.Context {
	return klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w))))
}

// A failure is in the log once when it lasts, and once when it is over.
func TestMonitorLogsLastingFailureOnce(t *testing.T) {
	tests := []struct {
		name        string
		lockedPolls int
		want        []string
	}{
		{name: "short", lockedPolls: lastingFailures - 1},
		{
			name:        "lasting",
			lockedPolls: 3 * lastingFailures,
			want:        []string{"cannot be watched", "watched again"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				ctx, cancel := context.WithCancel(logTo(t.Context(), &log))
				defer cancel()
				kernel := newTableSet()
				go New(kernel, period, func(Report) {}).Run(ctx)
				synctest.Wait()
				kernel.setLock(true, tables[:]...)
				time.Sleep(time.Duration(test.lockedPolls) * period)
				synctest.Wait()
				kernel.setLock(false, tables[:]...)
				time.Sleep(period)
				synctest.Wait()

				var lines []string
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, "Canary chains") { // and not the rest of a joined error
						lines = append(lines, line)
					}
				}
				if len(lines) != len(test.want) {
					t.Fatalf("got %d lines, want %d:\n%s", len(lines), len(test.want), &log)
				}
				for i, want := range test.want {
					if !strings.Contains(lines[i], want) {
						t.Errorf("line %d: got %q, want %q in it", i, lines[i], want)
					}
				}
			})
		})
	}
}

// TestChainNameIsOwned holds the name against the list by which cleanup and sync tell
// our chains from others.
func TestChainNameIsOwned(t *testing.T) {
	for _, table := range tables {
		if id := (ruleset.ChainID{Table: table, Name: ChainName}); !render.Owns(id) || render.CanaryChain != ChainName {
			t.Errorf("%s is not the canary chain %s of package render", id, render.CanaryChain)
		}
	}
}

func TestPokeAndRestore(t *testing.T) {
	tests := []struct {
		name string
		ask  func(*Monitor)
		want []string
	}{
		{"Poke reports at once", (*Monitor).Poke, []string{"flushed: [nat]"}},
		{"Restore puts back and says nothing", (*Monitor).Restore, nil},
		{"Poke is heard although Restore came first", func(m *Monitor) { m.Restore(); m.Poke() }, []string{"flushed: [nat]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kernel := newTableSet()
				var reports []string
				m := New(kernel, period, func(r Report) { reports = append(reports, r.String()) })
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); m.Run(ctx) }()
				synctest.Wait()
				kernel.flush(ruleset.NAT)
				kernel.during(func() { tt.ask(m) })
				synctest.Wait()
				if !slices.Equal(reports, tt.want) || !kernel.has(ruleset.NAT) {
					t.Errorf("reports %v, want %v; the canary is back: %v", reports, tt.want, kernel.has(ruleset.NAT))
				}
				time.Sleep(2 * period)
				if len(reports) != len(tt.want) {
					t.Errorf("reported later: %v", reports)
				}
				stop()
				<-ended
			})
		})
	}
}
