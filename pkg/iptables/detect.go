package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// Choice is a backend, and the reason for it in words.
type Choice struct {
	Backend Backend
	Reason  string
}

// hintChains are the chains in mangle by which kubelet shows which backend the
// node uses (KEP-3178); the second one comes from versions before 1.24 too.
var hintChains = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// IsHint reports whether a chain is one of those that a kubelet keeps in mangle for
// others to see where the node's rules are.
func IsHint(id ruleset.ChainID) bool {
	return id.Table == ruleset.Mangle && slices.Contains(hintChains, id.Name)
}

// sharedTables are the tables that iptables and everything that imitates it use.
// Other nft tables say nothing about the choice between the backends.
var sharedTables = []ruleset.Table{"raw", ruleset.Mangle, ruleset.NAT, ruleset.Filter, "security"}

// enoughRules is where counting a backend's rules ends: a backend with so many is
// in use, and to count on would delay the start of an agent on a busy node.
const enoughRules = 5000

// Detect chooses the backend that the rest of the node uses: forced, unless that
// is empty; or else the one with kubelet's hint chain, the one with more rules,
// or nft. Rules in the other one would be invisible to the node's administrator,
// and packets would be translated twice. Looking creates no table.
func Detect(ctx context.Context, forced Backend) (Choice, error) {
	return choose(ctx, host{}, forced)
}

// looker looks at what each backend holds, of both families together.
type looker interface {
	// usable reports whether the backend's programs are there, and the kernel's part.
	usable(context.Context, Backend) (bool, error)
	// hinted reports whether the backend holds one of the hint chains.
	hinted(context.Context, Backend) (bool, error)
	// rules counts the backend's rules, up to enoughRules.
	rules(context.Context, Backend) (int, error)
}

func choose(ctx context.Context, look looker, forced Backend) (Choice, error) {
	usable, err := usableBackends(ctx, look)
	if err != nil {
		return Choice{}, err
	}
	switch {
	case forced != "" && slices.Contains(usable, forced):
		return Choice{forced, "as configured"}, nil
	case forced != "":
		return Choice{}, fmt.Errorf("the configured iptables backend %s cannot be used: its programs are not installed, or the kernel lacks it", forced)
	case len(usable) == 0:
		return Choice{}, errors.New("no usable iptables programs in PATH: install iptables")
	case len(usable) == 1:
		return Choice{usable[0], "the other one is not installed, or not in the kernel"}, nil
	}
	choice, err := chooseByContents(ctx, look, usable)
	if err != nil {
		return Choice{}, fmt.Errorf("find out which iptables backend the node uses (one that is configured need not be looked for): %w", err)
	}
	return choice, nil
}

func chooseByContents(ctx context.Context, look looker, usable []Backend) (Choice, error) {
	for _, b := range usable {
		hinted, err := look.hinted(ctx, b)
		if err != nil {
			return Choice{}, err
		}
		if hinted {
			return Choice{b, "it holds kubelet's hint chain"}, nil
		}
	}
	return chooseByRules(ctx, look)
}

func usableBackends(ctx context.Context, look looker) ([]Backend, error) {
	var usable []Backend
	for _, b := range backends {
		ok, err := look.usable(ctx, b)
		if err != nil {
			return nil, err
		}
		if ok {
			usable = append(usable, b)
		}
	}
	return usable, nil
}

func chooseByRules(ctx context.Context, look looker) (Choice, error) {
	nft, err := look.rules(ctx, NFT)
	if err != nil {
		return Choice{}, err
	}
	legacy, err := look.rules(ctx, Legacy)
	if err != nil {
		return Choice{}, err
	}
	switch {
	case legacy > nft:
		return Choice{Legacy, fmt.Sprintf("no hint chain of kubelet's, and it holds more rules (legacy %d, nft %d)", legacy, nft)}, nil
	case nft > legacy:
		return Choice{NFT, fmt.Sprintf("no hint chain of kubelet's, and it holds more rules (nft %d, legacy %d)", nft, legacy)}, nil
	}
	return Choice{NFT, "nothing speaks for legacy"}, nil
}

// FindChains lists the chains of one family in a backend for which owns says yes. Run
// with the backend that was not chosen, it tells whether rules of ours were left
// there. Looking creates no table. Legacy tables are read by their programs: of a family
// without them it finds none.
func FindChains(ctx context.Context, backend Backend, fam model.Family, owns func(ruleset.ChainID) bool) ([]ruleset.ChainID, error) {
	ids, err := host{}.chains(ctx, backend, fam)
	if err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(ids, func(id ruleset.ChainID) bool { return !owns(id) })
	slices.SortFunc(ids, ruleset.ChainID.Compare)
	return ids, nil
}

