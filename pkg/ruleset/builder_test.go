package ruleset

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// plainBuilder is a Builder in which every step is text, one after the other.
type plainBuilder struct {
	table          Table
	declared       []string
	policy         map[string]string
	body, removals strings.Builder
	chains         int
}

func (p *plainBuilder) declare(name, policy string) {
	if policy == "" {
		policy = "-"
	}
	if _, again := p.policy[name]; again {
		fmt.Fprintf(&p.body, ":%s %s [0:0]\n", name, policy)
		return
	}
	p.declared = append(p.declared, name)
	p.policy[name] = policy
}

func (p *plainBuilder) write(c Chain) {
	p.declare(c.Name, c.Policy)
	for _, r := range c.Rules {
		fmt.Fprintf(&p.body, "-A %s %s\n", c.Name, r)
	}
	p.chains++
}

func (p *plainBuilder) delete(name string) {
	p.declare(name, "")
	fmt.Fprintf(&p.removals, "-X %s\n", name)
	p.chains++
}

func (p *plainBuilder) text() string {
	if len(p.declared) == 0 {
		return ""
	}
	var text strings.Builder
	fmt.Fprintf(&text, "*%s\n", p.table)
	slices.Sort(p.declared)
	for _, name := range p.declared {
		fmt.Fprintf(&text, ":%s %s [0:0]\n", name, p.policy[name])
	}
	return text.String() + p.body.String() + p.removals.String() + "COMMIT\n"
}

// Whatever room was made, and whatever a Builder was used for before, its text is that of
// the steps since the last Take.
func TestBuilderAgainstPlainText(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 0))
		tables := []Table{Filter, NAT}
		b := NewBuilder(tables...)
		for range 8 {
			plain := map[Table]*plainBuilder{}
			for _, table := range tables {
				plain[table] = &plainBuilder{table: table, policy: map[string]string{}}
			}
			var steps []string
			for range random.IntN(30) {
				table := tables[random.IntN(len(tables))]
				name := fmt.Sprint("KUBE-", strings.Repeat("X", random.IntN(24)), random.IntN(5))
				switch step := random.IntN(10); {
				case step == 0:
					chains, each := random.IntN(40), random.IntN(100)
					if random.IntN(8) == 0 {
						each = keptText // more than is kept
					}
					steps = append(steps, fmt.Sprintf("Grow(%s, %d, %d)", table, chains, each))
					b.Grow(table, chains, each)
				case step < 8:
					c := Chain{ChainID: ChainID{Table: table, Name: name}}
					if random.IntN(5) == 0 {
						c.Policy = "ACCEPT"
					}
					for i := range random.IntN(4) {
						c.Rules = append(c.Rules, Rule{Comment: strings.Repeat("c", random.IntN(200)), Action: Jump{fmt.Sprint("T", i)}})
					}
					steps = append(steps, fmt.Sprintf("Write(%s, %d rules)", c.ChainID, len(c.Rules)))
					b.Write(c)
					plain[table].write(c)
				default:
					steps = append(steps, fmt.Sprintf("Delete(%s)", name))
					b.Delete(ChainID{Table: table, Name: name})
					plain[table].delete(name)
				}
			}
			if random.IntN(40) == 0 {
				big := Chain{ChainID: ChainID{Table: NAT, Name: "BIG"}, Rules: slices.Repeat([]Rule{{Comment: strings.Repeat("b", 200)}}, keptText/150)}
				b.Write(big)
				plain[NAT].write(big)
			}
			chains := 0
			var want string
			for _, table := range tables {
				want += plain[table].text()
				chains += plain[table].chains
			}
			if got := b.Len(); got != chains {
				t.Fatalf("seed %d, %v: Len is %d, want %d", seed, steps, got, chains)
			}
			if got := string(bytes.Join(b.Take(), nil)); got != want {
				t.Fatalf("seed %d, %v: got\n%s\nwant\n%s", seed, steps, got, want)
			}
			if again := b.Take(); b.Len() != 0 || len(again) != 0 {
				t.Fatalf("seed %d: after Take there is %q left", seed, again)
			}
		}
	}
}

// A chain that is written twice has the later rules, and one that was removed after it was
// written is gone, wherever they are declared.
func TestBuilderDecodes(t *testing.T) {
	chain := func(name string, targets ...string) Chain {
		c := Chain{ChainID: ChainID{Table: NAT, Name: name}}
		for _, target := range targets {
			c.Rules = append(c.Rules, Rule{Action: Jump{target}})
		}
		return c
	}
	b := NewBuilder(NAT)
	b.Grow(NAT, 1, 10)
	b.Write(chain("B", "A"))
	b.Write(chain("A", "C", "D"))
	b.Write(chain("GONE", "A"))
	b.Write(chain("A", "D"))
	b.Delete(ChainID{Table: NAT, Name: "GONE"})
	b.Write(Chain{ChainID: ChainID{Table: Filter, Name: "OTHER"}})
	const want = "*nat\n:A - [0:0]\n:B - [0:0]\n:GONE - [0:0]\n-A B -j A\n-A A -j C\n-A A -j D\n-A GONE -j A\n" +
		":A - [0:0]\n-A A -j D\n:GONE - [0:0]\n-X GONE\nCOMMIT\n"
	if got := string(bytes.Join(b.Take(), nil)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
