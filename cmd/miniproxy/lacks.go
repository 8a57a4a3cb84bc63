package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// sync writes the rules, with what is known to be there.
func (f *familyAgent) sync(ctx context.Context) error {
	lacked := f.can.lacks()
	if err := f.can.look(ctx); err != nil {
		// The sync that follows will not get any further, and says so.
		klog.FromContext(ctx).V(2).Info("Could not find out what the kernel lacks", "err", err)
	}
	f.tellLacks(ctx)
	if f.can.lacks() != lacked {
		// Jump rules change as well.
		f.proxier.ForceFull("the kernel can do other things than before")
	}
	return f.proxier.Sync(ctx)
}

// tellLacks says what has become known of the kernel, once, in the log, in the metric,
// and in an event about the node where all of its Services are concerned.
func (f *familyAgent) tellLacks(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for _, feature := range f.can.news() {
		why := f.can.known[feature.Name]
		f.metrics.Capability(f.family, feature.Name, why == nil)
		switch {
		case why == nil && f.told[feature.Name]:
			logger.Info("The kernel and its iptables have a feature again", "feature", feature.Name)
		case why == nil:
		case feature.reason == "":
			logger.Info("The kernel or its iptables lacks a feature; doing without", "feature", feature.Name, "loses", feature.loses, "err", why)
		default:
			logger.Error(why, "The kernel or its iptables lacks a feature; doing without", "feature", feature.Name, "loses", feature.loses)
		}
		if why != nil && feature.reason != "" && feature.concerns == nil {
			f.report.aboutNode(corev1.EventTypeWarning, feature.reason, actionSync+f.family.String(),
				"the %s kernel or iptables lacks %s: %s", f.family, feature.Name, feature.loses)
		}
	}
}

// reportLacks writes events about Service ports that ask for what the kernel lacks:
// about all of them when that has become known, and then about those that change.
func (f *familyAgent) reportLacks(r proxier.Result) {
	missing := f.can.missing()
	for _, feature := range missing {
		if feature.concerns == nil {
			continue
		}
		for name, port := range r.Snapshot.Services {
			_, changed := slices.BinarySearchFunc(r.Changes.ServicePorts, name, model.ServicePortName.Compare)
			if feature.concerns(port) && (changed || !f.told[feature.Name]) {
				f.report.aboutServicePort(name, f.family, port.UID, feature.reason,
					"the %s kernel or iptables of node %s lacks %s: %s", f.family, f.config.NodeName, feature.Name, feature.loses)
			}
		}
	}
	clear(f.told)
	for _, feature := range missing {
		f.told[feature.Name] = true
	}
}

// canaries is where the canary keeps its rules.
func (f *familyAgent) canaries() canary.Chains {
	if f.can.lacks().Comment {
		return uncommented{f.kernel}
	}
	return f.kernel
}

// uncommented are chains of a kernel that knows no comments.
type uncommented struct{ canary.Chains }

// HasRule implements canary.Chains.
func (u uncommented) HasRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) (bool, error) {
	rule.Comment = ""
	return u.Chains.HasRule(ctx, id, rule)
}

// EnsureRule implements canary.Chains.
func (u uncommented) EnsureRule(ctx context.Context, id ruleset.ChainID, rule ruleset.Rule) error {
	rule.Comment = ""
	return u.Chains.EnsureRule(ctx, id, rule)
}

// hasSCTP reports whether a Service has a port of SCTP.
func hasSCTP(svc *corev1.Service) bool {
	return svc != nil && slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolSCTP })
}
