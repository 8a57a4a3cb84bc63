package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
)

// prober asks the kernel what it has; iptables.Runner is one.
type prober interface {
	Family() model.Family
	Probe(ctx context.Context, features []iptables.Feature) (missing map[string]error, err error)
}

// lookAgain is how long a feature that is missing is taken to be: somebody may load a
// module.
const lookAgain = time.Hour

// capabilities is what the kernel and the iptables of one family can do. What is not
// known is taken to be there. Its methods but askSCTP are for one goroutine at a time.
type capabilities struct {
	kernel   prober
	features []feature
	// known has the features that were asked for, with why they are missing, nil for
	// those that are not.
	known map[string]error
	// denied are the features that are not asked for.
	denied map[string]bool
	// sctp says that a Service has asked for SCTP. The probe would have the kernel load
	// its part, unwanted where SCTP is spoken by programs alone.
	sctp atomic.Bool
	// next is when missing features are asked for again.
	next time.Time
	// unsaid are the features of which something new is known.
	unsaid []feature
}

func newCapabilities(kernel prober) *capabilities {
	return &capabilities{kernel: kernel, features: features(kernel.Family()), known: map[string]error{}, denied: map[string]bool{}}
}

// deny takes a feature to be missing without asking, for good.
func (c *capabilities) deny(name string, why error) {
	for _, f := range c.features {
		if f.Name == name {
			c.known[name], c.denied[name] = why, true
			c.unsaid = append(c.unsaid, f)
		}
	}
}

// askSCTP has the next look find out about SCTP.
func (c *capabilities) askSCTP() { c.sctp.Store(true) }

// look asks the kernel for what is not known. An error leaves that open, until the
// next look.
func (c *capabilities) look(ctx context.Context) error {
	due := c.due()
	if len(due) == 0 {
		return nil
	}
	asked := make([]iptables.Feature, len(due))
	for i, f := range due {
		asked[i] = f.Feature
	}
	missing, err := c.kernel.Probe(ctx, asked)
	if err != nil {
		return err
	}
	for _, f := range due {
		before, known := c.known[f.Name]
		now := missing[f.Name]
		if c.known[f.Name] = now; !known || (before == nil) != (now == nil) {
			c.unsaid = append(c.unsaid, f)
		}
	}
	c.next = time.Now().Add(lookAgain)
	return nil
}

// due lists the features to ask for.
func (c *capabilities) due() []feature {
	var due []feature
	for _, f := range c.features {
		switch why, known := c.known[f.Name]; {
		case c.denied[f.Name], f.Name == featureSCTP && !c.sctp.Load():
		case !known, why != nil && !time.Now().Before(c.next):
			due = append(due, f)
		}
	}
	return due
}

// has reports whether a feature is there, as far as is known.
func (c *capabilities) has(name string) bool { return c.known[name] == nil }

// host takes what cannot be used out of what the host has to offer.
func (c *capabilities) host(host proxier.Host) proxier.Host {
	host.RandomFully = c.has(featureRandomFully)
	if !c.has(featureNFAcct) {
		host.InvalidAccount, host.LocalhostAccount = "", ""
	}
	return host
}

// lacks is what rules have to do without.
func (c *capabilities) lacks() render.Lacks {
	var lacks render.Lacks
	for _, f := range c.missing() {
		if f.without != nil {
			f.without(&lacks)
		}
	}
	return lacks
}

// missing lists the features that are known to be missing.
func (c *capabilities) missing() []feature {
	var missing []feature
	for _, f := range c.features {
		if !c.has(f.Name) {
			missing = append(missing, f)
		}
	}
	return missing
}

// news lists the features of which something is known that was not said.
func (c *capabilities) news() []feature {
	news := c.unsaid
	c.unsaid = nil
	return news
}

// lookAt finds out what each family can do, and drops a family that cannot rewrite
// addresses. It is an error if none is left.
func lookAt(ctx context.Context, kernels []*iptables.Runner, accounts error) ([]*iptables.Runner, map[model.Family]*capabilities, error) {
	var able []*iptables.Runner
	var failures error
	can := map[model.Family]*capabilities{}
	for _, kernel := range kernels {
		c := newCapabilities(kernel)
		if accounts != nil {
			c.deny(featureNFAcct, accounts)
		}
		if err := c.look(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Could not find out what the kernel lacks; going on as if it were nothing, and asking again", "family", kernel.Family())
		}
		if why := c.known[featureDNAT]; why != nil {
			failures = errors.Join(failures, fmt.Errorf("%v: %w: %w", kernel.Family(), iptables.ErrFamilyUnsupported, why))
			continue
		}
		able, can[kernel.Family()] = append(able, kernel), c
	}
	if err := oneIsEnough(ctx, able, failures); err != nil {
		return nil, nil, err
	}
	return able, can, nil
}
