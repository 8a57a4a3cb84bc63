// Command miniproxy keeps a node's netfilter tables so that traffic for Services
// reaches their endpoints. It also shows what it would write, takes it away again,
// and demonstrates it without a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the work failed at run time
	exitUsage  = 2 // the command line or the configuration is wrong
	// exitReload says that the configuration file has changed and is valid: whoever
	// started the agent is to start it again.
	exitReload = 3
)

// usageError is an error in what the user typed or wrote into a configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError is an error with an exit code of its own. Without an error in it, all that
// there is to say was printed.
type exitError struct {
	code int
	error
}

func (e exitError) Error() string {
	if e.error == nil {
		return ""
	}
	return e.error.Error()
}

func (e exitError) Unwrap() error { return e.error }

// streams are where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// command is a word on the command line and what it does. Its context ends on
// SIGINT and SIGTERM.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, io streams) error
}

// commands lists the commands; the first one is meant when none is named.
func commands() []command {
	return []command{
		{"run", "keep the node's rules (the default)", runAgent},
		{"render", "print the rules for manifests, without root and without a cluster", renderManifests},
		{"diff", "show where the kernel does not hold what it should", showDifferences},
		{"doctor", "look at everything on this node that the rules depend on", examine},
		{"cleanup", "remove every rule of ours", cleanUp},
		{"demo", "show the main job in network namespaces: no cluster needed", runDemo},
		{"version", "print the version", printVersion},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// execute runs the command that args name and returns the exit code.
func execute(ctx context.Context, args []string, io streams) int {
	return exitCodeOf(dispatch(ctx, args, io), io.err)
}

// exitCodeOf prints an error, and returns the exit code that it means.
func exitCodeOf(err error, out io.Writer) int {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(out, "miniproxy:", strings.TrimRight(line, "\n"))
	}
	if own, ok := errors.AsType[exitError](err); ok {
		return own.code
	}
	switch _, isUsage := errors.AsType[usageError](err); {
	case isUsage:
		return exitUsage
	case errors.Is(err, errReload):
		return exitReload
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, io streams) error {
	all := commands()
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return all[0].run(ctx, args, io)
	}
	if args[0] == "help" {
		if len(args) == 1 || slices.Contains([]string{"help", "-h", "--help"}, args[1]) {
			fmt.Fprint(io.out, usage())
			return nil
		}
		args = []string{args[1], "--help"}
	}
	for _, c := range all {
		if c.name == args[0] {
			return c.run(ctx, args[1:], io)
		}
	}
	return usageError{fmt.Errorf("unknown command %q; see miniproxy help", args[0])}
}

// needsRoot tells what it means for a command that the kernel refuses to be looked at.
func needsRoot(command string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s needs root, or CAP_NET_ADMIN: %w", command, err)
	}
	return err
}

func usage() string {
	var b strings.Builder
	b.WriteString("miniproxy keeps a node's netfilter tables so that traffic for Services reaches their endpoints.\n\n")
	b.WriteString("Usage: miniproxy [COMMAND] [FLAGS]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-8s  %s\n", c.name, c.summary)
	}
	b.WriteString("\nWithout a command it is run. miniproxy COMMAND --help lists the flags of a command.\n")
	b.WriteString("Exit codes: 0 done, 1 the work failed, 2 the command line or the configuration is wrong,\n")
	b.WriteString("3 the configuration file has changed and the agent is to be started again.\n")
	b.WriteString("diff has those of diff(1); doctor ends with 1 if something is bad.\n")
	return b.String()
}
