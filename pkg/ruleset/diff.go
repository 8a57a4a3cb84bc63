package ruleset

import (
	"slices"
	"strings"
)

// ChangeKind says how a chain differs.
type ChangeKind string

// How a chain can differ.
const (
	Missing ChangeKind = "missing" // wanted, but not there
	Extra   ChangeKind = "extra"   // there, but not wanted
	Changed ChangeKind = "changed" // there, with other rules or another policy
)

// ChainDiff is one chain that is not as it should be.
type ChainDiff struct {
	ChainID
	Kind ChangeKind
	// Lines are the chain's rules, those that both have included, in order.
	Lines []LineDiff
}

// LineDiff is one line of a chain.
type LineDiff struct {
	// Op is '+' for a line that is wanted and not there, '-' for one that is there
	// and not wanted, ' ' for one that both have.
	Op byte
	// Text is a rule's canonical text, or "policy NAME".
	Text string
}

// String returns the difference as a few lines of text, with unchanged rules left out.
func (d ChainDiff) String() string {
	var b strings.Builder
	b.WriteString(string(d.Kind) + " chain " + d.ChainID.String())
	for _, l := range d.Lines {
		if l.Op != ' ' {
			b.WriteString("\n" + string(l.Op) + " " + l.Text)
		}
	}
	return b.String()
}

// Diff returns the chains in which have is not what want is, sorted by table and
// name. Rules are the same when their canonical text is; a policy counts only
// where want has one.
func Diff(have, want Ruleset) []ChainDiff {
	var diffs []ChainDiff
	for id, w := range want {
		h := have[id]
		if h == nil {
			diffs = append(diffs, ChainDiff{ChainID: id, Kind: Missing, Lines: allLines('+', w)})
		} else if lines := diffChains(h, w); lines != nil {
			diffs = append(diffs, ChainDiff{ChainID: id, Kind: Changed, Lines: lines})
		}
	}
	for id, h := range have {
		if want[id] == nil {
			diffs = append(diffs, ChainDiff{ChainID: id, Kind: Extra, Lines: allLines('-', h)})
		}
	}
	slices.SortFunc(diffs, func(a, b ChainDiff) int { return a.Compare(b.ChainID) })
	return diffs
}

func allLines(op byte, c *Chain) []LineDiff {
	var lines []LineDiff
	for _, text := range c.texts() {
		lines = append(lines, LineDiff{op, text})
	}
	return lines
}

func (c *Chain) texts() []string {
	texts := make([]string, len(c.Rules))
	for i, r := range c.Rules {
		texts[i] = r.String()
	}
	return texts
}

// diffChains returns nil for chains that are the same.
func diffChains(have, want *Chain) []LineDiff {
	h, w := have.texts(), want.texts()
	samePolicy := want.Policy == "" || have.Policy == want.Policy
	if samePolicy && slices.Equal(h, w) {
		return nil
	}
	var lines []LineDiff
	if !samePolicy {
		lines = append(lines, LineDiff{'-', "policy " + have.Policy}, LineDiff{'+', "policy " + want.Policy})
	}
	return append(lines, diffLines(h, w)...)
}

// maxCompared bounds the table in which diffLines looks for common lines: 4 MB.
const maxCompared = 1 << 20

// diffLines returns a shortest list of changes that makes want of have. Between
// two chains of thousands of rules that have little in common it may be longer.
func diffLines(have, want []string) []LineDiff {
	var lines, tail []LineDiff
	for len(have) > 0 && len(want) > 0 && have[0] == want[0] {
		lines = append(lines, LineDiff{' ', have[0]})
		have, want = have[1:], want[1:]
	}
	for len(have) > 0 && len(want) > 0 && have[len(have)-1] == want[len(want)-1] {
		tail = append(tail, LineDiff{' ', have[len(have)-1]})
		have, want = have[:len(have)-1], want[:len(want)-1]
	}
	slices.Reverse(tail)
	if (len(have)+1)*(len(want)+1) <= maxCompared {
		lines = append(lines, diffByCommon(have, want)...)
	} else {
		lines = append(lines, allDiffer(have, want)...)
	}
	return append(lines, tail...)
}

func allDiffer(have, want []string) []LineDiff {
	var lines []LineDiff
	for _, text := range have {
		lines = append(lines, LineDiff{'-', text})
	}
	for _, text := range want {
		lines = append(lines, LineDiff{'+', text})
	}
	return lines
}

// diffByCommon keeps a longest common subsequence.
func diffByCommon(have, want []string) []LineDiff {
	width := len(want) + 1
	common := make([]int32, (len(have)+1)*width) // [i*width+j]: lines that have[i:] and want[j:] share
	for i := len(have) - 1; i >= 0; i-- {
		for j := len(want) - 1; j >= 0; j-- {
			if have[i] == want[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	var lines []LineDiff
	i, j := 0, 0
	for i < len(have) && j < len(want) {
		switch {
		case have[i] == want[j]:
			lines = append(lines, LineDiff{' ', have[i]})
			i, j = i+1, j+1
		case common[(i+1)*width+j] >= common[i*width+j+1]:
			lines = append(lines, LineDiff{'-', have[i]})
			i++
		default:
			lines = append(lines, LineDiff{'+', want[j]})
			j++
		}
	}
	return append(lines, allDiffer(have[i:], want[j:])...)
}
