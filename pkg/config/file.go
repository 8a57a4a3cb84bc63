package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// readFile reads a configuration file and fills in the defaults.
func readFile(path string) (decoded, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return decoded{}, fmt.Errorf("read the configuration: %w; check --config and the volume mount", err)
	}
	return decode(path, data)
}

// decoded is a configuration with what its text says beyond its values.
type decoded struct {
	*v1alpha1.KubeProxyConfiguration
	minSyncPeriodSet bool
	modeDefaulted    bool
	warnings         []string
}

// decode makes a configuration of YAML or JSON; path is for messages. Unknown fields
// are warnings only, as in kube-proxy: a misspelt or outdated field must not take a
// node's Services away. Values that do not fit their field are errors, all of them at
// once.
func decode(path string, data []byte) (decoded, error) {
	// Repeated keys are forgiven here and told of below.
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return decoded{}, errors.Join(syntaxErrors(path, err)...)
	}
	if err := checkKind(path, text); err != nil {
		return decoded{}, err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return decoded{}, fmt.Errorf("%s: not a valid document: %w", path, err)
	}
	shape := checkFields(document, reflect.TypeFor[v1alpha1.KubeProxyConfiguration]())
	if len(shape.mistyped) > 0 {
		return decoded{}, joined(path, shape.mistyped)
	}
	c := &v1alpha1.KubeProxyConfiguration{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, c); err != nil {
		return decoded{}, fmt.Errorf("%s: not a %s: %w", path, kind, err)
	}
	d := decoded{
		KubeProxyConfiguration: c,
		minSyncPeriodSet:       c.IPTables.MinSyncPeriod.Duration != 0,
		modeDefaulted:          c.Mode == "",
	}
	for _, err := range sorted(shape.unknown) {
		d.warnings = append(d.warnings, path+": "+err.Error()+" (ignored)")
	}
	if _, err := yaml.YAMLToJSONStrict(data); err != nil {
		for _, err := range syntaxErrors(path, err) {
			d.warnings = append(d.warnings, err.Error()+" (the last one counts)")
		}
	}
	setDefaults(c)
	return d, nil
}

// checkKind reports a document that is something else than a KubeProxyConfiguration.
func checkKind(path string, text []byte) error {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return fmt.Errorf("%s: not a %s: the file must hold one mapping with apiVersion and kind", path, kind)
	}
	var errs field.ErrorList
	if meta.APIVersion != apiVersion {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), meta.APIVersion, []string{apiVersion}))
	}
	if meta.Kind != kind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), meta.Kind, []string{kind}))
	}
	return joined(path, errs)
}

// joined makes one error of a list: a line for each, in the order of the fields,
// with the file's path before it if there is one.
func joined(path string, list field.ErrorList) error {
	var errs []error
	for _, err := range sorted(list) {
		if path == "" {
			errs = append(errs, err)
		} else {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// sorted orders errors by field: documents are walked in the order of Go maps.
func sorted(list field.ErrorList) field.ErrorList {
	slices.SortStableFunc(list, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
	return list
}
