package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

const renderUsage = `Prints what the agent would write for manifests, as input of iptables-restore. It needs neither
root nor a cluster:

  miniproxy render -f examples --node n1
`

// renderManifests prints the iptables-restore input that the agent would write for
// manifests. It needs neither root nor iptables nor a cluster.
func renderManifests(_ context.Context, args []string, std streams) error {
	o := newOptions("render")
	o.about = renderUsage
	files := o.set.StringArrayP("file", "f", nil, "File or directory of manifests, or - for standard input. May be given again.")
	node := o.set.String("node", "", "Node to render for; the same as --hostname-override.")
	family := o.set.String("family", "ipv4", "IP family: ipv4 or ipv6.")
	table := o.set.String("table", "", "Table to print: filter or nat. Default: both.")
	c, err := o.parse(args, std)
	if err != nil {
		return err
	}
	fam, err := parseFamily(*family)
	if err != nil {
		return usageError{err}
	}
	tables, err := parseTables(*table)
	if err != nil {
		return usageError{err}
	}
	if len(*files) == 0 {
		return usageError{errors.New("nothing to render: name manifests with -f")}
	}
	objects, err := config.ReadManifests(*files...)
	if err != nil {
		return usageError{err}
	}
	for _, note := range objects.Notes {
		fmt.Fprintln(std.err, "miniproxy:", note)
	}
	if *node != "" {
		c = withNodeName(c, *node)
	}
	if names := nodesOf(objects); len(names) > 0 && !slices.Contains(names, c.NodeName) {
		fmt.Fprintf(std.err, "miniproxy: nothing in the manifests is on node %q, so that all endpoints are elsewhere; --node takes another, such as %s\n",
			c.NodeName, names[0])
	}
	chains, conflicts := o.renderObjects(c, fam, objects)
	for _, conflict := range conflicts {
		fmt.Fprintf(std.err, "miniproxy: %s is not served at %s: %s has it\n", conflict.Loser, conflict.Frontend, conflict.Winner)
	}
	return printRules(std.out, fam, chains, tables)
}

// nodesOf lists the nodes that objects name.
func nodesOf(objects config.Objects) []string {
	names := map[string]bool{}
	for _, node := range objects.Nodes {
		names[node.Name] = true
	}
	for _, slice := range objects.EndpointSlices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.NodeName != nil {
				names[*endpoint.NodeName] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func parseFamily(name string) (model.Family, error) {
	for _, family := range model.Families {
		if strings.EqualFold(name, family.String()) {
			return family, nil
		}
	}
	return 0, fmt.Errorf("--family: %q is no IP family: use ipv4 or ipv6", name)
}

func parseTables(name string) ([]ruleset.Table, error) {
	switch table := ruleset.Table(name); table {
	case "":
		return render.Tables(), nil
	case ruleset.Filter, ruleset.NAT:
		return []ruleset.Table{table}, nil
	}
	return nil, fmt.Errorf("--table: %q is no table with rules of ours: use filter or nat", name)
}

// withNodeName returns the configuration for another node.
func withNodeName(c *config.Config, name string) *config.Config {
	other := *c
	other.NodeName = strings.ToLower(strings.TrimSpace(name))
	return &other
}

// renderObjects renders what one family of the objects asks of the node. Where the
// agent would ask the host for its addresses, the Node's are taken.
func (o *options) renderObjects(c *config.Config, family model.Family, objects config.Objects) ([]ruleset.Chain, []render.Conflict) {
	snapshot := viewOf(c, objects).snapshot(family)
	host := proxier.Host{
		Addresses:    append([]netip.Addr{localhost(family)}, snapshot.Node.Addresses...),
		RandomFully:  true,
		TCPBeLiberal: c.Conntrack.TCPBeLiberal,
	}
	return render.Snapshot(snapshot, o.rendering(c, family, snapshot.Node, host))
}

func localhost(family model.Family) netip.Addr {
	if family == model.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// printRules prints chains as input for iptables-restore --noflush, with the jump
// rules, which are not part of such input, as comments.
func printRules(out io.Writer, family model.Family, chains []ruleset.Chain, tables []ruleset.Table) error {
	var text []byte
	for _, table := range tables {
		text = appendJumps(text, family, chains, table)
		b := ruleset.NewBuilder(table)
		for _, chain := range chains {
			b.Write(chain)
		}
		text = append(text, bytes.Join(b.Take(), nil)...)
	}
	_, err := out.Write(text)
	return err
}

// appendJumps appends the commands, as comments, that put the jump rules of a table where
// the agent would put them. They can be run once the chains are there.
func appendJumps(text []byte, family model.Family, chains []ruleset.Chain, table ruleset.Table) []byte {
	program := "iptables"
	if family == model.IPv6 {
		program = "ip6tables"
	}
	text = append(text, "# Jump rules that the agent keeps at the head of the built-in chains:\n"...)
	for _, shared := range render.SharedChains() {
		isRendered := slices.ContainsFunc(chains, func(c ruleset.Chain) bool { return c.ChainID == shared })
		if shared.Table == table && !isRendered {
			text = fmt.Appendf(text, "#   %s -t %s -N %s    # unless it is there\n", program, table, shared.Name)
		}
	}
	for _, from := range ruleset.HookedChains(render.Hooks()) {
		if from.Table != table {
			continue
		}
		for i, rule := range ruleset.HooksIn(render.Hooks(), from) {
			text = fmt.Appendf(text, "#   %s -t %s -I %s %d %s\n", program, table, from.Name, i+1, rule)
		}
	}
	return text
}
