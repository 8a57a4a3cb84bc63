package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// TestMeasure measures a tiny cluster, once and on both backends, so that what is run
// on request only keeps working.
func TestMeasure(t *testing.T) {
	labtest.Require(t)
	binary := filepath.Join(t.TempDir(), "miniproxy")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/miniproxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build miniproxy: %v\n%s", err, out)
	}
	measured, err := findRows([]string{"miniproxy-nft", "miniproxy-legacy"})
	if err != nil {
		t.Fatal(err)
	}
	c := config{
		miniproxy: binary, load: load{services: 5, endpoints: 2}, rounds: 1, flips: 2, connections: 10,
		bound: 2 * time.Minute, rows: measured, logs: t.TempDir(),
	}
	api, err := newAPIServer(c.load)
	if err != nil {
		t.Fatal(err)
	}
	results, err := (&measurement{config: c, api: api}).all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.failure != nil {
			t.Errorf("%s: %v", r.row.name, r.failure)
			continue
		}
		if len(r.starts) != 1 || len(r.changes) != c.flips || len(r.via) != c.connections || len(r.direct) != c.connections || len(r.floor) != c.connections {
			t.Errorf("%s: %d starts, %d changes, and %d, %d and %d connections", r.row.name, len(r.starts), len(r.changes), len(r.via), len(r.direct), len(r.floor))
		}
		if r.agentPeak == 0 || r.agentEnd == 0 {
			t.Errorf("%s: no memory was measured", r.row.name)
		}
	}
}
