// Package strictjson decodes bodies of requests and refuses what they should not contain.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/buildform"
)

// Decode decodes JSON into a struct and refuses fields that the struct does not have.
func Decode(data []byte, v any) error {
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) == 0 || string(trimmed) == "null" {
		return nil
	}
	err := json.Unmarshal(data, v)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := position(data, e.Offset)
		return api.Errorf(api.Invalid, "the body is not JSON: line %d, column %d: %v", line, column, e).
			With("line", line).With("column", column)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typeError(data, e)
	}
	if err != nil {
		return api.Errorf(api.Invalid, "the body is not what was expected: %w", err)
	}
	if err := buildform.CheckDuplicates(trimmed); err != nil {
		return err
	}
	return unknownFields("", trimmed, reflect.TypeOf(v))
}

func typeError(data []byte, e *json.UnmarshalTypeError) error {
	line, column := position(data, e.Offset)
	if e.Field == "" {
		return api.Errorf(api.Invalid, "the body is a JSON %s: send an object, {...}", e.Value)
	}
	return api.Errorf(api.Invalid, "%s: is a JSON %s: send %s (line %d, column %d)",
		e.Field, e.Value, jsonKind(e.Type), line, column).
		With("field", e.Field).
		With("line", line).
		With("column", column)
}

// position returns the line and column of an offset, both counted from 1.
func position(data []byte, offset int64) (line, column int) {
	before := data[:min(max(offset-1, 0), int64(len(data)))]
	line = bytes.Count(before, []byte("\n")) + 1
	column = len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return line, column
}

func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number in range"
	default:
		return "another type"
	}
}

// unknownFields returns an error for the first member of data that type t has no field for. at is the path of data.
func unknownFields(at string, data []byte, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		var items []json.RawMessage
		if t.Elem().Kind() != reflect.Struct || json.Unmarshal(data, &items) != nil {
			return nil
		}
		for _, item := range items {
			if err := unknownFields(at, item, t.Elem()); err != nil {
				return err
			}
		}
	case reflect.Struct:
		return unknownMembers(at, data, t)
	default:
	}
	return nil
}

func unknownMembers(at string, data []byte, t reflect.Type) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return nil // a type that decodes itself from another JSON type
	}
	known := fieldsOf(t)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		inner, ok := known[name]
		if !ok {
			return api.Errorf(api.Invalid, "%s: no such field: known are %s", cut(at+name),
				strings.Join(slices.Sorted(maps.Keys(known)), ", ")).With("field", cut(at+name))
		}
		if err := unknownFields(at+name+".", members[name], inner); err != nil {
			return err
		}
	}
	return nil
}

// fieldsOf returns the types of a struct's fields by their JSON names.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(known, fieldsOf(f.Type))
		}
		if f.IsExported() && name != "" && name != "-" {
			known[name] = f.Type
		}
	}
	return known
}

// cut returns a name that a client chose, at most 60 bytes of it.
func cut(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}
