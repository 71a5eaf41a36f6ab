// Package jsonstream writes large values as JSON without a second copy of them in memory.
//
// The output is that of encoding/json, which holds all of it before it writes any: for control characters that is six
// times the text. Long strings, slices, maps and structs are written part by part; everything else, and every type with
// an encoding of its own, is left to encoding/json.
package jsonstream

import (
	"encoding"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// piece is how much of a string is encoded at once.
const piece = 32 << 10

// Write writes v to w as json.Marshal encodes it.
func Write(w io.Writer, v any) error {
	e := &encoder{w: w}
	e.value(reflect.ValueOf(v))
	return e.err
}

type encoder struct {
	w   io.Writer
	err error // the first one
}

func (e *encoder) raw(text string) {
	if e.err == nil {
		_, e.err = io.WriteString(e.w, text)
	}
}

// marshal leaves v to encoding/json.
func (e *encoder) marshal(v any) {
	if e.err != nil {
		return
	}
	var b []byte
	if b, e.err = json.Marshal(v); e.err == nil {
		_, e.err = e.w.Write(b)
	}
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func (e *encoder) value(v reflect.Value) {
	if e.err != nil {
		return
	}
	if !v.IsValid() {
		e.raw("null")
		return
	}
	t := v.Type()
	if t.Implements(marshaler) || t.Implements(textMarshaler) {
		e.marshal(v.Interface())
		return
	}
	switch {
	case t.Kind() == reflect.String && t != reflect.TypeFor[json.Number]():
		e.text(v.String())
	case (t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface) && !v.IsNil():
		e.value(v.Elem())
	case t.Kind() == reflect.Struct && isPlain(t):
		e.object(v)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && !v.IsNil() && !isMarshaler(t.Key()):
		e.members(v)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && !v.IsNil():
		e.raw("[")
		for i := range v.Len() {
			if i > 0 {
				e.raw(",")
			}
			e.value(v.Index(i))
		}
		e.raw("]")
	default:
		e.marshal(v.Interface())
	}
}

func isMarshaler(t reflect.Type) bool { return t.Implements(marshaler) || t.Implements(textMarshaler) }

// text writes a string piece by piece. Each piece ends where a character begins.
func (e *encoder) text(s string) {
	e.raw(`"`)
	for len(s) > 0 && e.err == nil {
		n := min(len(s), piece)
		for back := 1; n < len(s) && !utf8.RuneStart(s[n]) && back < utf8.UTFMax; back++ {
			n--
		}
		var b []byte
		if b, e.err = json.Marshal(s[:n]); e.err == nil {
			_, e.err = e.w.Write(b[1 : len(b)-1])
		}
		s = s[n:]
	}
	e.raw(`"`)
}

// members writes a map.
func (e *encoder) members(v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	e.raw("{")
	for i, k := range keys {
		if i > 0 {
			e.raw(",")
		}
		e.text(k.String())
		e.raw(":")
		e.value(v.MapIndex(k))
	}
	e.raw("}")
}

// isPlain reports whether every field of a struct has a name, and no option but omitempty.
func isPlain(t reflect.Type) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || options != "" && options != "omitempty" {
			return false
		}
	}
	return true
}

// object writes a struct that is plain.
func (e *encoder) object(v reflect.Value) {
	e.raw("{")
	first := true
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || options == "omitempty" && isEmpty(v.Field(i)) {
			continue
		}
		if !first {
			e.raw(",")
		}
		first = false
		e.text(name)
		e.raw(":")
		e.value(v.Field(i))
	}
	e.raw("}")
}

// isEmpty reports what omitempty omits.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}
