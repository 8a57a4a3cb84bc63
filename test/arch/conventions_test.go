package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parse returns the syntax of the named files of a package, by file name.
func parse(t *testing.T, dir string, names []string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
	}
	return files
}

// TestOnePackageComment: what a package is for is said once, so that it cannot be
// said in two ways.
func TestOnePackageComment(t *testing.T) {
	for _, p := range goList(t, "./...") {
		names := p.GoFiles
		if len(names) == 0 {
			names = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		var documented []string
		for name, file := range parse(t, p.Dir, names) {
			if file.Doc != nil {
				documented = append(documented, name)
			}
		}
		if len(documented) != 1 {
			slices.Sort(documented)
			t.Errorf("%s: got package comments in %q, want one", short(p.ImportPath), documented)
		}
	}
}

// TestNoInit: what happens before main cannot be tested, ordered or avoided.
func TestNoInit(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for name, file := range parse(t, p.Dir, p.GoFiles) {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s/%s: a function init", short(p.ImportPath), name)
				}
			}
		}
	}
}

// TestExportedIsDocumented: every exported name at the top of a package says what it
// is. In a group, the group's comment is enough.
func TestExportedIsDocumented(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for name, file := range parse(t, p.Dir, p.GoFiles) {
			for _, missing := range undocumented(file) {
				t.Errorf("%s/%s: %s has no comment", short(p.ImportPath), name, missing)
			}
		}
	}
}

func undocumented(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && hasExportedReceiver(d) && !satisfiesCommonInterface(d) {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			if d.Doc != nil {
				continue
			}
			for _, spec := range d.Specs {
				names = append(names, undocumentedSpec(spec)...)
			}
		}
	}
	return names
}

func undocumentedSpec(spec ast.Spec) []string {
	var names []string
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && s.Doc == nil && s.Comment == nil {
			names = append(names, s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && s.Doc == nil && s.Comment == nil {
				names = append(names, n.Name)
			}
		}
	}
	return names
}

// hasExportedReceiver reports whether a function can be called from outside: it has
// no receiver, or one of an exported type.
func hasExportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}

// satisfiesCommonInterface reports whether the name alone says what a method does.
func satisfiesCommonInterface(f *ast.FuncDecl) bool {
	return f.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "Is", "As", "String", "Len", "Less", "Swap"}, f.Name.Name)
}

// TestPackageNames: a drawer for everything has no wall.
func TestPackageNames(t *testing.T) {
	drawers := []string{"util", "utils", "common", "helper", "helpers", "base", "misc", "manager", "shared", "types"}
	for _, p := range goList(t, "./...") {
		if name := filepath.Base(p.ImportPath); slices.Contains(drawers, name) {
			t.Errorf("%s: a package is named for the one thing it holds", short(p.ImportPath))
		}
	}
}

// trackedFiles returns the text files of the repository, by path under the root.
func trackedFiles(t *testing.T) map[string][]byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	output, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git work tree: %v", err)
	}
	files := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(output), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.ContainsRune(text, 0) {
			files[name] = text
		}
	}
	return files
}

// TestNothingOfThisMachine: the repository stands alone. What it names must exist on
// any machine, and a note to self belongs where work is planned.
func TestNothingOfThisMachine(t *testing.T) {
	// In pieces, so that this file holds none of them.
	words := map[string]string{
		"/ho" + "me/":  "a path of one machine",
		"/ro" + "ot/":  "a path of one machine",
		"/wo" + "rk/":  "a path of one machine",
		"/Us" + "ers/": "a path of one machine",
		"/tm" + "p/":   "a path of one run; ask for a temporary directory",
		"TO" + "DO":    "unfinished work; finish it, or plan it elsewhere",
		"FIX" + "ME":   "unfinished work; finish it, or plan it elsewhere",
	}
	for name, text := range trackedFiles(t) {
		for word, because := range words {
			for _, at := range findWord(text, word) {
				line := 1 + bytes.Count(text[:at], []byte("\n"))
				t.Errorf("%s:%d: %q is %s", name, line, word, because)
			}
		}
	}
}

// findWord returns where text holds word, not as the end of a longer word.
func findWord(text []byte, word string) []int {
	var found []int
	for from := 0; ; {
		at := bytes.Index(text[from:], []byte(word))
		if at < 0 {
			return found
		}
		at += from
		if at == 0 || !isWordByte(text[at-1]) {
			found = append(found, at)
		}
		from = at + len(word)
	}
}

func isWordByte(b byte) bool {
	return b == '_' || b == '-' || b == '.' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}
