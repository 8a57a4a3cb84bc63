package doctor

import (
	"fmt"
	"net/http"
)

// Cluster is where the agent would learn what the cluster says.
type Cluster struct {
	// Source names it, such as "https://10.0.0.1:6443" or "manifests in DIR".
	Source string
	// IsServiceAddress says that Source is the address of the Service "kubernetes".
	IsServiceAddress bool
	// Err is why it could not be asked. IsLoop says that the reason is that it would need
	// the rules that are made from its answer.
	Err    error
	IsLoop bool
	// Node is the name of the node, and HasNode says that there is a Node object of it.
	Node    string
	HasNode bool
	// Services is how many Service ports there are.
	Services int
}

// loopHelp says how the agent reaches the API server without Services.
const loopHelp = "give it an address that needs no Service: --api-servers=https://CONTROL-PLANE:6443, the variable CONTROL_PLANE_ENDPOINT, or a kubeconfig with such a server"

// Judge judges how the cluster can be reached, and what it says of the node.
func (c Cluster) Judge() []Finding {
	const route, node = "cluster", "Node object"
	switch {
	case c.IsLoop:
		return []Finding{bad(route, c.Err.Error(), loopHelp)}
	case c.Err != nil:
		return []Finding{bad(route, c.Err.Error(), "see that the address is right, that the way there is open, and that the agent may list Services, EndpointSlices and its Node")}
	}
	found := fmt.Sprintf("%s, %d Service ports", c.Source, c.Services)
	findings := []Finding{ok(route, "%s", found)}
	if c.IsServiceAddress {
		findings[0] = warn(route, found+": this is the address of the Service \"kubernetes\", which leads there only while rules are in the kernel, and not after the next boot", loopHelp)
	}
	if !c.HasNode {
		return append(findings, bad(node, fmt.Sprintf("there is none called %q: which endpoints and addresses are this node's is unknown", c.Node),
			"set --hostname-override, or NODE_NAME, to the name that kubectl get nodes shows"))
	}
	return append(findings, ok(node, "%s", c.Node))
}

// Health judges what the agent's /livez answered. Without an agent nobody answers.
func Health(address string, status int, body string, err error, agentRuns bool) Finding {
	const check = "health"
	switch {
	case address == "":
		return ok(check, "switched off")
	case err != nil && !agentRuns:
		return warn(check, oneLine(err.Error()), "start miniproxy")
	case err != nil:
		return bad(check, oneLine(err.Error()), "see the agent's log")
	case status != http.StatusOK:
		return bad(check, fmt.Sprintf("http://%s/livez answers %d: %s", address, status, oneLine(body)),
			"see the agent's log: a change has waited too long for the kernel")
	}
	return ok(check, "http://%s/livez answers %d", address, status)
}
