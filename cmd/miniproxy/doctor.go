package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/doctor"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
)

const doctorUsage = `Looks at everything on this node that the rules depend on, and changes nothing.

Give it the flags and the configuration of the agent. Each line is one finding:
  ok    as it should be
  warn  may be meant, may do harm some day, or could not be looked at
  bad   keeps packets from where they should go
with what was found and, where there is something to do, what.

It needs root, or CAP_NET_ADMIN, for the rules, and sees other programs only where it sees their
processes: from a container that has the host's (hostPID), or on the node itself.

Exit codes: 0 nothing is bad, 1 something is, 2 the command line or the configuration is wrong.
`

// How long doctor waits: for the cluster's lists, for a page of the agent's, and
// between two looks at who holds a lock.
const (
	doctorPatience = 10 * time.Second
	pagePatience   = 3 * time.Second
	lockPause      = 2 * time.Second
)

// examination is one run of doctor.
type examination struct {
	*options
	config    *config.Config
	machine   doctor.Machine
	lockFile  string
	lockPause time.Duration
	format    string

	findings []doctor.Finding

	// What checks learn that others need.
	choice    iptables.Choice
	kernels   []*iptables.Runner
	can       map[model.Family]*capabilities
	processes []doctor.Process
	// cluster is nil, and clusterErr says why, if it could not be asked.
	cluster    *view
	clusterErr error
}

// examine looks at the node.
func examine(ctx context.Context, args []string, std streams) error {
	return newExamination().run(ctx, args, std)
}

func newExamination() *examination {
	e := &examination{
		options:   newOptions("doctor"),
		machine:   doctor.NewMachine(),
		lockFile:  "run/xtables.lock",
		lockPause: lockPause,
	}
	e.about = doctorUsage
	e.set.StringVarP(&e.format, "output", "o", formatText, "How to print the findings: text or json.")
	return e
}

func (e *examination) run(ctx context.Context, args []string, std streams) error {
	var err error
	if e.config, err = e.parse(args, std); err != nil {
		return err
	}
	if err := checkFormat(e.format); err != nil {
		return err
	}
	if _, err := e.forcedBackend(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, check := range []func(context.Context){
		e.lookAtProcesses, e.lookAtCluster, // what others need
		e.checkBackend, e.checkRules, e.checkCapabilities, e.checkJumps,
		e.checkSettings, e.checkConntrack, e.checkLock,
		e.checkWriters, e.checkCluster, e.checkPorts, e.checkAgent,
	} {
		check(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if e.format == formatJSON {
		err = printJSON(std.out, e.findings)
	} else {
		err = doctor.Print(std.out, e.findings)
	}
	if err == nil && doctor.AnyBad(e.findings) {
		err = exitError{code: exitFailed}
	}
	return err
}

func (e *examination) add(findings ...doctor.Finding) { e.findings = append(e.findings, findings...) }

// look adds a finding, or that it could not be looked for.
func (e *examination) look(check string, err error, finding func() doctor.Finding) {
	if err != nil {
		e.couldNotLook(check, err)
		return
	}
	e.add(finding())
}

func (e *examination) couldNotLook(check string, err error) {
	if iptables.IsBusy(err) && !mayAdministerNetwork() {
		err = doctor.ErrNeedsRoot // the programs have one status for this and for a lock that is held
	}
	e.add(doctor.CouldNotLook(check, err))
}

func (e *examination) lookAtProcesses(context.Context) {
	var err error
	if e.processes, err = e.machine.Processes(); err != nil {
		e.couldNotLook("processes", err)
	}
}

// agentRuns reports whether an agent is seen to run here.
func (e *examination) agentRuns() bool { return doctor.Agents(e.processes).Level == doctor.OK }

// checkAgent asks the agent how it is.
func (e *examination) checkAgent(ctx context.Context) {
	e.add(doctor.Agents(e.processes))
	address := address(reachable(e.config.Healthz))
	if address == "" {
		e.add(doctor.Health("", 0, "", nil, false))
		return
	}
	status, body, err := get(ctx, "http://"+address+"/livez")
	e.add(doctor.Health(address, status, body, err, e.agentRuns()))
}

// reachable is where a server answers that listens on an address.
func reachable(addr netip.AddrPort) netip.AddrPort {
	if !addr.IsValid() || !addr.Addr().IsUnspecified() {
		return addr
	}
	return netip.AddrPortFrom(localhost(model.IPv4), addr.Port())
}

// get asks for a page.
func get(ctx context.Context, url string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pagePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("ask the agent: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return response.StatusCode, string(text), errors.Join(err, response.Body.Close())
}
