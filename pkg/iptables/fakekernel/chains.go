package fakekernel

import "slices"

// chains does what go-iptables does, on single chains and rules.
type chains struct {
	k *Kernel
}

// with runs f on a table while the lock of the Kernel is held. As the programs do,
// it sees the built-in chains of a table that does not exist yet.
func (c chains) with(command []string, f func(t *table) *refusal) error {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	if c.k.locked {
		return lockHeld(command)
	}
	name := command[2] // iptables -t NAME
	if builtins[name] == nil {
		return commandError(command, refusal{3, "table `" + name + "' does not exist"})
	}
	t := c.k.tables[name]
	if t == nil {
		t = newTable(name)
	}
	if refused := f(t); refused != nil {
		return commandError(command, *refused)
	}
	return nil
}

// edit is with, for a command that changes the table.
func (c chains) edit(command []string, f func(t *table) *refusal) error {
	return c.with(command, func(t *table) *refusal {
		next := t.clone()
		if refused := f(next); refused != nil {
			return refused
		}
		c.k.tables[t.name] = next
		c.k.stats.Edits++
		return nil
	})
}

func noSuchChain() *refusal { return &refusal{1, "iptables: No chain/target/match by that name."} }

// ChainExists reports whether the chain exists.
func (c chains) ChainExists(name, chain string) (found bool, err error) {
	err = c.with(command(name, "-S", chain, "1"), func(t *table) *refusal {
		found = t.chains[chain] != nil
		return nil
	})
	return found, err
}

// NewChain makes a chain that does not exist.
func (c chains) NewChain(name, chain string) error {
	return c.edit(command(name, "-N", chain), func(t *table) *refusal {
		if t.chains[chain] != nil {
			return &refusal{1, "iptables: Chain already exists."}
		}
		t.create(chain)
		return nil
	})
}

// List returns the chain's declaration and rules.
func (c chains) List(name, chain string) (lines []string, err error) {
	err = c.with(command(name, "-S", chain), func(t *table) *refusal {
		found := t.chains[chain]
		if found == nil {
			return noSuchChain()
		}
		lines = []string{"-P " + chain + " " + found.policy}
		if found.policy == "-" {
			lines = []string{"-N " + chain}
		}
		for _, r := range found.rules {
			lines = append(lines, "-A "+chain+" "+r.spec)
		}
		return nil
	})
	return lines, err
}

// Exists reports whether the rule is in the chain. One that jumps to a missing
// chain cannot even be asked for.
func (c chains) Exists(name, chain string, args ...string) (found bool, err error) {
	err = c.with(command(name, "-C", chain), func(t *table) *refusal {
		spec := join(args)
		if refused := t.resolve(target(spec)); refused != nil {
			return refused
		}
		found = t.chains[chain] != nil && t.find(chain, spec) >= 0
		return nil
	})
	return found, err
}

// resolve refuses a target that is neither a chain nor an extension.
func (t *table) resolve(target string) *refusal {
	if target == "" || t.chains[target] != nil || slices.Contains(extensions, target) {
		return nil
	}
	return &refusal{2, "iptables: Chain '" + target + "' does not exist"}
}

// Insert puts a rule at a position of the chain, counted from 1.
func (c chains) Insert(name, chain string, position int, args ...string) error {
	return c.edit(command(name, "-I", chain), func(t *table) *refusal {
		found, spec := t.chains[chain], join(args)
		if refused := t.resolve(target(spec)); refused != nil {
			return refused
		}
		if found == nil {
			return noSuchChain()
		}
		if position < 1 || position > len(found.rules)+1 {
			return &refusal{1, "iptables: Index of insertion too big."}
		}
		t.insert(chain, position-1, rule{spec: spec, target: target(spec)})
		return nil
	})
}

func command(table string, args ...string) []string {
	return append([]string{"iptables", "-t", table}, args...)
}
