package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// source is a document of a manifest, kept to tell where in the file a field is.
type source struct {
	m    *manifest
	text []byte
}

// report adds what is wrong with an object to the manifest's errors, in the order of
// the lines.
func (s source) report(what string, errs field.ErrorList) {
	lines := make(map[*field.Error]int, len(errs))
	for _, err := range errs {
		lines[err] = s.line(err.Field)
	}
	slices.SortStableFunc(sorted(errs), func(a, b *field.Error) int { return cmp.Compare(lines[a], lines[b]) })
	for _, err := range errs {
		s.m.errs = append(s.m.errs, fmt.Errorf("%s:%d: %s: %w", s.m.name, lines[err], what, err))
	}
}

// line returns the line of a field, or of the innermost field around it that there
// is. It is 1 if the document cannot be followed.
func (s source) line(path string) int {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal(s.text, &root); err != nil || len(root.Content) == 0 {
		return 1
	}
	node, line := root.Content[0], root.Content[0].Line
	for _, step := range steps(path) {
		var ok bool
		if node, line, ok = descend(node, line, step); !ok {
			break
		}
	}
	return line
}

// descend returns the child of a mapping or list, and the line it begins on.
func descend(node *yamlv3.Node, line int, step string) (*yamlv3.Node, int, bool) {
	if node.Kind == yamlv3.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if key := node.Content[i]; key.Value == step {
				return node.Content[i+1], key.Line, true
			}
		}
	case yamlv3.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line, true
		}
	}
	return node, line, false
}

// steps splits a field's path, such as spec.ports[0].port or
// metadata.labels[example.com/a], into names, indexes and keys.
func steps(path string) []string {
	var list []string
	for path != "" {
		if rest, ok := strings.CutPrefix(path, "["); ok {
			key, rest, _ := strings.Cut(rest, "]")
			list, path = append(list, key), strings.TrimPrefix(rest, ".")
			continue
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		list, path = append(list, path[:end]), strings.TrimPrefix(path[end:], ".")
	}
	return list
}

// syntaxErrors takes the errors of the YAML parser apart and puts file and line before
// each: it names several in one error, over several lines.
func syntaxErrors(file string, err error) []error {
	var errs []error
	for text := range strings.SplitSeq(err.Error(), "\n") {
		_, rest, found := strings.Cut(text, "line ")
		number, message, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); found && err == nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s", file, n, message))
		}
	}
	if len(errs) == 0 {
		// The parser leaves the number of the first line out.
		text := strings.ReplaceAll(err.Error(), "\n", " ")
		errs = append(errs, fmt.Errorf("%s:1: %s", file, strings.TrimPrefix(text, "yaml: ")))
	}
	return errs
}
