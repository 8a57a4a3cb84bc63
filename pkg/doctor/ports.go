package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Socket is a socket on which somebody waits for packets.
type Socket struct {
	// Protocol is "TCP" or "UDP".
	Protocol string
	Address  netip.AddrPort
	// Owner is who waits; nil if that cannot be seen.
	Owner *Process
}

// String returns such as "sshd (pid 7) on TCP 0.0.0.0:22".
func (s Socket) String() string {
	owner := "somebody"
	if s.Owner != nil {
		owner = s.Owner.String()
	}
	return fmt.Sprintf("%s on %s %s", owner, s.Protocol, s.Address)
}

func (s Socket) isAgents() bool { return s.Owner != nil && s.Owner.isAgent() }

// ServerPort judges whether the agent can serve one of its pages at an address. The
// zero address is a server that is switched off.
func ServerPort(name string, addr netip.AddrPort, sockets []Socket, agentRuns bool) Finding {
	check := "port of " + name
	if !addr.IsValid() {
		return ok(check, "switched off")
	}
	for _, s := range sockets {
		if s.Protocol != "TCP" || s.Address.Port() != addr.Port() || !overlap(s.Address.Addr(), addr.Addr()) {
			continue
		}
		switch {
		case s.isAgents():
			return ok(check, "%s, %s", addr, s.Owner)
		case s.Owner == nil && agentRuns:
			return ok(check, "%s, in use, most likely by the agent", addr)
		case s.Owner == nil:
			return warn(check, s.String()+": in use, and who it is cannot be seen", "see whether it is miniproxy")
		}
		return bad(check, s.String()+" is in the way of "+addr.String(), "end it, or choose another address in the configuration")
	}
	if agentRuns {
		return warn(check, addr.String()+" is served by nobody", "see the agent's log; it may have been given another address")
	}
	return ok(check, "%s is free", addr)
}

// overlap reports whether two sockets of one port stand in each other's way.
func overlap(a, b netip.Addr) bool { return a == b || a.IsUnspecified() || b.IsUnspecified() }

// PortUse is a port of the node's addresses that a Service has.
type PortUse struct {
	Protocol string
	Port     uint16
}

// The range that an API server gives node ports from, unless it was told otherwise
// (--service-node-port-range).
const firstNodePort, lastNodePort = 30000, 32767

// NodePorts judges who listens on node ports: the rules take the packets away from
// whoever does. used are the node ports of Services, and healthChecks those on which
// the agent itself listens, each with the Service's name.
func NodePorts(sockets []Socket, used, healthChecks map[PortUse]string) []Finding {
	const check = "node ports"
	var findings []Finding
	inRange := map[string]bool{}
	for _, s := range slices.SortedFunc(slices.Values(sockets), compareSockets) {
		use := PortUse{s.Protocol, s.Address.Port()}
		switch {
		case s.isAgents():
		case s.Address.Addr().IsLoopback() && used[use] == "":
			// A node port may be given this number later, and take 127.0.0.1 then.
			continue
		case used[use] != "":
			findings = append(findings, bad(check, fmt.Sprintf("%s, a node port of %s: connections from elsewhere go to the Service", s, used[use]),
				"give the program or the Service another port"))
		case healthChecks[use] != "" && s.Owner != nil:
			findings = append(findings, bad(check, fmt.Sprintf("%s, the health-check node port of %s: the agent cannot answer there", s, healthChecks[use]),
				"give the program or the Service another port"))
		case use.Port >= firstNodePort && use.Port <= lastNodePort && healthChecks[use] == "":
			inRange[s.String()] = true
		}
	}
	if len(inRange) > 0 {
		var names []string
		for name := range inRange {
			names = append(names, name)
		}
		slices.Sort(names)
		findings = append(findings, warn(check, fmt.Sprintf("in the usual range of %d to %d: %s; a Service may be given the port", firstNodePort, lastNodePort, count(names, 4)),
			"have the program use a port outside of the range"))
	}
	if len(findings) == 0 {
		return []Finding{ok(check, "%d in use, and nobody else listens on them", len(used))}
	}
	return findings
}

func compareSockets(a, b Socket) int {
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address))
}
