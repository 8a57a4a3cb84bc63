package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/test/seed"
)

var chaosFlag = flag.Duration("chaos", 30*time.Second,
	"how long TestChaos disturbs the cluster of each backend")

// TestChaos changes Services, slices and nodes at random, and breaks things at random,
// while clients connect without pause. Each round ends with a quiet point, at which
// every node must hold what a fresh render prints and the rules of other programs must
// be as they were. No connection to a Service that has a ready endpoint may fail, but
// from the moment when rules were taken from the kernel until they are back.
//
// The seed repeats the choices, and not the moments at which programs meet.
func TestChaos(t *testing.T) {
	notForKubeProxy(t, "kube-proxy does not notice most of this")
	first := seed.Of(t)
	onBothBackends(t, func(t *testing.T, c *cluster) {
		ch := newChaos(t, c, rand.New(rand.NewPCG(first, 0)))
		for end := time.Now().Add(*chaosFlag); time.Now().Before(end); {
			ch.round(t)
		}
		ch.faultsMustHappen(t)
		t.Logf("%s, seed %d:\n%s", c.backend, first, ch.tally.report(ch.clients))
	})
}

// chaos is a cluster in which nothing stays as it is.
type chaos struct {
	*cluster
	*rand.Rand
	world   *world
	victims []*victim
	clients []*client
	flows   []*talker
	tally   tally

	// journal is the file with all events, faults and failures.
	journal *os.File
	// want is what each node is to hold since the last quiet point.
	want map[target]ruleset.Ruleset
	// damaged is when rules were first taken from a family's kernels in this round,
	// and the clients may notice.
	damaged map[int]time.Time
	// endings end the faults that last; the late ones are for after the quiet point's
	// look at the kernel.
	endings, late []ending
	// apiDown says that the API server does not run, and lock is that of iptables while
	// the test holds it.
	apiDown bool
	lock    *os.File
}

// ending ends a fault.
type ending func(context.Context) error

func newChaos(t *testing.T, c *cluster, r *rand.Rand) *chaos {
	t.Helper()
	journal, err := os.Create(filepath.Join(c.dir, "chaos.log"))
	if err != nil {
		t.Fatal(err)
	}
	ch := &chaos{cluster: c, Rand: r, journal: journal, tally: newTally()}
	ch.world = newWorld(t, c, r)
	ch.addVictims(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last events and faults:\n%s", tail(journal.Name(), 0))
		}
		journal.Close()
		// So that what other cases find is a whole cluster.
		for _, end := range append(ch.endings, ch.late...) {
			if err := end(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	ch.world.populate(t)
	ch.quiet(t)
	ch.addClients(t)
	return ch
}

// note writes a line of the journal.
func (ch *chaos) note(format string, args ...any) {
	// With the clock of the agents' logs. A journal that cannot be written fails nothing.
	fmt.Fprintf(ch.journal, "%s %s\n", time.Now().Format(clock), fmt.Sprintf(format, args...))
}

const clock = "15:04:05.000"

// round is some events and faults, and a quiet point. In two rounds of five there is
// one fault, to see how long its repair takes.
func (ch *chaos) round(t *testing.T) {
	t.Helper()
	ch.mustStillHold(t)
	ch.damaged = map[int]time.Time{}
	var kinds []string
	switch ch.IntN(5) {
	case 0:
		ch.events(t, 1+ch.IntN(30))
	case 1, 2:
		for range 2 + ch.IntN(12) {
			ch.events(t, ch.IntN(6))
			kinds = append(kinds, ch.disturb(t))
		}
		ch.events(t, ch.IntN(3))
	default:
		ch.events(t, ch.IntN(6))
		kinds = append(kinds, ch.disturb(t))
		if len(ch.damaged) == 0 {
			// Something to write, since the fault alone may change nothing.
			ch.events(t, 1+ch.IntN(5))
		}
	}
	ch.endFaults(t, &ch.endings)
	calm := time.Now()
	ch.quiet(t)
	repaired := time.Now()
	ch.note("quiet after %v", repaired.Sub(calm).Round(time.Millisecond))
	if len(ch.late) > 0 {
		ch.endFaults(t, &ch.late)
		ch.quiet(t)
	}
	ch.checkClients(t, time.Now())
	if ch.IntN(6) == 0 {
		ch.mustTraceAlike(t)
	}
	ch.tally.repaired(kinds, repaired.Sub(calm))
}

// events makes n events, with a pause before each that lets agents do something else
// each time.
func (ch *chaos) events(t *testing.T, n int) {
	t.Helper()
	for range n {
		ch.pause()
		if ch.apiDown {
			return
		}
		what, err := ch.event(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		ch.note("event: %s", what)
		ch.tally.events++
	}
}

// event makes an event, in most cases one of Services or slices.
func (ch *chaos) event(ctx context.Context) (what string, err error) {
	if ch.IntN(12) == 0 {
		v := ch.victims[ch.IntN(len(ch.victims))]
		return ch.foreignEdit(ctx, v, families[ch.IntN(len(families))])
	}
	return ch.world.event(ctx)
}

// disturb makes faults until one applies, and returns its kind.
func (ch *chaos) disturb(t *testing.T) string {
	t.Helper()
	for range 100 {
		f := ch.choose()
		at := target{ch.victims[ch.IntN(len(ch.victims))], families[ch.IntN(len(families))]}
		ch.pause()
		before := time.Now()
		what, end, err := f.do(ch, t.Context(), at)
		if errors.Is(err, errNotNow) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		ch.note("fault: %s: %s", f.name, what)
		ch.tally.faults[f.name]++
		if f.damages && ch.damaged[at.family].IsZero() {
			ch.damaged[at.family] = before
		}
		if end != nil && f.late {
			ch.late = append(ch.late, end)
		} else if end != nil {
			ch.endings = append(ch.endings, end)
		}
		return f.name
	}
	t.Fatal("no fault applies")
	return ""
}

// endFaults ends faults, in any order, and leaves those that did not end.
func (ch *chaos) endFaults(t *testing.T, endings *[]ending) {
	t.Helper()
	ch.Shuffle(len(*endings), func(i, j int) { (*endings)[i], (*endings)[j] = (*endings)[j], (*endings)[i] })
	for len(*endings) > 0 {
		ch.pause()
		if err := (*endings)[0](t.Context()); err != nil {
			t.Fatalf("end a fault: %v", err)
		}
		*endings = (*endings)[1:]
	}
}

// pause lets up to a quarter of a second pass, or nothing.
func (ch *chaos) pause() {
	if length := ch.IntN(500) - 250; length > 0 {
		time.Sleep(time.Duration(length) * time.Millisecond)
	}
}
