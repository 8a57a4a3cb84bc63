package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// sandbox is the part of a pod that the network sees: a namespace with an address
// and servers in it. Any number of Pod objects, one after another, can stand for it.
type sandbox struct {
	*lab.Host
	node  string
	addrs []netip.Addr // one of each family, IPv4 first

	http *http.Server
	udp  net.PacketConn
}

// answer is what the servers of a sandbox say to everything.
type answer struct {
	Pod string `json:"pod"`
	// Client is the sender as the pod saw it.
	Client netip.AddrPort `json:"client"`
}

// newSandbox adds a pod to a node and starts its servers.
func newSandbox(node *lab.Node, name string, number int) (*sandbox, error) {
	host, err := node.AddPod(name, number)
	if err != nil {
		return nil, err
	}
	s := &sandbox{Host: host, node: node.Plan.Name, addrs: node.Plan.PodAddrs(number)}
	addr := fmt.Sprintf("[::]:%d", podPort) // both families
	ctx := context.Background()
	l, err := host.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{Handler: http.HandlerFunc(s.serveHTTP)}
	// One request per connection: rules choose an endpoint for a connection, and a
	// connection that is kept would be one choice only.
	s.http.SetKeepAlivesEnabled(false)
	go func() { _ = s.http.Serve(l) }() // ends with close
	if s.udp, err = host.ListenPacket(ctx, "udp", addr); err != nil {
		return nil, err
	}
	go s.serveUDP()
	return s, nil
}

func (s *sandbox) serveHTTP(w http.ResponseWriter, r *http.Request) {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(s.answerTo(client)) // the client notices
}

func (s *sandbox) serveUDP() {
	packet := make([]byte, 1500)
	for {
		_, from, err := s.udp.ReadFrom(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		_, _ = s.udp.WriteTo(s.answerTo(from.(*net.UDPAddr).AddrPort()), from) // the client notices
	}
}

// answerTo is the answer to a client, on one line.
func (s *sandbox) answerTo(client netip.AddrPort) []byte {
	text, err := json.Marshal(answer{
		Pod:    s.Name(),
		Client: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()),
	})
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

func (s *sandbox) close() {
	if s.http != nil {
		s.http.Close()
	}
	if s.udp != nil {
		s.udp.Close()
	}
}

// owns reports whether an address is the pod's.
func (s *sandbox) owns(addr netip.Addr) bool { return slices.Contains(s.addrs, addr) }

// addr is the pod's address in a family, 4 or 6.
func (s *sandbox) addr(family int) netip.Addr {
	for _, a := range s.addrs {
		if a.Is4() == (family == 4) {
			return a
		}
	}
	return netip.Addr{}
}

// addrPort is where the pod serves in a family, 4 or 6.
func (s *sandbox) addrPort(family int) netip.AddrPort {
	return netip.AddrPortFrom(s.addr(family), podPort)
}