// CountRules counts the rules of a backend, of both families together. It ends at
// 5,000: what is there is in use then. Looking creates no table.
func CountRules(ctx context.Context, backend Backend) (int, error) {
	return host{}.rules(ctx, backend)
}

// HasLegacyTables reports whether the kernel has legacy tables of a family, whoever made
// them. They can be read only by its programs. The error wraps fs.ErrPermission where
// not even root may ask.
func HasLegacyTables(fam model.Family) (bool, error) {
	tables, err := legacyTables(fam)
	return len(tables) > 0, err
}

// CountChains counts what FindChains lists, of both families.
func CountChains(ctx context.Context, backend Backend, owns func(ruleset.ChainID) bool) (int, error) {
	n := 0
	for _, fam := range model.Families {
		ids, err := FindChains(ctx, backend, fam, owns)
		if err != nil {
			return 0, err
		}
		n += len(ids)
	}
	return n, nil
}

// host looks at this host's network namespace.
type host struct{}

func (host) usable(ctx context.Context, b Backend) (bool, error) {
	if b == NFT {
		if _, err := nftDump(ctx, model.IPv4, nftQuery{object: nftTables, limit: 1}); errors.Is(err, errNoNFT) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	for _, fam := range model.Families {
		_, err := findPrograms(ctx, fam, b)
		if err == nil {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, err
		}
	}
	return false, nil
}

func (h host) hinted(ctx context.Context, b Backend) (bool, error) {
	for _, fam := range model.Families {
		ids, err := h.chains(ctx, b, fam)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(ids, IsHint) {
			return true, nil
		}
	}
	return false, nil
}

func (h host) rules(ctx context.Context, b Backend) (int, error) {
	n := 0
	for _, fam := range model.Families {
		count := h.legacyRules
		if b == NFT {
			count = h.nftRules
		}
		rules, err := count(ctx, fam)
		if err != nil {
			return 0, err
		}
		n += rules
	}
	return min(n, enoughRules), nil
}

func (host) nftRules(ctx context.Context, fam model.Family) (int, error) {
	rules, err := nftDump(ctx, fam, nftQuery{object: nftRules, tables: sharedTables, limit: enoughRules})
	if errors.Is(err, errNoNFT) {
		return 0, nil
	}
	return len(rules), err
}

func (h host) legacyRules(ctx context.Context, fam model.Family) (int, error) {
	saved, err := h.saveLegacy(ctx, fam)
	return strings.Count(saved, "\n-A "), err
}

// chains lists the chains of a backend's tables.
func (h host) chains(ctx context.Context, b Backend, fam model.Family) ([]ruleset.ChainID, error) {
	var ids []ruleset.ChainID
	if b == NFT {
		chains, err := nftDump(ctx, fam, nftQuery{object: nftChains, tables: sharedTables})
		if errors.Is(err, errNoNFT) {
			return nil, nil
		}
		for _, c := range chains {
			ids = append(ids, ruleset.ChainID{Table: ruleset.Table(c.table), Name: c.name})
		}
		return ids, err
	}
	saved, err := h.saveLegacy(ctx, fam)
	if err != nil {
		return nil, err
	}
	var table ruleset.Table
	for line := range strings.Lines(saved) {
		switch line[0] {
		case '*':
			table = ruleset.Table(strings.TrimSpace(line[1:]))
		case ':':
			name, _, _ := strings.Cut(line[1:], " ")
			ids = append(ids, ruleset.ChainID{Table: table, Name: name})
		}
	}
	return ids, nil
}

// saveLegacy returns all legacy tables of a family that exist, as text.
func (host) saveLegacy(ctx context.Context, fam model.Family) (string, error) {
	tables, err := legacyTables(fam)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // what nobody may list speaks neither for the backend nor against it
	}
	if err != nil || len(tables) == 0 {
		return "", err
	}
	found, err := findPrograms(ctx, fam, Legacy)
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil // tables of a family that nobody here can work on
	}
	if err != nil {
		return "", err
	}
	// Without -t it saves the tables that exist, and creates none.
	saved, err := run(ctx, nil, found.save)
	return string(saved), err
}
