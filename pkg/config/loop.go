package config

import (
	"net/url"
	"os"
)

// IsServiceAddress reports whether a server is an address or name of the Service
// "kubernetes". It can be reached as long as a proxy's rules lead there, and no longer
// after the node's next boot: see LoopError.
func IsServiceAddress(server string) bool {
	u, err := parseServer(server)
	return err == nil && connector{getenv: os.Getenv}.areServiceAddresses([]*url.URL{u})
}
