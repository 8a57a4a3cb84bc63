package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// link is a Markdown link; its first group is where it leads.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// makeCommand is a call of make with a target, in code.
	makeCommand = regexp.MustCompile("(?m)(?:`|^\\s*(?:sudo )?)make ([a-z][a-z0-9-]*)")
	// targetLine is the line of the Makefile that begins a target.
	targetLine = regexp.MustCompile(`(?m)^([a-z][a-z0-9/-]*):`)
)

// documents returns the Markdown files of the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for name, text := range trackedFiles(t) {
		if filepath.Ext(name) == ".md" {
			docs[name] = string(text)
		}
	}
	if len(docs) == 0 {
		t.Fatal("no documents found")
	}
	return docs
}

// TestLinksLeadSomewhere follows the links inside the repository.
func TestLinksLeadSomewhere(t *testing.T) {
	for name, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), to)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere: %v", name, m[1], err)
			}
		}
	}
}

// TestDocumentedTargetsExist looks for every `make target` that a document tells its
// reader to type.
func TestDocumentedTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range targetLine.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	for name, text := range documents(t) {
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s: make %s: no such target", name, m[1])
			}
		}
	}
}

// TestDependenciesHaveReasons compares the table of docs/dependencies.md with the
// modules that our packages, tests included, import directly.
func TestDependenciesHaveReasons(t *testing.T) {
	direct := map[string]bool{}
	for _, p := range goList(t, "./...") {
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			direct[i] = true
		}
	}
	modules := map[string]bool{}
	for _, p := range goList(t, "-deps", "-test", "./...") {
		if direct[p.ImportPath] && p.Module != nil && !p.Module.Main {
			modules[p.Module.Path] = true
		}
	}

	text := documents(t)["docs/dependencies.md"]
	product, _, _ := strings.Cut(text, "Not in the product")
	named := map[string]bool{}
	for line := range strings.Lines(product) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "/") {
			for name := range strings.SplitSeq(cells[1], ",") {
				named[strings.TrimSpace(name)] = true
			}
		}
	}
	for m := range modules {
		if !named[m] {
			t.Errorf("docs/dependencies.md gives no reason for %s", m)
		}
	}
	for m := range named {
		if !modules[m] {
			t.Errorf("docs/dependencies.md names %s, which nothing imports", m)
		}
	}
}
