package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitForEvent waits until an agent has written a warning about a Service, for a
// reason and with text in its note.
func (ns *namespace) waitForEvent(t *testing.T, service, reason, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("an event %s about %s", reason, service), func() error {
		list, err := ns.c.client().EventsV1().Events(ns.name).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if e.Type == v1.EventTypeWarning && e.Regarding.Kind == "Service" && e.Regarding.Name == service &&
				e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
			others = append(others, fmt.Sprintf("%s %s: %s", e.Regarding.Name, e.Reason, e.Note))
		}
		return fmt.Errorf("events are %q", others)
	})
}

// youngerService makes a Service that is younger than another one in the eyes of the
// API, whose times have no fractions.
func (ns *namespace) youngerService(t *testing.T, than *v1.Service, name string, mutate ...func(*v1.Service)) *v1.Service {
	t.Helper()
	var svc *v1.Service
	eventually(t, "the next second", func() error {
		svc = ns.serviceUnseen(t, name, mutate...)
		if !svc.CreationTimestamp.After(than.CreationTimestamp.Time) {
			ns.deleteService(t, name)
			return fmt.Errorf("%s is as old as %s", name, than.Name)
		}
		return nil
	})
	ns.c.waitForRules(t, svc, portName(svc))
	return svc
}
