package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Objects are what manifests hold, in the order of the files and of the documents in
// them. Objects that an API server would not show to the agent are left out:
// headless Services with their EndpointSlices, and Services of another proxy.
type Objects struct {
	Services       []*v1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	Nodes          []*v1.Node
	// Notes tell what was left out or looks like a mistake, one line each.
	Notes []string
}

// ReadManifests reads Services, EndpointSlices and Nodes from YAML or JSON files,
// from the files in directories, or from standard input ("-"). The defaults that an
// API server fills in are filled in. Objects of other kinds are noted and left out.
// The error holds everything that is wrong, one line each with file, line and field.
func ReadManifests(paths ...string) (Objects, error) {
	var all Objects
	var errs []error
	for _, path := range paths {
		files := []string{path}
		var err error
		if path != "-" {
			files, err = manifestFiles(path)
		}
		errs = append(errs, err)
		for _, file := range files {
			objects, err := readManifest(file)
			errs = append(errs, err, all.add(file, objects))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Objects{}, err
	}
	return all, nil
}

// manifestFiles returns the manifests at path: the file itself, or the files of the
// directory by name. Hidden files are left out; a ConfigMap volume has some.
func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("look for manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("look for manifests: %w", err)
	}
	var files []string
	for _, entry := range entries {
		file := filepath.Join(path, entry.Name())
		if isManifest(file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// isManifest reports whether a file of a directory is read. Where a file's link
// leads nowhere the answer is yes, so that reading it tells.
func isManifest(file string) bool {
	name := filepath.Base(file)
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
	default:
		return false
	}
	info, err := os.Stat(file)
	return err != nil || info.Mode().IsRegular()
}

func readManifest(file string) (Objects, error) {
	var data []byte
	var err error
	if file == "-" {
		file = "standard input"
		data, err = io.ReadAll(os.Stdin)
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return Objects{}, fmt.Errorf("read a manifest: %w", err)
	}
	return parseManifest(file, data)
}

// add appends the objects of another file, but for those that are there already,
// which it reports.
func (o *Objects) add(file string, more Objects) error {
	o.Notes = append(o.Notes, more.Notes...)
	var errs []error
	for _, repeated := range slices.Concat(
		appendNew(&o.Services, more.Services),
		appendNew(&o.EndpointSlices, more.EndpointSlices),
		appendNew(&o.Nodes, more.Nodes),
	) {
		errs = append(errs, fmt.Errorf("%s: %s is in an earlier file too, which counts", file, repeated))
	}
	return errors.Join(errs...)
}

// object is what Services, EndpointSlices and Nodes have in common.
type object interface {
	comparable
	GetNamespace() string
	GetName() string
}

// keyOf returns "namespace/name", or "name" for a Node.
func keyOf[T object](o T) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// appendNew appends to have those objects of more that are not there yet, and names
// the others.
func appendNew[T object](have *[]T, more []T) (repeated []string) {
	known := make(map[string]bool, len(*have)+len(more))
	for _, o := range *have {
		known[keyOf(o)] = true
	}
	for _, o := range more {
		if known[keyOf(o)] {
			repeated = append(repeated, kindOf(o)+" "+keyOf(o))
			continue
		}
		known[keyOf(o)] = true
		*have = append(*have, o)
	}
	return repeated
}

func kindOf[T object](o T) string { return reflect.TypeOf(o).Elem().Name() }

// manifest is one file while it is parsed.
type manifest struct {
	name    string
	objects Objects
	seen    map[string]bool
	errs    []error
}

// parseManifest returns the objects of a file, or everything that is wrong with it.
func parseManifest(name string, data []byte) (Objects, error) {
	m := &manifest{name: name, seen: make(map[string]bool)}
	for _, doc := range documents(data) {
		m.document(doc)
	}
	if err := errors.Join(m.errs...); err != nil {
		return Objects{}, err
	}
	return m.objects, nil
}

// documents splits YAML into its documents. Each one is led by as many empty lines
// as there were lines before it, so that its line numbers are those of the file.
func documents(data []byte) [][]byte {
	var docs [][]byte
	var doc []byte
	for n, line := range bytes.SplitAfter(data, []byte("\n")) {
		if isSeparator(line) {
			docs = append(docs, doc)
			doc = bytes.Repeat([]byte("\n"), n+1)
			continue
		}
		doc = append(doc, line...)
	}
	return append(docs, doc)
}

// isSeparator reports whether a line is "---", perhaps with a comment.
func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	rest = bytes.TrimSpace(rest)
	return ok && (len(rest) == 0 || rest[0] == '#')
}

// document parses one document: an object, or a list of objects.
func (m *manifest) document(text []byte) {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		m.errs = append(m.errs, syntaxErrors(m.name, err)...)
		return
	}
	var value any
	if err := json.Unmarshal(asJSON, &value); err != nil {
		m.errs = append(m.errs, fmt.Errorf("%s: %w", m.name, err))
		return
	}
	if value == nil {
		return // nothing but comments
	}
	m.object(source{m: m, text: text}, nil, value)
}

