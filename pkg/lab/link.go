package lab

import (
	"fmt"
	"net/netip"
)

// End is one end of a link: an interface of a host.
type End struct {
	Host *Host
	// Name is the interface's name, at most 15 bytes.
	Name string
	// Addrs are the interface's addresses with their on-link ranges.
	Addrs []netip.Prefix
	// Bridge makes the interface a port of that bridge of the host; empty for none.
	Bridge string
	// Hairpin lets a bridge port send a frame back out where it came in, which a pod
	// needs to reach itself through a Service address.
	Hairpin bool
}

// Link joins two hosts with a pair of interfaces (veth) and brings both up.
func (l *Lab) Link(a, b End) error {
	// The peer is made in its own namespace right away, so that no interface ever
	// shows up among the machine's own.
	err := a.Host.ip("link", "add", a.Name, "type", "veth", "peer", "name", b.Name, "netns", b.Host.netns)
	if err != nil {
		return fmt.Errorf("link %s to %s: %w", a.Host.name, b.Host.name, err)
	}
	for _, end := range []End{a, b} {
		if err := end.setUp(); err != nil {
			return fmt.Errorf("link %s to %s: %w", a.Host.name, b.Host.name, err)
		}
	}
	return nil
}

func (e End) setUp() error {
	if e.Bridge != "" {
		if err := e.Host.ip("link", "set", e.Name, "master", e.Bridge); err != nil {
			return err
		}
	}
	if e.Hairpin {
		if err := e.Host.ip("link", "set", e.Name, "type", "bridge_slave", "hairpin", "on"); err != nil {
			return err
		}
	}
	if err := e.Host.ip("link", "set", e.Name, "up"); err != nil {
		return err
	}
	return e.Host.AddAddrs(e.Name, e.Addrs...)
}

// Bridge adds a bridge with addresses of its own to the host and brings it up.
func (h *Host) Bridge(name string, addrs ...netip.Prefix) error {
	// Without snooping, IPv6 neighbours are found from the first moment on; with it,
	// only after the ports have reported which groups they listen to.
	err := h.ip("link", "add", name, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
	if err != nil {
		return err
	}
	if err := h.ip("link", "set", name, "up"); err != nil {
		return err
	}
	return h.AddAddrs(name, addrs...)
}

// AddAddrs adds addresses to an interface; they can be used at once.
func (h *Host) AddAddrs(dev string, addrs ...netip.Prefix) error {
	for _, addr := range addrs {
		args := []string{"addr", "add", addr.String(), "dev", dev}
		if addr.Addr().Is6() {
			args = append(args, "nodad")
		}
		if err := h.ip(args...); err != nil {
			return err
		}
	}
	return nil
}

// Route is one route of a host.
type Route struct {
	To netip.Prefix
	// Via is the next hop; the zero Addr for a range that is on the link.
	Via netip.Addr
	// Dev is the interface to leave by.
	Dev string
}

// AddRoutes adds routes to the host; a route to the same range is replaced.
func (h *Host) AddRoutes(routes ...Route) error {
	for _, r := range routes {
		args := []string{"route", "replace", r.To.String()}
		if r.Via.IsValid() {
			// The next hop may be outside of the interface's ranges: a pod's gateway is.
			args = append(args, "via", r.Via.String(), "dev", r.Dev, "onlink")
		} else {
			args = append(args, "dev", r.Dev)
		}
		if r.To.Addr().Is6() {
			args = append([]string{"-6"}, args...)
		}
		if err := h.ip(args...); err != nil {
			return err
		}
	}
	return nil
}
