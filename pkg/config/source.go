package config

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Events is what a Source tells of. An old object of nil means that the new one was
// added, a new object of nil that the old one was deleted. The objects are shared:
// whoever receives them must not change them.
//
// Calls never overlap. An unchanged object may be delivered again.
type Events interface {
	ServiceChanged(old, new *v1.Service)
	EndpointSliceChanged(old, new *discoveryv1.EndpointSlice)
	NodeChanged(old, new *v1.Node)
	// Synced is called once, after the Services, the EndpointSlices and the Node that
	// exist at the start were delivered. There may be no Node.
	Synced()
}

// Source delivers the Services, the EndpointSlices and the local Node that the
// rules are made from.
type Source interface {
	// Run delivers events until ctx is done. It returns an error only for what no
	// waiting can mend.
	Run(ctx context.Context, ev Events) error
}
