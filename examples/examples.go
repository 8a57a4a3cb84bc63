// Package examples holds the manifests in this directory: small clusters to read, to
// render and to run the agent on. The demo runs the first two.
package examples

import "embed"

// FS holds the manifests by file name.
//
//go:embed *.yaml
var FS embed.FS

// Demo names the files that the demo runs: a Service with a cluster IP, one with a
// node port, and the nodes.
func Demo() []string { return []string{"nodes.yaml", "01-clusterip.yaml", "02-nodeport.yaml"} }
