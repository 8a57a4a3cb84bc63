package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/miniproxy/miniproxy/pkg/demo"
	"github.com/miniproxy/miniproxy/pkg/iptables"
)

const demoUsage = `Usage: miniproxy demo [FLAGS]
       miniproxy demo --cleanup [NAME...]

Builds two nodes, four pods and a client in network namespaces, runs the agent in both nodes,
and shows which rules carry requests. It needs root, iptables, ip and curl, touches
nothing outside of its namespaces, and takes them down at its end, also after Ctrl-C.

Flags:
`

// runDemo shows the main job in network namespaces.
func runDemo(ctx context.Context, args []string, io streams) error {
	fs := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	fs.SetOutput(io.err)
	fs.Usage = func() { fmt.Fprint(io.out, demoUsage, fs.FlagUsages()) }
	keep := fs.Bool("keep", false, "Leave everything standing at the end, and say how to look around.")
	cleanup := fs.Bool("cleanup", false, "Remove what --keep has left standing: all of it, or the demos that are named.")
	step := fs.Bool("step", false, "Wait for Enter between two steps.")
	backend := fs.String("iptables-backend", "auto", "Which iptables the agents use: nft, legacy or auto.")
	asPod := fs.String("as-pod", "", "Be the web server of the pod of this name.")
	listen := fs.String("listen", ":8080", "Where the web server of a pod listens.")
	// These two are how the demo starts its pods.
	for _, name := range []string{"as-pod", "listen"} {
		if err := fs.MarkHidden(name); err != nil {
			return err
		}
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if fs.NArg() > 0 && !*cleanup {
		return usageError{fmt.Errorf("demo takes no argument, but got %q; see miniproxy demo --help", fs.Arg(0))}
	}
	chosen, err := iptables.ParseBackend(*backend)
	if err != nil {
		return usageError{err}
	}
	if *asPod != "" {
		return demo.ServePod(ctx, *asPod, *listen)
	}
	if *cleanup {
		return demoError(demo.Cleanup(io.out, fs.Args()...))
	}
	opts := demo.Options{Out: io.out, Bold: isTerminal(io.out), Keep: *keep, Backend: string(chosen)}
	if *step {
		opts.Pause = pauser(os.Stdin, io.out)
	}
	return demoError(demoRun(ctx, opts))
}

// demoRun runs the demo with two more signals that end it in good order: a terminal
// that is closed, and a pager that is left (miniproxy demo | less).
func demoRun(ctx context.Context, opts demo.Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	return demo.Run(ctx, opts)
}

// demoError makes a machine that lacks something the user's matter, not a failure.
func demoError(err error) error {
	if _, ok := errors.AsType[*demo.MissingError](err); ok {
		return usageError{err}
	}
	return err
}

// pauser returns a function that waits for a line of in. At the end of in it goes on.
func pauser(in io.Reader, out io.Writer) func(context.Context) error {
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	return func(ctx context.Context) error {
		fmt.Fprint(out, "\n[Enter] ")
		select {
		case <-lines:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
