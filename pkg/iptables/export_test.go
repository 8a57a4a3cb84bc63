package iptables

// For the tests that compare the real kernel with the simulated one, which cannot
// be in this package since the simulated one imports it.
var (
	InNamespace = inNamespace
	EachRunner  = eachRunner
	Wipe        = wipe
)
