package model

// Snapshot is what one family of the cluster looked like at one moment. It is
// lent to one sync; its maps must not be changed.
type Snapshot struct {
	Node      NodeFacts
	Services  map[ServicePortName]ServicePort
	Endpoints map[ServicePortName][]Endpoint
}
