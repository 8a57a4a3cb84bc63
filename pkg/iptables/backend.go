package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// Backend is which of the kernel's two implementations of iptables rules go to.
// The tables of one are invisible to the programs of the other, while packets pass
// through both.
type Backend string

// The backends. The zero value is none.
const (
	NFT    Backend = "nft"
	Legacy Backend = "legacy"
)

// backends lists both, the preferred one first.
var backends = [...]Backend{NFT, Legacy}

// ParseBackend reads a backend's name; "auto" and the empty string are the zero
// Backend, which leaves the choice to Detect.
func ParseBackend(s string) (Backend, error) {
	switch s {
	case "", "auto":
		return "", nil
	case string(NFT), string(Legacy):
		return Backend(s), nil
	}
	return "", fmt.Errorf("unknown iptables backend %q: want auto, nft or legacy", s)
}

// programs are the programs of one family and backend, by path.
type programs struct {
	tables, save, restore string
}

// findPrograms looks for the programs of a family and backend in PATH. The names
// with the backend in them come first: plain ones can be switched to the other
// backend while the agent runs.
func findPrograms(ctx context.Context, fam model.Family, backend Backend) (programs, error) {
	plain := "iptables"
	if fam == model.IPv6 {
		plain = "ip6tables"
	}
	p, err := lookPrograms(plain + "-" + string(backend))
	if err == nil {
		return p, nil
	}
	p, plainErr := lookPrograms(plain)
	if plainErr != nil {
		return programs{}, errors.Join(err, plainErr)
	}
	version, err := run(ctx, nil, p.tables, "--version")
	if err != nil {
		return programs{}, err
	}
	if is := backendOf(string(version)); is != backend {
		return programs{}, fmt.Errorf("%s is of the %s backend: %w", p.tables, is, exec.ErrNotFound)
	}
	return p, nil
}

// lookPrograms finds NAME, NAME-save and NAME-restore in PATH.
func lookPrograms(name string) (p programs, err error) {
	for suffix, path := range map[string]*string{"": &p.tables, "-save": &p.save, "-restore": &p.restore} {
		if *path, err = exec.LookPath(name + suffix); err != nil {
			return programs{}, fmt.Errorf("look for a program: %w", err)
		}
	}
	return p, nil
}

// backendOf tells the backend from what "iptables --version" prints. Versions
// before 1.8 name none, and are legacy.
func backendOf(version string) Backend {
	if strings.Contains(version, "(nf_tables)") {
		return NFT
	}
	return Legacy
}
