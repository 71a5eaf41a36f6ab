// Package lenient decodes bodies of requests of a protocol whose clients are ahead of this server.
//
// Each release of a client may send fields that are not known here. They are accepted and logged once, except in what
// decides access: a rule that was not understood must not count as one that was not given.
//
// A Decoder may be used by several goroutines.
package lenient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/lib/strictjson"
)

// Strict marks the type of an object that decides access: all its fields must be known, at every depth.
type Strict interface{ DecidesAccess() }

// UnknownError is the error of a field that is not known and may decide access.
type UnknownError struct{ Field string }

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("field %q is not supported by this server: leave it out", e.Field)
}

// accessWords are parts of names of fields that may decide access.
var accessWords = []string{
	"access", "allow", "auth", "credential", "deny", "egress", "firewall", "ingress", "internet", "network", "password",
	"permission", "private", "proxy", "public", "role", "scope", "secret", "secure", "token",
}

// maxLogged bounds the fields that are remembered as logged; further ones are not logged.
const maxLogged = 1000

// Decoder decodes bodies. The zero value logs nothing.
type Decoder struct {
	Log *slog.Logger

	mu     sync.Mutex
	logged map[string]bool // operation and field; guarded by mu
}

// Decode decodes one JSON value into v. operation names the request in the log.
//
// The error of an unknown field that may decide access is an *UnknownError. A field of a known one is written with a
// dot, as in "network.port".
func (d *Decoder) Decode(operation string, data []byte, v any) error {
	dec := json.NewDecoder(strings.NewReader(string(data)))
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body holds more than one value")
	}
	if field, twice := strictjson.DuplicateKey(data); twice {
		return fmt.Errorf("field %.200q is given twice", field)
	}
	var found []string
	if err := unknown(data, reflect.TypeOf(v), "", false, &found); err != nil {
		return err
	}
	for _, field := range found {
		d.log(operation, field)
	}
	return nil
}

func (d *Decoder) log(operation, field string) {
	if d.Log == nil {
		return
	}
	key := operation + " " + field
	d.mu.Lock()
	again := d.logged[key] || len(d.logged) == maxLogged
	if d.logged == nil {
		d.logged = map[string]bool{}
	}
	if !again {
		d.logged[key] = true
	}
	d.mu.Unlock()
	if !again {
		d.Log.Warn("a client sent a field that is not known and was left out; it is logged once",
			"operation", operation, "field", field)
	}
}

var rawType = reflect.TypeFor[json.RawMessage]()

// unknown collects the fields of a value that its type does not have. The value was decoded into the type before.
func unknown(data []byte, t reflect.Type, at string, strict bool, found *[]string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	strict = strict || t.Implements(reflect.TypeFor[Strict]())
	switch {
	case t == rawType || t.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return nil
	case t.Kind() == reflect.Struct:
		return unknownFields(data, t, at, strict, found)
	case t.Kind() == reflect.Slice && holds(t.Elem()):
		var list []json.RawMessage
		if err := json.Unmarshal(data, &list); err != nil {
			return err
		}
		for _, e := range list {
			if err := unknown(e, t.Elem(), at, strict, found); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Map && holds(t.Elem()):
		var all map[string]json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
		for _, e := range all {
			if err := unknown(e, t.Elem(), at, strict, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// holds reports whether values of a type may hold objects with fields.
func holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return t != rawType && holds(t.Elem())
	default:
		return t.Kind() == reflect.Struct
	}
}

func unknownFields(data []byte, t reflect.Type, at string, strict bool, found *[]string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	known := fieldsOf(t)
	for name, value := range object {
		path := strings.TrimPrefix(at+"."+name, ".")
		if f, ok := known[strings.ToLower(name)]; ok {
			if err := unknown(value, f, path, strict, found); err != nil {
				return err
			}
			continue
		}
		lower := strings.ToLower(name)
		if strict || slices.ContainsFunc(accessWords, func(w string) bool { return strings.Contains(lower, w) }) {
			return &UnknownError{path}
		}
		*found = append(*found, path)
	}
	return nil
}

// fieldsOf returns the types of a struct's fields by their name in JSON, in lower case: encoding/json ignores case.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" || !field.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = field.Name
		}
		out[strings.ToLower(name)] = field.Type
	}
	return out
}
