package main

import "github.com/miniproxy/miniproxy/pkg/ruleset"

// jsonDifference is one difference for programs to read.
type jsonDifference struct {
	Family  string        `json:"family"`
	Backend string        `json:"backend"`
	Kind    string        `json:"kind"`
	Table   ruleset.Table `json:"table"`
	Chain   string        `json:"chain"`
	Why     string        `json:"why,omitempty"`
	// Lines are rules as iptables-save prints them.
	Lines []jsonLine `json:"lines"`
}

// jsonLine is a rule and what is to be done for it: "+" to add, "-" to remove, "" for
// one that stays.
type jsonLine struct {
	Op   string `json:"op"`
	Rule string `json:"rule"`
}

func differencesAsJSON(found []familyDiff) []jsonDifference {
	all := []jsonDifference{}
	for _, f := range found {
		for _, d := range f.Differences {
			j := jsonDifference{
				Family: f.Family.String(), Backend: string(f.Backend), Kind: string(d.Kind),
				Table: d.Chain.Table, Chain: d.Chain.Name, Why: d.Why, Lines: []jsonLine{},
			}
			for _, line := range d.Lines {
				op := string(line.Op)
				if line.Op == ' ' {
					op = ""
				}
				j.Lines = append(j.Lines, jsonLine{Op: op, Rule: line.Text})
			}
			all = append(all, j)
		}
	}
	return all
}
