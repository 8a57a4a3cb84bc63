package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentUser is how the API server calls the agent's ServiceAccount.
const agentUser = "system:serviceaccount:" + agentNamespace + ":" + agentAccount

// auditPolicy makes the API server note what the agents ask it for, by the time it
// begins to answer: a watch ends much later.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + agentUser + `"]
- level: None
`

// access is one thing that a role can allow.
type access struct{ verb, group, resource string }

func (a access) String() string { return fmt.Sprintf("%s %s.%s", a.verb, a.resource, a.group) }

// audited is a line of the API server's audit log.
type audited struct {
	Verb      string
	SourceIPs []netip.Addr
	ObjectRef struct{ APIGroup, Resource string }
	// ResponseStatus of a watch is 200 as soon as it has begun.
	ResponseStatus struct{ Code int }
}

// auditLog is the file that auditPolicy fills.
func (cp *controlPlane) auditLog() string { return filepath.Join(cp.dir, "audit.log") }

// asked is what the agent on a node has asked the API server for, after the first
// offset bytes of the audit log, and whether it was let: false if it was refused even
// once.
func (c *cluster) asked(t *testing.T, n *node, offset int64) map[access]bool {
	t.Helper()
	let := map[access]bool{}
	text, err := os.ReadFile(c.cp.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text[offset:])) {
		var event audited
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("audit log: %v in %q", err, line)
		}
		if !slices.ContainsFunc(event.SourceIPs, n.owns) {
			continue
		}
		a := access{event.Verb, event.ObjectRef.APIGroup, event.ObjectRef.Resource}
		refused := event.ResponseStatus.Code == http.StatusForbidden || event.ResponseStatus.Code == http.StatusUnauthorized
		before, known := let[a]
		let[a] = (before || !known) && !refused
	}
	return let
}

// waitUntilAsked waits until the agent on a node was let do something.
func (c *cluster) waitUntilAsked(t *testing.T, n *node, offset int64, a access) {
	t.Helper()
	eventually(t, fmt.Sprintf("the agent on %s to %s", n.Plan.Name, a), func() error {
		if !c.asked(t, n, offset)[a] {
			return errors.New("it has not")
		}
		return n.agent.alive()
	})
}

// granted is what the role in the cluster, applied from the manifest, allows.
func (c *cluster) granted(t *testing.T) []access {
	t.Helper()
	role, err := c.client().RbacV1().ClusterRoles().Get(t.Context(), agentAccount, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []access
	for _, rule := range role.Rules {
		all = append(all, accesses(rule)...)
	}
	return all
}

func accesses(rule rbacv1.PolicyRule) []access {
	var all []access
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all = append(all, access{verb, group, resource})
			}
		}
	}
	return all
}
