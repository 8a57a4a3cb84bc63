package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/audit"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
)

// Backend says which backend was chosen, and why.
func Backend(choice iptables.Choice) Finding {
	return ok("backend", "%s: %s", choice.Backend, choice.Reason)
}

// NoBackend says that none could be chosen.
func NoBackend(err error) Finding {
	return bad("backend", oneLine(err.Error()), "install iptables, or name a backend that is there with --iptables-backend")
}

// Programs judges the version of a family's programs.
func Programs(family model.Family, backend iptables.Backend, version string) Finding {
	check := "programs " + family.String()
	found := "iptables " + version + " for " + string(backend)
	switch {
	case before(version, 1, 6, 2):
		return warn(check, found+": MASQUERADE has no --random-fully, and connections may race for a port", "use 1.8.4 or newer")
	case backend == iptables.NFT && before(version, 1, 8, 3):
		return warn(check, found+": versions before 1.8.3 lose rules on this backend", "use 1.8.4 or newer")
	}
	return ok(check, "%s", found)
}

// before reports whether a version such as "1.8.9" is older than another one. One that
// cannot be read is not.
func before(version string, want ...int) bool {
	for i, part := range strings.Split(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || i >= len(want) || n > want[i] {
			return false
		}
		if n < want[i] {
			return true
		}
	}
	return false
}

// FamilyUnsupported says that one family cannot be served.
func FamilyUnsupported(family model.Family, err error) Finding {
	return warn("programs "+family.String(), oneLine(err.Error()),
		"nothing, if no Service has an address of this family; else install its programs, or load the kernel's nat table for it")
}

// Usage is what a backend holds, both families together.
type Usage struct {
	Backend iptables.Backend
	// Rules are those of everybody, Chains those with names of a Service proxy.
	Rules, Chains int
}

// String returns such as "rules: 84, chains of a Service proxy: 12".
func (u Usage) String() string {
	return fmt.Sprintf("rules: %d, chains of a Service proxy: %d", u.Rules, u.Chains)
}

// InUse judges what the chosen backend holds.
func InUse(u Usage) Finding {
	check := "rules in " + string(u.Backend)
	if u.Chains == 0 {
		return warn(check, u.String(), "start miniproxy, or see its log: it has written nothing here")
	}
	return ok(check, "%s", u)
}

// NotInUse judges what the backend holds that was not chosen. Packets pass through
// both.
func NotInUse(u Usage) Finding {
	check := "rules in " + string(u.Backend)
	switch {
	case u.Chains > 0:
		return bad(check, u.String()+"; packets pass through these too, and are led astray when they are no longer kept",
			"miniproxy cleanup --iptables-backend="+string(u.Backend))
	case u.Rules > 0:
		return warn(check, u.String()+"; another program uses this backend, and packets must pass its rules too",
			"have all programs of the node use one backend")
	}
	return ok(check, "none")
}

// Jumps judges the jump rules of a family.
func Jumps(family model.Family, differences []audit.Difference) Finding {
	check := "jump rules " + family.String()
	if len(differences) == 0 {
		return ok(check, "all in place")
	}
	var wrong []string
	obstacle := ""
	for _, d := range differences {
		wrong = append(wrong, fmt.Sprintf("%s %s", d.Chain, d.Why))
		for _, line := range d.Lines {
			if line.Op == ' ' && d.Why == string(iptables.JumpOutOfReach) {
				obstacle = fmt.Sprintf("; in the way: -A %s %s", d.Chain.Name, line.Text)
			}
		}
	}
	slices.Sort(wrong)
	return bad(check, count(slices.Compact(wrong), 3)+obstacle,
		"see that miniproxy runs, which puts them back within syncPeriod; miniproxy diff shows each")
}

// Capabilities says what the kernel and the programs of a family lack, by the features'
// names, each with what is lost without it.
func Capabilities(family model.Family, lost map[string]string) Finding {
	check := "capabilities " + family.String()
	if len(lost) == 0 {
		return ok(check, "everything that rules use is there")
	}
	var names []string
	for name, without := range lost {
		names = append(names, fmt.Sprintf("no %s: %s", name, without))
	}
	slices.Sort(names)
	return warn(check, strings.Join(names, ". "), "load the kernel's modules for them, or update iptables")
}

// count spells a list, with the number of those that do not fit.
func count(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
