package iptables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// legacyTables lists the tables of the legacy backend that exist in this network
// namespace. Any iptables-legacy command would create the table that it asks for,
// and every packet would pass through that table from then on. In a user namespace
// other than the host's, the kernel does not let even root read the list: the error
// is fs.ErrPermission then.
func legacyTables(fam model.Family) ([]ruleset.Table, error) {
	// Of the thread, since /proc/net is that of the process's first thread.
	path := "/proc/thread-self/net/ip_tables_names"
	if fam == model.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no such backend, or has not loaded it
	}
	if err != nil {
		return nil, fmt.Errorf("list the legacy tables: %w", err)
	}
	defer f.Close()
	var tables []ruleset.Table
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		tables = append(tables, ruleset.Table(lines.Text()))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list the legacy tables: %w", err)
	}
	return tables, nil
}

// legacyChainNames lists the chains of a table, unless it is known not to exist.
func (s *Seams) legacyChainNames(ctx context.Context, fam model.Family, table ruleset.Table) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tables, err := legacyTables(fam)
	switch {
	case errors.Is(err, fs.ErrPermission):
		// To list it may create it; a rootless agent could not start otherwise.
	case err != nil || !slices.Contains(tables, table):
		return nil, err
	}
	return s.listChains(ctx, table)
}

// errRules says that what follows in a list are rules.
var errRules = errors.New("rules follow")

// listChains reads the names of a table's chains, which a list begins with, and not the
// rules after them: of 10,000 Services these are 50 MB.
func (s *Seams) listChains(ctx context.Context, table ruleset.Table) ([]string, error) {
	var names []string
	err := s.lines(ctx, func(lines *bufio.Scanner) error {
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 2 || fields[0] != "-P" && fields[0] != "-N" {
				return errRules
			}
			names = append(names, fields[1])
		}
		return lines.Err()
	}, s.Tables, "-w", strconv.Itoa(s.LockWait), "-t", string(table), "-S")
	if err != nil && !errors.Is(err, errRules) {
		return nil, err
	}
	return names, nil
}
