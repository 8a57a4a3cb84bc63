package tracker

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// What no API server lets in gets no rules, and is named. The rest of the Service is
// served.
func TestUnfit(t *testing.T) {
	tests := []struct {
		name   string
		change func(*corev1.Service)
		ports  int
		said   string
	}{
		{"a plain Service", func(*corev1.Service) {}, 1, ""},
		{"a colon in the name", func(s *corev1.Service) { s.Name = "a:b" }, 0, `the name "a:b"`},
		{"a slash in the name", func(s *corev1.Service) { s.Name = "a/b" }, 0, `the name "a/b"`},
		{"a slash in the namespace", func(s *corev1.Service) { s.Namespace = "a/b" }, 0, `the namespace "a/b"`},
		{"a protocol without ports", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "ICMP" }, 0, "there is no ICMP port"},
		{"a protocol in small letters", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "tcp" }, 0, "there is no tcp port"},
		{"a port beyond the last", func(s *corev1.Service) { s.Spec.Ports[0].Port = 65536 }, 0, "there is no TCP port 65536"},
		{"one good port of two", func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "bad", Protocol: "x\ny", Port: 1})
		}, 1, `port "bad"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := newService(tt.change)
			if got := len(servicePorts(svc, model.IPv4)); got != tt.ports {
				t.Errorf("got %d ports, want %d", got, tt.ports)
			}
			switch err := Unfit(svc); {
			case err == nil && tt.said != "":
				t.Errorf("nothing is said, want %q", tt.said)
			case err != nil && (tt.said == "" || !strings.Contains(err.Error(), tt.said)):
				t.Errorf("got %q, want %q", err, tt.said)
			}
		})
	}
}
