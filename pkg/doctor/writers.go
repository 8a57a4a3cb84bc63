package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/iptables"
)

// Process is a process that can be seen from here.
type Process struct {
	PID int
	// Name is the name that the kernel knows it by, at most 15 bytes.
	Name string
	Args []string
	// Network says whether it is in the network namespace that is looked at.
	Network Network
}

// String returns such as "kube-proxy (pid 12)".
func (p Process) String() string { return fmt.Sprintf("%s (pid %d)", p.Name, p.PID) }

// Network says in which network namespace a process is.
type Network int

// The answers. A process of another user cannot be asked without rights.
const (
	NetworkUnknown Network = iota
	NetworkSame
	NetworkOther
)

// isAgent reports whether a process keeps rules: miniproxy without a command, or with
// the command run.
func (p Process) isAgent() bool {
	if len(p.Args) == 0 || filepath.Base(p.Args[0]) != "miniproxy" {
		return false
	}
	return len(p.Args) == 1 || p.Args[1] == "run" || strings.HasPrefix(p.Args[1], "-")
}

// inNetwork returns the processes that are, or may be, in the network namespace.
func inNetwork(all []Process, is func(Process) bool) []Process {
	return slices.DeleteFunc(slices.Clone(all), func(p Process) bool { return p.Network == NetworkOther || !is(p) })
}

// Agents judges how many agents run in this network namespace.
func Agents(all []Process) Finding {
	const check = "agent"
	seen := inNetwork(all, Process.isAgent)
	agents := slices.DeleteFunc(slices.Clone(seen), func(p Process) bool { return p.Network != NetworkSame })
	switch {
	case len(agents) > 1:
		return bad(check, list(agents)+" run in one network namespace, and undo each other's work", "stop all but one")
	case len(agents) == 1:
		return ok(check, "%s", agents[0])
	case len(seen) > 0:
		return warn(check, list(seen)+": perhaps in another network namespace", "look again as root")
	}
	return warn(check, "no miniproxy is seen to run here: rules stay as they are whatever the cluster does",
		"start it, unless it is in another container, whose processes cannot be seen from this one")
}

// KubeProxy judges whether a kube-proxy runs in this network namespace.
func KubeProxy(all []Process) Finding {
	const check, do = "kube-proxy", "take it off this node: docs/operations.md, The change, step 3"
	found := inNetwork(all, func(p Process) bool { return p.Name == "kube-proxy" })
	switch {
	case len(found) == 0:
		return ok(check, "none is seen to run here")
	case found[0].Network == NetworkUnknown:
		return warn(check, list(found)+": perhaps in another network namespace", do)
	}
	return bad(check, list(found)+" writes the same chains", do)
}

// writer is a program that writes to the same tables.
type writer struct {
	process string
	level   Level
	does    string
	do      string
}

// writers are the programs that people have met beside a Service proxy.
var writers = []writer{
	{"firewalld", Warn, "empties the tables when it is reloaded; miniproxy writes its rules again",
		"turn it off, or never reload it; --iptables-backend must be the one that it does not flush"},
	{"dockerd", OK, "sets the policy of FORWARD to DROP; Service traffic passes by KUBE-FORWARD", ""},
	{"kube-router", Warn, "may serve Services too", "run it with --run-service-proxy=false"},
	{"cilium-agent", Warn, "may serve Services too", "run it with kubeProxyReplacement=false"},
	{"calico-node", OK, "puts its jumps before ours, or behind them (chainInsertMode)", ""},
	{"fail2ban-server", OK, "inserts rules of its own at the head of INPUT", ""},
}

// OtherWriters says which programs run that write to the same tables.
func OtherWriters(all []Process) []Finding {
	var findings []Finding
	for _, w := range writers {
		found := inNetwork(all, func(p Process) bool { return p.Name == w.process })
		if len(found) > 0 {
			findings = append(findings, Finding{w.level, "other writers", list(found) + " " + w.does, w.do})
		}
	}
	if len(findings) == 0 {
		return []Finding{ok("other writers", "none is seen to run here")}
	}
	return findings
}

// UFW judges whether ufw, which leaves no process behind, has made its chains, in any
// of the filter tables' chains.
func UFW(chains []string) Finding {
	if slices.ContainsFunc(chains, func(name string) bool { return strings.HasPrefix(name, "ufw-") || strings.HasPrefix(name, "ufw6-") }) {
		return warn("ufw", "its chains are there: its rules for routed packets judge Service traffic too, and its reset empties the chains",
			"see that it lets forwarded packets pass: DEFAULT_FORWARD_POLICY in /etc/default/ufw")
	}
	return ok("ufw", "not there")
}

// list spells processes.
func list(processes []Process) string {
	var names []string
	for _, p := range processes {
		names = append(names, p.String())
	}
	return count(names, 4)
}

// Lock judges who holds the lock of iptables-legacy; nil for nobody. Whoever is seen
// to hold it has held it the whole time that was looked, so that it is not one of the
// many short ones.
func Lock(backend iptables.Backend, holder *Process) Finding {
	const check = "xtables lock"
	switch {
	case holder == nil:
		return ok(check, "not held")
	case backend == iptables.NFT:
		return ok(check, "%s holds it, which stops nobody on nft", holder)
	}
	return bad(check, holder.String()+" holds /run/xtables.lock: no rule can be written", "find out what it waits for, or end it")
}
