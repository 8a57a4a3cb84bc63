// Command bench compares miniproxy with kube-proxy on one machine, in one run, from
// the outside: it starts each of them in turn on a node made of network namespaces,
// tells it of the same Services, and measures with real connections when and how fast
// its rules carry them, and what it costs in CPU time and memory.
//
// It knows nothing of rules: whatever programs the node is measured alike. The result
// is a table in Markdown on standard output; progress goes to standard error.
// docs/performance.md says what the numbers mean. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// config is what the command line says.
type config struct {
	miniproxy, kubeProxy string
	load                 load
	rounds               int
	flips                int
	connections          int
	bound                time.Duration
	rows                 []row
	logs                 string
}

func parseFlags(args []string) (config, error) {
	var c config
	var names string
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.StringVar(&c.miniproxy, "miniproxy", "", "miniproxy's binary")
	set.StringVar(&c.kubeProxy, "kube-proxy", "", "kube-proxy's binary")
	set.IntVar(&c.load.services, "services", 1000, "number of Services")
	set.IntVar(&c.load.endpoints, "endpoints", 10, "endpoints per Service")
	set.IntVar(&c.rounds, "rounds", 3, "how many times each program is measured")
	set.IntVar(&c.flips, "flips", 10, "changes of one endpoint in each measurement")
	set.IntVar(&c.connections, "connections", 3000, "connections through Services, and as many direct ones, in each measurement")
	set.DurationVar(&c.bound, "bound", 2*time.Minute, "how long a program may take to be ready; one that is not is left out of later rounds")
	set.StringVar(&names, "modes", strings.Join(rowNames(), ","), "which programs to measure, in which mode")
	set.StringVar(&c.logs, "logs", "", "existing directory to keep the programs' logs in; without it they are removed")
	if err := set.Parse(args); err != nil {
		return config{}, err
	}
	if err := c.load.check(); err != nil {
		return config{}, err
	}
	if min(c.rounds, c.flips, c.connections) < 1 {
		return config{}, errors.New("rounds, flips and connections must be at least 1")
	}
	var err error
	c.rows, err = findRows(strings.Split(names, ","))
	return c, err
}

func main() {
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err == nil {
		err = run(c)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(exit.ExitCode(), 1)) // the run inside the namespaces has said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(c config) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(envInside) == "" {
		return runInside(ctx)
	}
	if err := enterSandbox(); err != nil {
		return err
	}
	m, err := newMeasurement(ctx, c)
	if err != nil {
		return err
	}
	results, err := m.all(ctx)
	if err != nil {
		return err
	}
	fmt.Print(report(c, m.machine, results))
	return nil
}
