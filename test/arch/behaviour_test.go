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
	// entryRow is a row of docs/behaviour.md: the entry and the cell with its tests.
	entryRow = regexp.MustCompile(`(?m)^\| (B-\d\d) \|.*\| ([^|]*) \|$`)
	// namedTest is a test in such a cell: the package's directory and the function.
	namedTest = regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`")
	// entryName is how tests name an entry.
	entryName = regexp.MustCompile(`\bB-\d\d\b`)
)

// TestBehaviourHasTests: each test that docs/behaviour.md names is there, each entry has
// one, and each entry that a test names has a row.
func TestBehaviourHasTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/behaviour.md"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []string
	for _, row := range entryRow.FindAllStringSubmatch(string(text), -1) {
		entry, cell := row[1], row[2]
		if slices.Contains(entries, entry) {
			t.Errorf("%s has two rows", entry)
		}
		entries = append(entries, entry)
		tests := namedTest.FindAllStringSubmatch(cell, -1)
		if len(tests) == 0 {
			t.Errorf("%s has no test", entry)
		}
		for _, test := range tests {
			if !hasTest(t, test[1], test[2]) {
				t.Errorf("%s: there is no test %s in %s", entry, test[2], test[1])
			}
		}
		if rest := strings.TrimSpace(namedTest.ReplaceAllString(cell, "")); rest != "" {
			t.Errorf("%s: %q names no test", entry, rest)
		}
	}
	for name, text := range trackedFiles(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, entry := range entryName.FindAllString(string(text), -1) {
			if !slices.Contains(entries, entry) {
				t.Errorf("%s is about %s, which docs/behaviour.md does not have", name, entry)
			}
		}
	}
}

// hasTest reports whether a package has a test function of that name.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) {")
	})
}
