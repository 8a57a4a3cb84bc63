package main

import (
	"github.com/miniproxy/miniproxy/pkg/nfacct"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/sysctl"
)

// hostAsFound is what the agent has found on the host, with nothing set and no
// accounting object made.
func hostAsFound() (host proxier.Host, err error) {
	if host.TCPBeLiberal, err = sysctl.New().TCPBeLiberal(); err != nil {
		return host, err
	}
	host.InvalidAccount = existing(nfacct.InvalidDropped)
	host.LocalhostAccount = existing(nfacct.LocalhostNodePorts)
	return host, nil
}

// existing returns the name of an accounting object if there is one of that name.
func existing(name string) string {
	if _, err := (nfacct.Kernel{}).Packets(name); err != nil {
		return ""
	}
	return name
}
