package iptables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

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

// legacyChainNames lists the chains of a table with list, unless the table is
// known not to exist.
func legacyChainNames(ctx context.Context, fam model.Family, table ruleset.Table, list func(table string) ([]string, error)) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tables, err := legacyTables(fam)
	if errors.Is(err, fs.ErrPermission) {
		return list(string(table)) // may create it; a rootless agent could not start otherwise
	}
	if err != nil || !slices.Contains(tables, table) {
		return nil, err
	}
	return list(string(table))
}
