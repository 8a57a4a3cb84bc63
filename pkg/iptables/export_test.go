package iptables

// For the tests that compare the real kernel with the simulated one, which cannot
// be in this package since the simulated one imports it.
var (
	InNamespace = inNamespace
	EachRunner  = eachRunner
	Wipe        = wipe
)

// ChainsOf returns the seam under a Runner.
func ChainsOf(r *Runner) Chains { return r.seams.Chains }

// ExitStatus returns the exit status in an error.
func ExitStatus(err error) int { return exitStatus(err) }
