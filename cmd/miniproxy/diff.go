package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
)

const diffUsage = `Shows where the kernel does not hold what the agent would write, and writes nothing.

Give it the flags and the configuration of the agent. What the cluster says comes from the same
place: the API server, --manifests, or the files named with -f. It needs root, or CAP_NET_ADMIN.
It looks again a few times before it says that something differs, since an agent may be writing.

A line with - is in the kernel and should not be, one with + should be there and is not:
  missing   a chain that should be there
  foreign   a chain with a name of ours that should not be there
  changed   a chain with other rules
  order     a chain with the right rules in another order
  jump      a jump rule in a built-in chain: missing, out of place, or out of reach
  canary    a canary chain, by which a flush is noticed

Exit codes: 0 the same, 1 something differs, 2 trouble: the command line is wrong, or it could not look.
`

// The exit codes of diff, as those of diff(1).
const (
	exitDiffers = 1
	exitTrouble = 2
)

// How often diff looks before it says that something differs, and how long it waits in
// between: an agent that has heard of a change writes it within a second or two, and
// after a long sync pauses for a second.
const (
	diffLooks = 4
	diffPause = 2 * time.Second
	// listTimeout is how long the API server may take to list everything.
	listTimeout = 30 * time.Second
)

// diffOptions are what diff is told.
type diffOptions struct {
	*options
	files          []string
	family, format string
	// pause is how long to wait between two looks.
	pause time.Duration
}

// showDifferences compares the kernel with what the agent would write.
func showDifferences(ctx context.Context, args []string, std streams) error {
	return newDiff().run(ctx, args, std)
}

func newDiff() *diffOptions {
	d := &diffOptions{options: newOptions("diff"), pause: diffPause}
	d.about = diffUsage
	d.set.StringArrayVarP(&d.files, "file", "f", nil, "File or directory of manifests, in the place of the API server. May be given again.")
	d.set.StringVar(&d.family, "family", "", "IP family to look at: ipv4 or ipv6. Default: both.")
	d.set.StringVarP(&d.format, "output", "o", formatText, "How to print what differs: text or json.")
	return d
}

// run compares and prints. Every error has an exit code of diff's own.
func (d *diffOptions) run(ctx context.Context, args []string, std streams) error {
	found, err := d.compare(ctx, args, std)
	if err == nil {
		err = printDifferences(std.out, d.format, found)
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return err
	case err != nil:
		return exitError{exitTrouble, needsRoot("diff", err)}
	case countDifferences(found) > 0:
		return exitError{code: exitDiffers}
	}
	return nil
}

// compare looks at the cluster and at the kernel until it knows what differs.
func (d *diffOptions) compare(ctx context.Context, args []string, std streams) ([]familyDiff, error) {
	c, err := d.parse(args, std)
	if err != nil {
		return nil, err
	}
	if err := checkFormat(d.format); err != nil {
		return nil, err
	}
	families, err := parseFamilies(d.family)
	if err != nil {
		return nil, err
	}
	kernels, err := d.untouchedKernels(ctx, families, std.err)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	see, err := lookAtCluster(ctx, c, d.files, listTimeout)
	if err != nil {
		return nil, err
	}
	first, err := see()
	if err != nil {
		return nil, err
	}
	abilities, err := lookAtHost(ctx, kernels, first.hasSCTP())
	if err != nil {
		return nil, err
	}
	found, steady, err := lookUntilSteady(ctx, d.pause, func() ([]familyDiff, error) {
		cluster, err := see()
		if err != nil {
			return nil, err
		}
		if err := cluster.hasWhatItNeeds(); err != nil {
			return nil, err
		}
		return d.compareAll(ctx, cluster, abilities)
	})
	if err == nil && !steady {
		fmt.Fprintf(std.err, "miniproxy: every one of %d looks showed something else: an agent is writing, or the cluster changes; this is the last one\n", diffLooks)
	}
	return found, err
}

func parseFamilies(name string) ([]model.Family, error) {
	if name == "" {
		return model.Families[:], nil
	}
	family, err := parseFamily(name)
	if err != nil {
		return nil, usageError{err}
	}
	return []model.Family{family}, nil
}

// familyDiff is what differs in one family's tables in one backend.
type familyDiff struct {
	Family      model.Family
	Backend     iptables.Backend
	Differences []audit.Difference
}

// lookUntilSteady looks until nothing differs, or the same in two looks one after the
// other. It reports false if that did not happen.
func lookUntilSteady(ctx context.Context, pause time.Duration, look func() ([]familyDiff, error)) (found []familyDiff, steady bool, err error) {
	var before []familyDiff
	for i := range diffLooks {
		if i > 0 {
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(pause):
			}
		}
		if found, err = look(); err != nil {
			return nil, false, err
		}
		if countDifferences(found) == 0 || i > 0 && sameDifferences(found, before) {
			return found, true, nil
		}
		before = found
	}
	return found, false, nil
}

func countDifferences(found []familyDiff) int {
	n := 0
	for _, f := range found {
		n += len(f.Differences)
	}
	return n
}

func sameDifferences(a, b []familyDiff) bool {
	return slices.EqualFunc(a, b, func(a, b familyDiff) bool {
		return a.Family == b.Family && a.Backend == b.Backend && slices.EqualFunc(a.Differences, b.Differences, audit.Difference.Equal)
	})
}

// printDifferences prints what differs; as text nothing if nothing does.
func printDifferences(out io.Writer, format string, found []familyDiff) error {
	if format == formatJSON {
		return printJSON(out, differencesAsJSON(found))
	}
	var text []byte
	for _, f := range found {
		if len(f.Differences) == 0 {
			continue
		}
		text = fmt.Appendf(text, "%v %s: - is in the kernel and should not be, + should be and is not\n", f.Family, f.Backend)
		for _, d := range f.Differences {
			text = fmt.Appendln(text, d)
		}
	}
	_, err := out.Write(text)
	return err
}
