package main

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/canary"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/render"
)

// tellAgain is how long to wait before the same event is written once more.
const tellAgain = 10 * time.Minute

// tell writes a warning about the node, unless it was told a moment ago.
func (d *drift) tell(reason, note string, args ...any) {
	d.mu.Lock()
	last, told := d.told[reason]
	again := !told || time.Since(last) >= tellAgain
	if again {
		d.told[reason] = time.Now()
	}
	d.mu.Unlock()
	if again {
		d.family.report.aboutNode(corev1.EventTypeWarning, reason, actionSync+d.family.family.String(), note, args...)
	}
}

// reportFight says that a repair is put off because repairs are undone.
func (d *drift) reportFight(fight canary.Fight) {
	by := fight.By
	if by == "" {
		by = "an unknown program"
	}
	d.family.metrics.RepairDelayed(d.family.family)
	d.family.metrics.RepairWait(d.family.family, fight.Wait)
	klog.Background().Info("A fight about the rules: another program changes them again and again; the next repair waits",
		"family", d.family.family, "by", by, "repairs", fight.Repairs, "wait", fight.Wait)
	d.tell(reasonFight, "%s keeps changing the %s rules of Services; after %d repairs the next one waits %v",
		by, d.family.family, fight.Repairs, fight.Wait)
}

// enoughOfRival is after how many edits it is taken for sure that another proxy runs: one
// may be the last word of a proxy that is being replaced.
const enoughOfRival = 3

// forgetRival is how long another proxy must have been quiet to be taken for gone. It is
// the longest that a kube-proxy is quiet.
const forgetRival = time.Hour

// reportRival says that another proxy seems to write the same chains.
func (d *drift) reportRival(ctx context.Context, by string) {
	d.mu.Lock()
	if time.Since(d.rivalAt) > forgetRival {
		d.rival = 0
	}
	d.rival, d.rivalAt = d.rival+1, time.Now()
	sure := d.rival >= enoughOfRival
	first := d.rival == enoughOfRival
	d.mu.Unlock()
	if first {
		klog.FromContext(ctx).Error(nil, "Another proxy seems to run on this node: a kube-proxy, or a second miniproxy, writes the same chains", "by", by)
	}
	if sure {
		d.tell(reasonRival, "another Service proxy seems to run on this node: %s writes the same %s chains", by, d.family.family)
	}
}

// restorers are the programs by which proxies write, as the kernel shortens their names.
var restorers = []string{"iptables-restor", "ip6tables-resto", "iptables-nft-re", "ip6tables-nft-r"}

// isProxy reports whether an edit is such as a Service proxy makes: a restore that puts
// rules into chains of Services. What merely restores a saved table only takes them away.
func isProxy(edit iptables.Edit) bool {
	return slices.Contains(restorers, edit.Process) && slices.ContainsFunc(edit.Chains, func(c iptables.ChainEdit) bool {
		return c.Added > 0 && render.Owns(c.ChainID)
	})
}
