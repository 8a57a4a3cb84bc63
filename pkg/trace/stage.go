package trace

import "github.com/miniproxy/miniproxy/pkg/ruleset"

// leg is a part of a packet's way through the host, between two decisions on
// where it goes.
type leg uint8

const (
	entering   leg = iota // PREROUTING of a packet from outside
	leaving               // OUTPUT of a packet that the host made
	forwarding            // FORWARD
	routed                // POSTROUTING
	returning             // what the host sends to itself, back from lo
	delivered             // INPUT
)

// legStages are the hooks and tables of each leg, in the order of the kernel's
// hook priorities.
var legStages = [...][]stage{
	entering:   {{"PREROUTING", ruleset.Mangle}, {"PREROUTING", ruleset.NAT}},
	leaving:    {{"OUTPUT", ruleset.Mangle}, {"OUTPUT", ruleset.NAT}, {"OUTPUT", ruleset.Filter}},
	forwarding: {{"FORWARD", ruleset.Mangle}, {"FORWARD", ruleset.Filter}},
	routed:     {{"POSTROUTING", ruleset.Mangle}, {"POSTROUTING", ruleset.NAT}},
	// nat has seen the connection in OUTPUT and POSTROUTING and is not asked again.
	returning: {{"PREROUTING", ruleset.Mangle}, {"INPUT", ruleset.Mangle}, {"INPUT", ruleset.Filter}},
	delivered: {{"INPUT", ruleset.Mangle}, {"INPUT", ruleset.Filter}, {"INPUT", ruleset.NAT}},
}

// enter puts a packet at the beginning of its way.
func (f *flow) enter(host Host) {
	if f.In != "" {
		f.begin(entering, f.In, "")
	} else {
		f.begin(leaving, "", host.Out(f.Destination))
	}
}

func (f *flow) begin(l leg, in, out string) {
	f.leg, f.in, f.out, f.later = l, in, out, legStages[l]
}

// leaves reports whether a packet that came to the end of its way left the host.
func (f *flow) leaves() bool { return f.leg == routed && f.verdict == "" }

// nextStage takes the packet into the next chain that a hook calls. It reports
// false at the end of the packet's way.
func (f *flow) nextStage(t *Tracer) bool {
	for {
		for len(f.later) > 0 {
			f.stage, f.later = f.later[0], f.later[1:]
			if f.stage.table == ruleset.NAT && f.State&ruleset.New == 0 {
				continue
			}
			c := t.chains[ruleset.ChainID{Table: f.stage.table, Name: f.stage.hook}]
			if c != nil {
				f.stack = append(f.stack[:0], frame{chain: c})
				f.policy = c.policy
				return true
			}
		}
		if !f.nextLeg(t.host) {
			return false
		}
	}
}

// nextLeg decides where the packet goes, as routing does.
func (f *flow) nextLeg(host Host) bool {
	own := host.Owns(f.Destination)
	switch {
	case f.leg == entering && own:
		f.begin(delivered, f.in, "")
	case f.leg == entering:
		f.begin(forwarding, f.in, host.Out(f.Destination))
	case f.leg == leaving:
		// The destination may be another one since OUTPUT began.
		f.begin(routed, "", host.Out(f.Destination))
	case f.leg == forwarding:
		f.begin(routed, f.in, f.out)
	case f.leg == routed && f.In == "" && own:
		f.begin(returning, Loopback, "")
	default:
		return false
	}
	return true
}

// endStage is the end of a built-in chain: its policy decides.
func (f *flow) endStage() {
	if f.policy == "DROP" {
		f.verdict = Dropped
	}
}