// object parses one object at path in its document.
func (m *manifest) object(src source, path *field.Path, value any) {
	fieldsOf, ok := value.(map[string]any)
	if !ok {
		src.report("object", field.ErrorList{field.Invalid(path.Child("kind"), value, "must be an object with apiVersion and kind")})
		return
	}
	version, _ := fieldsOf["apiVersion"].(string)
	kind, _ := fieldsOf["kind"].(string)
	switch version + " " + kind {
	case "v1 Service":
		if svc, ok := decodeObject(src, path, value, defaultService, validateService); ok && isServiceForUs(svc) {
			m.objects.Services = append(m.objects.Services, svc)
		}
	case "discovery.k8s.io/v1 EndpointSlice":
		if slice, ok := decodeObject(src, path, value, defaultSlice, validateSlice); ok && isSliceForUs(slice) {
			m.objects.EndpointSlices = append(m.objects.EndpointSlices, slice)
			if slice.Labels[discoveryv1.LabelServiceName] == "" {
				m.note(src, path, "EndpointSlice "+keyOf(slice)+" belongs to no Service: it has no label "+discoveryv1.LabelServiceName)
			}
		}
	case "v1 Node":
		if node, ok := decodeObject(src, path, value, func(*v1.Node) {}, validateNode); ok {
			m.objects.Nodes = append(m.objects.Nodes, node)
		}
	case "v1 List", "v1 ServiceList", "v1 NodeList", "discovery.k8s.io/v1 EndpointSliceList":
		items, _ := fieldsOf["items"].([]any)
		for i, item := range items {
			m.object(src, path.Child("items").Index(i), item)
		}
	default:
		m.otherKind(src, path, version, kind)
	}
}

// otherKind notes an object of a kind that is not used, or reports one that does
// not say what it is.
func (m *manifest) otherKind(src source, path *field.Path, version, kind string) {
	var errs field.ErrorList
	if version == "" {
		errs = append(errs, field.Required(path.Child("apiVersion"), "v1 for Service and Node, discovery.k8s.io/v1 for EndpointSlice"))
	}
	if kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "Service, EndpointSlice or Node"))
	}
	if len(errs) > 0 {
		src.report(cmp.Or(kind, "object"), errs)
		return
	}
	m.note(src, path, kind+" ("+version+") is left out: only Services, EndpointSlices and Nodes are read")
}

func (m *manifest) note(src source, path *field.Path, text string) {
	m.objects.Notes = append(m.objects.Notes, fmt.Sprintf("%s:%d: %s", m.name, src.line(path.Child("kind").String()), text))
}

// decodeObject makes an object of a document, and reports everything that is wrong
// with it.
func decodeObject[T any, P interface {
	*T
	object
}](src source, path *field.Path, value any, setDefaults func(P), validate func(P, *field.Path) field.ErrorList) (P, bool) {
	what := reflect.TypeFor[T]().Name()
	var shape fieldErrors
	shape.check(value, reflect.TypeFor[T](), path)
	if errs := slices.Concat(shape.unknown, shape.mistyped); len(errs) > 0 {
		src.report(what, errs)
		return nil, false
	}
	obj := P(new(T))
	text, err := json.Marshal(value)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, obj)
	}
	if err != nil {
		src.report(what, field.ErrorList{field.Invalid(path.Child("kind"), what, err.Error())})
		return nil, false
	}
	setDefaults(obj)
	what += " " + keyOf(obj)
	errs := validate(obj, path)
	if src.m.seen[what] {
		errs = append(errs, field.Duplicate(path.Child("metadata", "name"), obj.GetName()))
	}
	src.m.seen[what] = true
	src.report(what, errs)
	return obj, len(errs) == 0
}

func isServiceForUs(svc *v1.Service) bool {
	_, isOthers := svc.Labels[labelServiceProxyName]
	return !isOthers && svc.Spec.ClusterIP != v1.ClusterIPNone
}

func isSliceForUs(slice *discoveryv1.EndpointSlice) bool {
	_, isHeadless := slice.Labels[v1.IsHeadlessService]
	return !isHeadless
}
