// Package iptables is the door to the kernel's netfilter tables, and the only
// package that runs iptables. It applies restore transactions, keeps jump rules
// and single chains, lists chain names, chooses between the nft and the legacy
// backend, tells of what other programs change, and cleans up.
//
// It changes only what it is told to, with --noflush throughout. An error that
// means "could not look" is never taken for "is not there": see IsBusy.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os/exec"
	"slices"
	"strconv"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// lockWait is how long a program waits for the lock of the legacy backend, in
// seconds. It is bounded: an agent that waits forever looks healthy and is not.
const lockWait = 5

// Chains is the part of go-iptables that a Runner uses, for single chains and
// rules. Errors have the method ExitStatus() int if a program gave one.
type Chains interface {
	ChainExists(table, chain string) (bool, error)
	NewChain(table, chain string) error
	// List returns a chain's rules as iptables -S prints them, its declaration first.
	List(table, chain string) ([]string, error)
	// Exists asks the kernel whether an equal rule is in the chain.
	Exists(table, chain string, rule ...string) (bool, error)
	Insert(table, chain string, position int, rule ...string) error
}

// Seams is what a Runner stands on. New fills it with the real things; a
// simulated kernel fills it with its own.
type Seams struct {
	// Run runs a program with the given standard input and returns its standard
	// output. Failures are of type *CommandError.
	Run func(ctx context.Context, input []byte, program string, args ...string) ([]byte, error)
	// Stream runs a program and hands over its standard output while it runs, for what
	// is too much to be kept. Without it Run is used.
	Stream func(ctx context.Context, read func(io.Reader) error, program string, args ...string) error
	// Save and Restore are the programs that Run is asked for.
	Save, Restore string
	// Chains works on single chains and rules, with the program Tables.
	Chains Chains
	Tables string
	// ChainNames lists the chains of a table, nil for a table that does not exist,
	// and does not create it.
	ChainNames func(ctx context.Context, table ruleset.Table) ([]string, error)
	// Version is that of the programs, such as "1.8.9".
	Version string
	// LockWait is how long Restore waits for the lock, in seconds.
	LockWait int
}

// Runner works on the tables of one IP family in one backend. Its methods may be
// called from several goroutines; each is a process or a few, so none is instant.
type Runner struct {
	family  model.Family
	backend Backend
	seams   Seams
	own     *ownWrites
	seed    maphash.Seed // of the hashes of rules
	notices int          // how many bytes of the kernel's notices may wait
}

// New returns a Runner that works with the programs in PATH. It touches no table.
// The error wraps ErrFamilyUnsupported if the programs for the family are missing
// or say so themselves.
func New(ctx context.Context, fam model.Family, backend Backend) (*Runner, error) {
	seams, err := realSeams(ctx, fam, backend, lockWait)
	if errors.Is(err, exec.ErrNotFound) || exitStatus(err) == exitUnsupported {
		err = fmt.Errorf("%w: %w", ErrFamilyUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("use %s iptables for %v: %w", backend, fam, err)
	}
	return NewWith(fam, backend, seams), nil
}

// NewWith returns a Runner that stands on the given seams.
func NewWith(fam model.Family, backend Backend, seams Seams) *Runner {
	r := &Runner{family: fam, backend: backend, seams: seams, own: &ownWrites{}, seed: maphash.MakeSeed(), notices: watchBuffer}
	r.seams.Chains = notedChains{Chains: seams.Chains, own: r.own, program: seams.Tables}
	return r
}

// realSeams finds the programs of a family and backend.
func realSeams(ctx context.Context, fam model.Family, backend Backend, lockWait int) (Seams, error) {
	found, err := findPrograms(ctx, fam, backend)
	if err != nil {
		return Seams{}, err
	}
	// go-iptables asks for the version too, but drops the exit status.
	if _, err := run(ctx, nil, found.tables, "--version"); err != nil {
		return Seams{}, err
	}
	protocol := goiptables.ProtocolIPv4
	if fam == model.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	chains, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(found.tables), goiptables.Timeout(lockWait))
	if err != nil {
		return Seams{}, err
	}
	major, minor, patch := chains.GetIptablesVersion()
	seams := Seams{
		Run:      run,
		Stream:   stream,
		Tables:   found.tables,
		Save:     found.save,
		Restore:  found.restore,
		Chains:   chains,
		Version:  fmt.Sprintf("%d.%d.%d", major, minor, patch),
		LockWait: lockWait,
	}
	seams.ChainNames = func(ctx context.Context, table ruleset.Table) ([]string, error) {
		if backend == NFT {
			return nftChainNames(ctx, fam, table)
		}
		return seams.legacyChainNames(ctx, fam, table)
	}
	return seams, nil
}

