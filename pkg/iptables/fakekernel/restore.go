package fakekernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// refusal is what iptables-restore exits with and prints.
type refusal struct {
	status int
	stderr string
}

// restore is one run of iptables-restore --noflush.
type restore struct {
	backend iptables.Backend
	// tables is the kernel's state, in which COMMIT puts the table.
	tables map[string]*table

	line  int
	table *table
	// unresolved are targets that were no chains when their rules were read. The
	// nft backend looks for them at the end of the table.
	unresolved []string
}

// run reads the input and applies it, table by table, up to the first line that
// is refused.
func (r *restore) run(input string) *refusal {
	for line := range strings.Lines(input) {
		r.line++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if refused := r.read(line); refused != nil {
			return refused
		}
	}
	if r.table != nil {
		return &refusal{1, fmt.Sprintf("%s: COMMIT expected at line %d", r.program(), r.line+1)}
	}
	return nil
}

func (r *restore) read(line string) *refusal {
	switch {
	case r.table == nil && line[0] == '*':
		return r.begin(line[1:])
	case r.table == nil:
		return r.failed("")
	case line == "COMMIT":
		return r.commit()
	case line[0] == ':':
		return r.declare(line[1:])
	}
	if line[0] == '[' { // counters
		_, line, _ = strings.Cut(line, " ")
	}
	command, rest, _ := strings.Cut(line, " ")
	name, spec, _ := strings.Cut(rest, " ")
	return r.command(command, name, spec)
}

func (r *restore) begin(name string) *refusal {
	if builtins[name] == nil {
		return r.unparsable(fmt.Sprintf("table name '%s' invalid", name))
	}
	r.unresolved = nil
	if current := r.tables[name]; current != nil {
		r.table = current.clone()
	} else {
		r.table = newTable(name)
	}
	return nil
}

func (r *restore) commit() *refusal {
	for _, name := range r.unresolved {
		if r.table.chains[name] == nil {
			return r.unparsable(fmt.Sprintf("Chain '%s' does not exist", name))
		}
	}
	r.tables[r.table.name] = r.table
	r.table = nil
	return nil
}

// declare reads "NAME POLICY [counters]": the chain is there, and empty.
func (r *restore) declare(declaration string) *refusal {
	name, rest, _ := strings.Cut(declaration, " ")
	policy, _, _ := strings.Cut(rest, " ")
	switch {
	case len(name) > ruleset.MaxChainName:
		return r.unparsable(fmt.Sprintf("chain name `%s' too long (must be under %d chars)", name, ruleset.MaxChainName+1))
	case r.table.chains[name] == nil:
		r.table.create(name)
	case slices.Contains(builtins[r.table.name], name):
		// Without --noflush it would be emptied too.
		if policy != "-" {
			r.table.edit(name).policy = policy
		}
	default:
		r.table.flush(name)
	}
	return nil
}

func (r *restore) command(command, name, spec string) *refusal {
	c := r.table.chains[name]
	if command == "-N" {
		if c != nil {
			return r.failed("Chain already exists.")
		}
		r.table.create(name)
		return nil
	}
	if c == nil {
		return r.failed("No chain/target/match by that name.")
	}
	switch command {
	case "-A":
		return r.insert(name, len(c.rules)+1, spec)
	case "-I":
		at := 1
		if number, rest, _ := strings.Cut(spec, " "); number != "" {
			if n, err := strconv.Atoi(number); err == nil {
				at, spec = n, rest
			}
		}
		return r.insert(name, at, spec)
	case "-D":
		at := r.table.find(name, spec)
		if at < 0 {
			return r.failed("Bad rule (does a matching rule exist in that chain?).")
		}
		r.table.remove(name, at)
	case "-F":
		r.table.flush(name)
	case "-X":
		if len(c.rules) > 0 || r.table.references[name] > 0 || c.policy != "-" {
			return r.refused("CHAIN_DEL failed (Device or resource busy): chain "+name, 0)
		}
		r.table.delete(name)
	default:
		return r.unparsable(fmt.Sprintf("unknown option \"%s\"", command))
	}
	return nil
}

func (r *restore) insert(name string, at int, spec string) *refusal {
	if at < 1 || at > len(r.table.chains[name].rules)+1 {
		return r.failed("Index of insertion too big.")
	}
	to := target(spec)
	isChain := r.table.chains[to] != nil
	switch {
	case to == "" || isChain:
	case !slices.Contains(extensions, to):
		if r.backend == iptables.Legacy {
			return r.unparsable(fmt.Sprintf("Couldn't load target `%s':No such file or directory\n", to))
		}
		r.unresolved = append(r.unresolved, to)
	case r.table.name != "nat" && slices.Contains(natExtensions, to):
		return r.refused("RULE_APPEND failed (Invalid argument): rule in chain "+name, 1)
	}
	r.table.insert(name, at-1, rule{spec: spec, target: to})
	return nil
}

// program is how the program calls itself.
func (r *restore) program() string {
	if r.backend == iptables.NFT {
		return "iptables-nft-restore"
	}
	return "iptables-restore"
}

// failed refuses a command that does not fit the table's state.
func (r *restore) failed(reason string) *refusal {
	text := fmt.Sprintf("%s: line %d failed", r.program(), r.line)
	if r.backend == iptables.NFT && reason != "" {
		text += ": " + reason
	}
	return &refusal{1, text}
}

// unparsable refuses a line that the program does not understand.
func (r *restore) unparsable(reason string) *refusal {
	return &refusal{2, fmt.Sprintf("%s: %s\nError occurred at line: %d", r.program(), reason, r.line)}
}

// refused refuses what the kernel refuses. The nft backend names the line and the
// errno; the legacy one names a line that may be later, such as that of COMMIT.
func (r *restore) refused(reason string, later int) *refusal {
	if r.backend == iptables.NFT {
		return &refusal{4, fmt.Sprintf("%s v1.8.9 (nf_tables): \nline %d: %s", r.program(), r.line, reason)}
	}
	r.line += later
	return r.failed("")
}
