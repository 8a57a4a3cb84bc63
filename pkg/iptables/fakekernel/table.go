package fakekernel

import (
	"maps"
	"slices"
	"strings"
)

// builtins are the kernel's own chains of each table.
var builtins = map[string][]string{
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
}

// extensions are the targets that are no chains.
var extensions = []string{"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "LOG", "NFLOG", "TRACE", "DNAT", "SNAT", "MASQUERADE", "REDIRECT"}

// natExtensions are those that the nat table alone takes.
var natExtensions = []string{"DNAT", "SNAT", "MASQUERADE", "REDIRECT"}

// rule is a rule as text, without "-A CHAIN", and the chain that it refers to, if any.
type rule struct {
	spec, target string
}

type chain struct {
	policy string // "-" if it is not built in
	rules  []rule
}

// table is the state of one table. Its chains are shared with the states before
// it, and copied when they are edited.
type table struct {
	name   string
	chains map[string]*chain
	// references counts the rules that refer to a chain.
	references map[string]int
	// own are the chains that no other state shares.
	own map[string]bool
}

func newTable(name string) *table {
	t := &table{name: name, chains: map[string]*chain{}, references: map[string]int{}, own: map[string]bool{}}
	for _, b := range builtins[name] {
		t.chains[b] = &chain{policy: "ACCEPT"}
	}
	return t
}

// clone returns a state to be edited while t stays as it is.
func (t *table) clone() *table {
	return &table{name: t.name, chains: maps.Clone(t.chains), references: maps.Clone(t.references), own: map[string]bool{}}
}

// edit returns a chain that exists, for editing.
func (t *table) edit(name string) *chain {
	if !t.own[name] {
		c := *t.chains[name]
		c.rules = slices.Clone(c.rules)
		t.chains[name], t.own[name] = &c, true
	}
	return t.chains[name]
}

func (t *table) create(name string) {
	t.chains[name], t.own[name] = &chain{policy: "-"}, true
}

func (t *table) insert(name string, at int, r rule) {
	c := t.edit(name)
	c.rules = slices.Insert(c.rules, at, r)
	t.references[r.target]++
}

func (t *table) remove(name string, at int) {
	c := t.edit(name)
	t.references[c.rules[at].target]--
	c.rules = slices.Delete(c.rules, at, at+1)
}

func (t *table) flush(name string) {
	c := t.edit(name)
	for _, r := range c.rules {
		t.references[r.target]--
	}
	c.rules = nil
}

func (t *table) delete(name string) {
	delete(t.chains, name)
	delete(t.references, name)
}

// find returns the place of the first rule with the same words, -1 if there is none.
func (t *table) find(name, spec string) int {
	want := words(spec)
	return slices.IndexFunc(t.chains[name].rules, func(r rule) bool {
		return r.spec == spec || slices.Equal(words(r.spec), want)
	})
}

// names lists the chains, the built-in ones first.
func (t *table) names() []string {
	names := slices.Clone(builtins[t.name])
	for _, name := range slices.Sorted(maps.Keys(t.chains)) {
		if !slices.Contains(builtins[t.name], name) {
			names = append(names, name)
		}
	}
	return names
}

// appendSave appends the table as iptables-save prints it.
func (t *table) appendSave(b []byte) []byte {
	b = append(b, "*"+t.name+"\n"...)
	for _, name := range t.names() {
		b = append(b, ":"+name+" "+t.chains[name].policy+" [0:0]\n"...)
	}
	for _, name := range t.names() {
		for _, r := range t.chains[name].rules {
			b = append(b, "-A "+name+" "+r.spec+"\n"...)
		}
	}
	return append(b, "COMMIT\n"...)
}

// target returns the word behind -j or -g, empty if there is none.
func target(spec string) string {
	all := words(spec)
	for i, w := range all[:max(len(all)-1, 0)] {
		// A comment that is "-j" is no flag.
		if (w == "-j" || w == "-g") && (i == 0 || all[i-1] != "--comment") {
			return all[i+1]
		}
	}
	return ""
}

// words splits a rule as iptables-restore does: blanks separate, double quotes
// group, and in them a backslash takes the next character as it is.
func words(spec string) []string {
	var all []string
	var word strings.Builder
	quoted, open := false, false
	for i := 0; i < len(spec); i++ {
		switch c := spec[i]; {
		case c == '"':
			quoted, open = !quoted, true
		case c == ' ' && !quoted:
			if open {
				all = append(all, word.String())
			}
			word.Reset()
			open = false
		case c == '\\' && quoted && i+1 < len(spec):
			i++
			word.WriteByte(spec[i])
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if open {
		all = append(all, word.String())
	}
	return all
}

// join writes words as a rule's text: free text, which only comments hold, in
// quotes.
func join(args []string) string {
	quote := strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`)
	all := slices.Clone(args)
	for i, w := range all {
		if i > 0 && all[i-1] == "--comment" && strings.IndexFunc(w, needsQuotes) >= 0 {
			all[i] = `"` + quote.Replace(w) + `"`
		}
	}
	return strings.Join(all, " ")
}

func needsQuotes(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
		return false
	}
	return true
}
