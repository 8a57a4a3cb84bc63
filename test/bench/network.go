package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// apiAddr is where the API server listens on the node.
const apiAddr = "127.0.0.1:8001"

// network is a node, and one machine that has the addresses of all pods.
type network struct {
	lab        *lab.Lab
	node, pods *lab.Host
	closers    []io.Closer
}

// newNetwork builds a network in which api answers on the node, and every pod answers a
// connection with the address that it was made to.
func newNetwork(ctx context.Context, api http.Handler) (n *network, err error) {
	n = &network{}
	if n.lab, err = lab.New("mpbench"); err != nil {
		return nil, err
	}
	if err = n.build(ctx); err == nil {
		err = n.serve(ctx, api)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *network) build(ctx context.Context) (err error) {
	if n.node, err = n.lab.Host(nodeName); err != nil {
		return err
	}
	if n.pods, err = n.lab.Host("pods"); err != nil {
		return err
	}
	err = n.lab.Link(
		lab.End{Host: n.node, Name: lab.Uplink, Addrs: []netip.Prefix{netip.PrefixFrom(nodeAddr, 24)}},
		lab.End{Host: n.pods, Name: lab.Uplink, Addrs: []netip.Prefix{netip.PrefixFrom(podsAddr, 24)}})
	if err != nil {
		return err
	}
	for _, r := range []netip.Prefix{podRange, serviceRange} {
		if err := n.node.AddRoutes(lab.Route{To: r, Via: podsAddr, Dev: lab.Uplink}); err != nil {
			return err
		}
		// Cluster IPs too: a connection that no rule has led to a pod is refused at once,
		// where it would otherwise wait for a timeout.
		if _, err := n.pods.Run(ctx, "ip", "route", "add", "local", r.String(), "dev", "lo"); err != nil {
			return err
		}
	}
	return n.node.Sysctl(lab.Setting{Path: "net/ipv4/ip_forward", Value: "1"})
}

func (n *network) serve(ctx context.Context, api http.Handler) error {
	l, err := n.node.Listen(ctx, "tcp", apiAddr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: api}
	n.closers = append(n.closers, server)
	go func() { _ = server.Serve(l) }() // it ends by close, never well

	pods, err := n.pods.Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), podPort).String())
	if err != nil {
		return err
	}
	n.closers = append(n.closers, pods)
	go answer(pods)
	return nil
}

// answer tells every client which address it has reached, until l is closed.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			// A client that only wanted to connect has gone, which is no matter.
			_, _ = io.WriteString(c, c.LocalAddr().(*net.TCPAddr).IP.String())
		}()
	}
}

func (n *network) close() {
	for _, c := range n.closers {
		_ = c.Close()
	}
	// What is left of it goes when this process does.
	_ = n.lab.Close()
}
