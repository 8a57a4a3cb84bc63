package conntrack

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// answerTime is how long an endpoint that still serves has for its SYN-ACK. It is
// long for a way there and back within a cluster, and short for a client that sends
// its SYN again after a second.
const answerTime = 100 * time.Millisecond

// FailoverRecorder is told how many connections were freed from an endpoint that
// had left.
type FailoverRecorder interface {
	ConnectionsFailedOver(fam model.Family, n int)
}

// Failover frees TCP connections of one family that wait for the answer of an
// endpoint that the rules do not lead to any more. Their clients' next SYN, one second
// after the first, meets the rules: it reaches a live endpoint, or is refused where
// there is none, which tells the client more than silence. It is not for concurrent
// use.
//
// It looks at the table only when an endpoint or a frontend of a Service port has
// gone, and the first time.
type Failover struct {
	fam   model.Family
	table Table
	rec   FailoverRecorder
	host  hostAddresses
	// dropEstablished has connections to endpoints that exist no more deleted, too,
	// whatever their state.
	dropEstablished bool

	// zone is where the served routes were chosen for, by the endpoints' hints.
	zone string
	// served are the routes of each TCP Service port, nil before the first call.
	served map[model.ServicePortName]routes
	// lost are the frontends that the table must be searched for, without backends.
	lost desired
	// outage says that for a time rules were missing.
	outage bool
	// unanswered are the entries of connections to where the rules lead that waited for
	// an answer when the table was searched after an outage.
	unanswered map[uint32]bool
}

// NewFailover returns a Failover that has done nothing yet. With dropEstablished,
// established connections to endpoints that were removed are deleted as well. Those
// to endpoints that are terminating or not ready never are.
func NewFailover(fam model.Family, table Table, rec FailoverRecorder, dropEstablished bool) *Failover {
	return &Failover{fam: fam, table: table, rec: rec, host: HostAddresses, dropEstablished: dropEstablished, lost: newDesired()}
}

// AfterOutage says that rules had been missing, or may have been: somebody flushed
// them, or the agent has just started. A SYN that came meanwhile went untranslated to
// where nobody answers, or to an endpoint whose answer went past this node, since the
// source was not masqueraded. So would all its repetitions; the next Clean frees these
// connections as well.
func (f *Failover) AfterOutage() {
	f.outage = true
}

// Clean frees the connections. Changed names the Service ports that may differ from
// the last call's snapshot. It can take a moment longer than it works: connections
// to an endpoint that still serves are given time to be answered.
func (f *Failover) Clean(ctx context.Context, snap model.Snapshot, changed []model.ServicePortName, nodePorts NodePorts) error {
	f.note(snap, changed)
	if f.lost.isEmpty() {
		f.outage = false
		return nil
	}
	d, err := f.behindLost(snap, nodePorts)
	if err == nil {
		err = f.free(ctx, d)
	}
	if err != nil {
		return fmt.Errorf("free %s TCP connections from endpoints that have left: %w", f.fam, err)
	}
	f.lost, f.outage = newDesired(), false
	return nil
}

// note remembers the routes of the snapshot, and the frontends that lost some.
func (f *Failover) note(snap model.Snapshot, changed []model.ServicePortName) {
	all := f.served == nil || f.outage
	if f.served == nil {
		f.served = map[model.ServicePortName]routes{}
	}
	if all || snap.Node.Zone != f.zone {
		changed = slices.AppendSeq(slices.Clone(changed), maps.Keys(snap.Services))
	}
	f.zone = snap.Node.Zone
	for _, name := range changed {
		if name.Protocol != model.TCP {
			continue
		}
		was, now := f.served[name], routesOf(snap, name, f.dropEstablished)
		if all || was.lostSome(now) {
			f.lose(was.frontends)
			f.lose(now.frontends)
		}
		if len(now.frontends) == 0 {
			delete(f.served, name)
		} else {
			f.served[name] = now
		}
	}
}

