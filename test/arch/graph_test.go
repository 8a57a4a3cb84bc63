// Package arch tests the house as a whole: which room may know which, and the
// conventions that no compiler checks.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/miniproxy/miniproxy"
	// root is the module's directory, seen from this package.
	root = "../.."
	// thirdParty stands for any package that is neither Go's nor ours.
	thirdParty = "THIRD PARTY"
)

// listed is a package as go list describes it.
type listed struct {
	ImportPath                         string
	Standard                           bool
	Dir                                string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
	Module                             *struct {
		Path string
		Main bool
	}
}

// lists remembers what go list said, by its arguments: it takes seconds to say it.
var lists sync.Map

// goList returns what go list says of the packages.
func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	key := strings.Join(args, " ")
	if known, ok := lists.Load(key); ok {
		return known.([]listed)
	}
	packages := runGoList(t, args...)
	lists.Store(key, packages)
	return packages
}

func runGoList(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, &stderr)
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// short returns the path under the module of a package of ours, and the import path
// of any other.
func short(path string) string { return strings.TrimPrefix(path, module+"/") }

// graph is who imports whom, by short names. Tests are not in it.
type graph struct {
	imports map[string][]string
	foreign map[string]bool // neither Go's nor ours
}

func loadGraph(t *testing.T) graph {
	t.Helper()
	g := graph{imports: map[string][]string{}, foreign: map[string]bool{}}
	for _, p := range goList(t, "-deps", "./...") {
		name := short(p.ImportPath)
		g.foreign[name] = !p.Standard && !strings.HasPrefix(p.ImportPath, module+"/")
		for _, i := range p.Imports {
			g.imports[name] = append(g.imports[name], short(i))
		}
	}
	return g
}

// matching returns the packages that a pattern means, sorted.
func (g graph) matching(pattern string) []string {
	var found []string
	for p := range g.imports {
		if matches(pattern, p) {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

func matches(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
	return path == pattern
}

// path returns a shortest way from a package to one that the pattern means, nil
// when there is none. It does not look inside Go's own packages, except for the
// last step: what fmt needs is no concern of ours.
func (g graph) path(from, to string) []string {
	type step struct {
		at   string
		back *step
	}
	seen := map[string]bool{from: true}
	for queue := []*step{{at: from}}; len(queue) > 0; queue = queue[1:] {
		here := queue[0]
		for _, next := range g.imports[here.at] {
			if seen[next] {
				continue
			}
			seen[next] = true
			there := &step{next, here}
			if (to == thirdParty && g.foreign[next]) || matches(to, next) {
				var way []string
				for s := there; s != nil; s = s.back {
					way = append(way, s.at)
				}
				slices.Reverse(way)
				return way
			}
			if g.foreign[next] || g.isOurs(next) {
				queue = append(queue, there)
			}
		}
	}
	return nil
}

func (g graph) isOurs(path string) bool {
	_, known := g.foreign[path]
	first, _, _ := strings.Cut(path, "/")
	return known && slices.Contains([]string{"pkg", "cmd", "examples", "hack", "test", "deploy"}, first)
}

// testImports returns what the test files of a package import, by short names.
func testImports(t *testing.T, pkg string) []string {
	t.Helper()
	var imports []string
	for _, p := range goList(t, pkg) {
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			imports = append(imports, short(i))
		}
	}
	return imports
}

func TestPath(t *testing.T) {
	g := graph{
		imports: map[string][]string{
			"pkg/a":         {"fmt", "pkg/b"},
			"pkg/b":         {"example.com/x"},
			"example.com/x": {"example.com/y", "os/exec"},
			"fmt":           {"reflect"},
		},
		foreign: map[string]bool{"pkg/a": false, "pkg/b": false, "example.com/x": true, "example.com/y": true, "fmt": false},
	}
	tests := []struct {
		name, to string
		want     []string
	}{
		{name: "through others", to: "os/exec", want: []string{"pkg/a", "pkg/b", "example.com/x", "os/exec"}},
		{name: "by a pattern", to: "example.com/...", want: []string{"pkg/a", "pkg/b", "example.com/x"}},
		{name: "to anything foreign", to: thirdParty, want: []string{"pkg/a", "pkg/b", "example.com/x"}},
		{name: "not through Go's own packages", to: "reflect"},
		{name: "to nothing", to: "pkg/c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := g.path("pkg/a", tt.to); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
