package golden

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/trace"
)

// parseHost reads host.txt.
func parseHost(text string) (trace.Host, error) {
	var h trace.Host
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 0 {
			if err := addFact(&h, fields); err != nil {
				return trace.Host{}, fmt.Errorf("host.txt, line %d: %w", number, err)
			}
		}
	}
	if len(h.Interfaces) == 0 {
		return trace.Host{}, errors.New("host.txt: no interface")
	}
	return h, nil
}

func addFact(h *trace.Host, fields []string) error {
	switch {
	case fields[0] == "route":
		if len(fields) != 4 || fields[2] != "dev" {
			return errors.New("want: route RANGE dev NAME")
		}
		to, err := netip.ParsePrefix(fields[1])
		if err != nil {
			return err
		}
		h.Routes = append(h.Routes, trace.Route{To: to, Dev: fields[3]})
	case fields[0] == "port":
		if len(fields) != 4 || fields[2] != "of" {
			return errors.New("want: port NAME of BRIDGE")
		}
		h.BridgePorts = append(h.BridgePorts, trace.BridgePort{Name: fields[1], Bridge: fields[3]})
	default:
		i := trace.Interface{Name: fields[0]}
		for _, f := range fields[1:] {
			p, err := netip.ParsePrefix(f)
			if err != nil {
				return err
			}
			i.Addrs = append(i.Addrs, p)
		}
		h.Interfaces = append(h.Interfaces, i)
	}
	return nil
}