func (f *Failover) lose(frontends []netip.AddrPort) {
	for _, frontend := range frontends {
		if frontend.Addr().IsValid() {
			f.lost.services[frontend] = nil
		} else {
			f.lost.nodePorts[frontend.Port()] = nil
		}
	}
}

// behindLost returns the lost frontends with the backends that they have now. Of two
// Services on one frontend both count, whichever the rules prefer.
func (f *Failover) behindLost(snap model.Snapshot, nodePorts NodePorts) (desired, error) {
	d := desired{services: maps.Clone(f.lost.services), nodePorts: maps.Clone(f.lost.nodePorts)}
	for name, port := range snap.Services {
		if name.Protocol != model.TCP || !d.has(port) {
			continue
		}
		internal, external := choose(port, snap.Endpoints[name], snap.Node)
		d.fill(port, standings(snap.Endpoints[name], internal), standings(snap.Endpoints[name], external))
	}
	if len(d.nodePorts) == 0 {
		return d, nil
	}
	var err error
	if d.addresses, err = nodePorts.prefixes(f.fam, f.host); err != nil {
		return d, fmt.Errorf("find addresses of node ports: %w", err)
	}
	return d, nil
}

// free deletes the entries of connections that wait in vain.
//
// An endpoint that still serves, such as one that is terminating while others are
// ready, will answer the SYN that just reached it. Its connections get the time for
// that; no new one is led there.
//
// So have, after an outage, all connections that wait: those that began while rules
// were missing cannot be told from those that began just now.
func (f *Failover) free(ctx context.Context, d desired) error {
	f.unanswered = map[uint32]bool{}
	left, err := f.pass(ctx, d, up)
	if left == 0 || err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(answerTime):
	}
	_, err = f.pass(ctx, d, chosen)
	return err
}

// pass deletes the entries of connections that wait for an address which stands below
// a mark, or that waited for one in a former pass after an outage. It returns how many
// others wait where no new connection would be led.
func (f *Failover) pass(ctx context.Context, d desired, mark standing) (left int, err error) {
	logger := klog.FromContext(ctx)
	start := time.Now()
	waiting, established := batch{table: f.table}, batch{table: f.table}
	filter := Filter{Protocol: unix.IPPROTO_TCP, Unreplied: !f.dropEstablished}
	err = f.table.Dump(ctx, f.fam, filter, func(e Entry) error {
		to, ours := d.behind(e)
		switch is := to[e.ReplySource]; {
		case !ours:
		case !e.isTranslated():
			// It waits for a program on the node, or for nobody.
			if f.outage && e.Waiting && to.hasChosen() {
				logger.V(4).Info("TCP connection from the time without rules", "source", e.Source, "frontend", e.Destination)
				return waiting.add(ctx, e)
			}
		case e.Waiting && is < mark:
			logger.V(4).Info("TCP connection waits in vain", "source", e.Source, "frontend", e.Destination, "leadsTo", e.ReplySource)
			return waiting.add(ctx, e)
		case e.Waiting && is < chosen:
			left++
		case e.Waiting && f.unanswered[e.ID]:
			logger.V(4).Info("TCP connection from the time without rules", "source", e.Source, "frontend", e.Destination, "leadsTo", e.ReplySource)
			return waiting.add(ctx, e)
		case e.Waiting && f.outage:
			f.unanswered[e.ID] = true
			left++
		case f.dropEstablished && is == absent:
			logger.V(4).Info("TCP connection to a removed endpoint", "source", e.Source, "frontend", e.Destination, "leadsTo", e.ReplySource)
			return established.add(ctx, e)
		}
		return nil
	})
	err = cmp.Or(err, waiting.flush(ctx), established.flush(ctx))
	f.rec.ConnectionsFailedOver(f.fam, waiting.deleted)
	verbosity := 4
	if waiting.deleted+established.deleted > 0 {
		verbosity = 2
	}
	logger.V(verbosity).Info("Looked for TCP connections to endpoints that have left", "family", f.fam,
		"freed", waiting.deleted, "dropped", established.deleted, "left", left, "took", time.Since(start))
	return left, err
}
