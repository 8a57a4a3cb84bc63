package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// fieldErrors are what is wrong with a document's shape.
type fieldErrors struct {
	// unknown are fields that the type does not have.
	unknown field.ErrorList
	// mistyped are values that their field cannot hold.
	mistyped field.ErrorList
}

// checkFields compares a decoded JSON document with the type it is meant for and
// finds everything that does not fit. The decoders stop at the first mistake, and
// do not always say where it is.
func checkFields(document any, t reflect.Type) fieldErrors {
	var errs fieldErrors
	errs.check(document, t, nil)
	return errs
}

func (e *fieldErrors) check(value any, t reflect.Type, path *field.Path) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case nil:
		return
	case map[string]any:
		if reflect.PointerTo(t).Implements(unmarshaler) {
			break
		}
		switch t.Kind() {
		case reflect.Struct:
			for key, v := range value {
				child := path.Child(key)
				if ft, ok := fieldType(t, key); ok {
					e.check(v, ft, child)
				} else {
					e.unknown = append(e.unknown, field.Forbidden(child, "there is no such field; check its spelling, case and indentation"))
				}
			}
			return
		case reflect.Map:
			for key, v := range value {
				e.check(v, t.Elem(), path.Key(key))
			}
			return
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, v := range value {
				e.check(v, t.Elem(), path.Index(i))
			}
			return
		}
	}
	if err := fits(value, t); err != nil {
		e.mistyped = append(e.mistyped, field.Invalid(path, value, err.Error()))
	}
}

// fieldType returns the type of the struct's field with the JSON name key, looking
// into embedded structs.
func fieldType(t reflect.Type, key string) (reflect.Type, bool) {
	for f := range fieldsOf(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			if ft, ok := fieldType(f.Type, key); ok {
				return ft, true
			}
		case name == key && name != "-":
			return f.Type, true
		}
	}
	return nil, false
}

// fieldsOf yields the fields of a struct.
func fieldsOf(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// fits returns why a value cannot be decoded into t, nil if it can.
func fits(value any, t reflect.Type) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	err = json.Unmarshal(text, reflect.New(t).Interface())
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("must be a %s, not a %s", typeName(mismatch.Type), valueName(mismatch.Value))
	}
	return err
}

// typeName names a type as a writer of YAML knows it.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map:
		return "mapping"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint16, reflect.Uint32:
		return "whole number"
	}
	return t.Kind().String()
}

// valueName names a kind of JSON value as a writer of YAML knows it.
func valueName(kind string) string {
	switch kind {
	case "array":
		return "list"
	case "object":
		return "mapping"
	case "bool":
		return "boolean"
	}
	return kind
}
