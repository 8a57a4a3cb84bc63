package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/render"
)

const runUsage = `Keeps the node's rules until SIGTERM or SIGINT. The rules stay then. It needs root, or
CAP_NET_ADMIN. miniproxy help lists the other commands.
`

// runAgent keeps the node's rules until the context ends. The rules stay: traffic
// must not notice that the agent stops.
func runAgent(ctx context.Context, args []string, io streams) error {
	o := newOptions("run")
	o.about = runUsage
	c, err := o.parse(args, io)
	if err != nil {
		return err
	}
	switch {
	case o.config.Version() == "true" || o.config.Version() == "raw":
		return printVersion(ctx, nil, io)
	case c.WriteConfigTo != "":
		return writeConfig(c)
	case c.Cleanup:
		return o.cleanUp(ctx)
	}
	if c.Manifests != "" {
		// Before anything on the node is changed.
		if _, err := os.Stat(c.Manifests); err != nil {
			return usageError{fmt.Errorf("--manifests: %w", err)}
		}
	}
	if err := c.SetUpLogging(); err != nil {
		return usageError{err}
	}
	defer logs.FlushLogs()
	saveMemory()
	if c.InitOnly {
		return untilDone(ctx, o.initOnly(ctx, c))
	}
	logger := klog.FromContext(ctx)
	logger.Info("Starting miniproxy", "version", versionName(), "node", c.NodeName)
	for _, warning := range c.Warnings {
		logger.Info("Configuration: " + warning)
	}
	return newAgent(c, o).run(ctx)
}

// untilDone is the error of what was called off because the context has ended: being
// told to stop is no failure.
func untilDone(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

func writeConfig(c *config.Config) error {
	text, err := c.YAML()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.WriteConfigTo, text, 0o644); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// newSource returns where the objects come from, and where events go to.
func newSource(ctx context.Context, c *config.Config, kernels []*iptables.Runner) (config.Source, *reporter, error) {
	if c.Manifests != "" {
		return config.NewManifests(c.Manifests, c.NodeName), &reporter{}, nil
	}
	rest, err := config.Connect(ctx, c.API)
	if loop, ok := errors.AsType[*config.LoopError](err); ok && haveRules(ctx, kernels) {
		// The Service address works as long as the rules of a former agent lead somewhere.
		klog.FromContext(ctx).Error(loop, "The API server does not answer yet; waiting for it, since there are rules that lead there")
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	report, err := newReporter(ctx, client, c.NodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare to write events: %w", err)
	}
	return config.NewCluster(client, c.NodeName, c.API.Resync), report, nil
}

// haveRules reports whether some agent has written rules here before.
func haveRules(ctx context.Context, kernels []*iptables.Runner) bool {
	return slices.ContainsFunc(kernels, func(k *iptables.Runner) bool {
		found, err := k.HasChain(ctx, render.Root())
		return found && err == nil
	})
}

// kernels returns the door to the kernel's tables for each family that the kernel
// has. One family is enough to run; each stands alone from here on.
func (o *options) kernels(ctx context.Context) ([]*iptables.Runner, error) {
	logger := klog.FromContext(ctx)
	forced, err := o.forcedBackend()
	if err != nil {
		return nil, err
	}
	var choice iptables.Choice
	var kernels []*iptables.Runner
	var missing error
	err = waitForTables(ctx, func() (err error) {
		if choice, err = iptables.Detect(ctx, forced); err == nil {
			kernels, missing, err = findKernels(ctx, choice.Backend)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	logger.Info("Chose the iptables backend", "backend", choice.Backend, "because", choice.Reason)
	if n, err := countOurs(ctx, otherBackend(choice.Backend)); err != nil {
		logger.Error(err, "Could not look whether the other iptables backend holds chains of a Service proxy too")
	} else if n > 0 {
		logger.Error(nil, "The other iptables backend holds chains of a Service proxy too; packets pass through both: remove them with miniproxy cleanup",
			"backend", otherBackend(choice.Backend), "chains", n)
	}
	if err := oneIsEnough(ctx, kernels, missing); err != nil {
		return nil, err
	}
	logger.Info("Found the iptables programs", "version", kernels[0].Version())
	return kernels, nil
}

// oneIsEnough says in the log why a family is missing, and is an error only if both are.
func oneIsEnough(ctx context.Context, kernels []*iptables.Runner, missing error) error {
	if len(kernels) == 0 {
		return fmt.Errorf("the kernel can rewrite addresses of neither family: %w", missing)
	}
	if missing != nil {
		klog.FromContext(ctx).Error(missing, "One IP family is not supported here; serving the other one", "family", kernels[0].Family())
	}
	return nil
}

// findKernels returns the doors for the families that a backend has here, and why it
// lacks the others.
func findKernels(ctx context.Context, backend iptables.Backend) (kernels []*iptables.Runner, missing, err error) {
	for _, family := range model.Families {
		kernel, err := iptables.New(ctx, family, backend)
		if err == nil {
			err = kernel.Supported(ctx)
		}
		switch {
		case err == nil:
			kernels = append(kernels, kernel)
		case errors.Is(err, iptables.ErrFamilyUnsupported):
			missing = errors.Join(missing, err)
		default:
			return nil, nil, err
		}
	}
	return kernels, missing, nil
}