// Family is the IP family whose tables the Runner works on.
func (r *Runner) Family() model.Family { return r.family }

// Backend is the backend that the Runner works on.
func (r *Runner) Backend() Backend { return r.backend }

// Version is the version of the iptables programs, such as "1.8.9".
func (r *Runner) Version() string { return r.seams.Version }

// Supported looks whether the kernel has a nat table for the family. The error
// wraps ErrFamilyUnsupported if it has none; any other error leaves that open. On
// the legacy backend looking creates the table.
func (r *Runner) Supported(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	const chain = "POSTROUTING"
	_, err := r.seams.Chains.ChainExists(string(ruleset.NAT), chain)
	if exitStatus(err) == exitUnsupported {
		// iptables-nft says the same of a chain with a rule that it cannot read, such as
		// one of a newer iptables. Nobody's rule may cost the node a whole family.
		names, lookErr := r.ChainNames(ctx, ruleset.NAT)
		if lookErr == nil && slices.Contains(names, chain) {
			return nil
		}
		err = fmt.Errorf("%w: %w", ErrFamilyUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("look at the nat table of %v: %w", r.family, err)
	}
	return nil
}

// Restore applies a restore transaction: chains that it declares are replaced,
// all others are left as they are, with their counters. Each table of the input
// takes effect whole or not at all. The error is a *RestoreError if iptables-restore
// ran and failed.
func (r *Runner) Restore(ctx context.Context, input []byte) error {
	if r.backend == NFT {
		// One that fails may have written a table before it came to another.
		defer r.own.begin(r.seams.Restore, touchedBy(input))(true)
	}
	_, err := r.seams.Run(ctx, input, r.seams.Restore, "-w", strconv.Itoa(r.seams.LockWait), "--noflush", "--counters")
	if failed, ok := errors.AsType[*CommandError](err); ok && failed.Status >= 0 {
		return newRestoreError(failed, input)
	}
	return err
}

// Save returns a table as text in the form of iptables-save, without counters of
// rules. On the nft backend a table of 100,000 chains takes minutes. On the legacy
// backend looking creates the table.
func (r *Runner) Save(ctx context.Context, table ruleset.Table) ([]byte, error) {
	return r.seams.Run(ctx, nil, r.seams.Save, "-t", string(table))
}

// ChainNames lists the names of a table's chains, sorted, the built-in ones among
// them. A table that does not exist has none, and is not created.
func (r *Runner) ChainNames(ctx context.Context, table ruleset.Table) ([]string, error) {
	names, err := r.seams.ChainNames(ctx, table)
	if err != nil {
		return nil, fmt.Errorf("list the chains of %v table %s: %w", r.family, table, err)
	}
	slices.Sort(names)
	return names, nil
}

// HasChain reports whether a chain exists. Any error leaves that open.
func (r *Runner) HasChain(ctx context.Context, id ruleset.ChainID) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	found, err := r.seams.Chains.ChainExists(string(id.Table), id.Name)
	if err != nil {
		return false, fmt.Errorf("look for %v chain %v: %w", r.family, id, err)
	}
	if found {
		return true, nil
	}
	// iptables-nft answers in the same way when it could not read the table, or the
	// chain holds a native nft rule. A missing chain is rare and costs a full resync,
	// so a second and different look must agree.
	names, err := r.ChainNames(ctx, id.Table)
	return slices.Contains(names, id.Name), err
}

// EnsureChain creates a chain if it does not exist, and reports whether it did.
func (r *Runner) EnsureChain(ctx context.Context, id ruleset.ChainID) (created bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	err = r.seams.Chains.NewChain(string(id.Table), id.Name)
	if exitStatus(err) == exitNotFound {
		// It means "is there already" here, and on the nft backend a few other things.
		if found, lookErr := r.HasChain(ctx, id); found || lookErr != nil {
			return false, lookErr
		}
	}
	if err != nil {
		return false, fmt.Errorf("create %v chain %v: %w", r.family, id, err)
	}
	return true, nil
}
