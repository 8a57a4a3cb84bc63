package config

import "testing"

func TestIsServiceAddress(t *testing.T) {
	t.Setenv("KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1")
	t.Setenv("KUBERNETES_SERVICE_HOST", "control-plane.example") // as a manifest may set it
	for server, want := range map[string]bool{
		"https://10.96.0.1:443":                  true,
		"10.96.0.1":                              true,
		"https://kubernetes.default.svc:443":     true,
		"https://kubernetes.default.example:443": false,
		"https://control-plane.example:6443":     false,
		"https://192.0.2.1:6443":                 false,
		"ftp://10.96.0.1":                        false,
		"":                                       false,
	} {
		if got := IsServiceAddress(server); got != want {
			t.Errorf("%q: got %t, want %t", server, got, want)
		}
	}
}
