package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/buildform"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// maxBody bounds a JSON body in bytes. Files are not bounded by it.
const maxBody = 8 << 20

// bodyCost is how much memory a byte of a JSON body takes while it is decoded and used.
const bodyCost = 6

// decode reads a JSON body into v, a pointer to a struct, and validates it. An empty body is {}.
func (rq *request) decode(v any) error {
	data, err := io.ReadAll(rq.memory.Reader(http.MaxBytesReader(rq.w, rq.r.Body, maxBody), bodyCost))
	if refused := execstream.UnpaidError(err, "body"); refused != nil {
		return refused
	}
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return api.Errorf(api.TooLarge,
			"the body has more than %d bytes: send large data as a file with PUT fs", maxBody).
			With("limit_bytes", maxBody)
	}
	if slow, ok := errors.AsType[*api.Error](err); ok {
		return slow
	}
	if err != nil {
		return api.Wrap(api.Invalid, err, "the body broke off: "+err.Error())
	}
	if err := decodeStrict(data, v); err != nil {
		return err
	}
	if checked, ok := v.(interface{ Validate() error }); ok {
		return checked.Validate()
	}
	return nil
}

// decodeStrict decodes JSON into a struct and refuses fields that the struct does not have.
func decodeStrict(data []byte, v any) error {
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
	known := jsonFields(t)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		inner, ok := known[name]
		if !ok {
			return api.Errorf(api.Invalid, "%s: no such field: known are %s", truncate(at+name),
				strings.Join(slices.Sorted(maps.Keys(known)), ", ")).With("field", truncate(at+name))
		}
		if err := unknownFields(at+name+".", members[name], inner); err != nil {
			return err
		}
	}
	return nil
}

// jsonFields returns the types of a struct's fields by their JSON names.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(known, jsonFields(f.Type))
		}
		if f.IsExported() && name != "" && name != "-" {
			known[name] = f.Type
		}
	}
	return known
}
