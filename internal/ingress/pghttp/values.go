package pghttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

const maxDepth = 64 // of arrays

var errDepth = errors.New("it is nested too deeply")

// paramText returns the text of a JSON value as PostgreSQL reads it; nil is NULL.
func paramText(raw json.RawMessage) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, nil
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		if strings.ContainsRune(s, 0) {
			return nil, errors.New("text cannot contain a zero byte")
		}
		return []byte(s), nil
	case '[':
		return appendArray(nil, raw, 0)
	default: // a number, a boolean, or an object as JSON
		return raw, nil
	}
}

// appendArray appends the array literal of a JSON array.
func appendArray(to []byte, raw json.RawMessage, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	to = append(to, '{')
	for i, one := range all {
		if i > 0 {
			to = append(to, ',')
		}
		if one = bytes.TrimSpace(one); len(one) > 0 && one[0] == '[' {
			var err error
			if to, err = appendArray(to, one, depth+1); err != nil {
				return nil, err
			}
			continue
		}
		text, err := paramText(one)
		switch {
		case err != nil:
			return nil, err
		case text == nil:
			to = append(to, "NULL"...)
		case one[0] == '"' || one[0] == '{':
			to = append(to, '"')
			for _, c := range text {
				if c == '"' || c == '\\' {
					to = append(to, '\\')
				}
				to = append(to, c)
			}
			to = append(to, '"')
		default:
			to = append(to, text...)
		}
	}
	return append(to, '}'), nil
}

// types knows the types of PostgreSQL by their numbers. It is not changed.
var types = pgtype.NewMap()

// appendResult appends a result of Neon's protocol.
func appendResult(out *bytes.Buffer, r *result, arrays, raw bool) {
	command, _, _ := strings.Cut(r.tag.String(), " ")
	out.WriteString(`{"command":`)
	appendString(out, command)
	out.WriteString(`,"rowCount":`)
	words := strings.Fields(r.tag.String())
	if len(words) > 1 && words[len(words)-1] == strconv.FormatInt(r.tag.RowsAffected(), 10) {
		out.WriteString(words[len(words)-1])
	} else {
		out.WriteString("null")
	}
	out.WriteString(`,"rowAsArray":` + strconv.FormatBool(arrays) + `,"fields":[`)
	for i, f := range r.fields {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(`{"name":`)
		appendString(out, f.Name)
		for _, n := range []struct {
			name  string
			value int64
		}{
			{"dataTypeID", int64(f.DataTypeOID)}, {"tableID", int64(f.TableOID)},
			{"columnID", int64(f.TableAttributeNumber)}, {"dataTypeSize", int64(f.DataTypeSize)},
			{"dataTypeModifier", int64(f.TypeModifier)},
		} {
			out.WriteString(`,"` + n.name + `":` + strconv.FormatInt(n.value, 10))
		}
		out.WriteString(`,"format":"text"}`)
	}
	out.WriteString(`],"rows":[`)
	for i, row := range r.rows {
		if i > 0 {
			out.WriteByte(',')
		}
		appendRow(out, r, row, arrays, raw)
	}
	out.WriteString(`]}`)
}

func appendRow(out *bytes.Buffer, r *result, row [][]byte, array, raw bool) {
	brackets := "{}"
	if array {
		brackets = "[]"
	}
	out.WriteByte(brackets[0])
	for i, v := range row {
		if i > 0 {
			out.WriteByte(',')
		}
		if !array {
			appendString(out, r.fields[i].Name)
			out.WriteByte(':')
		}
		if raw {
			appendText(out, v)
		} else {
			appendValue(out, v, r.fields[i].DataTypeOID, false)
		}
	}
	out.WriteByte(brackets[1])
}

func appendString(out *bytes.Buffer, s string) {
	text, _ := json.Marshal(s) // strings can always be encoded
	out.Write(text)
}

// appendText appends a value as a string.
func appendText(out *bytes.Buffer, v []byte) {
	if v == nil {
		out.WriteString("null")
		return
	}
	appendString(out, string(v))
}

// appendValue appends a value as JSON of its type: booleans, numbers that JSON holds exactly, JSON and arrays of them.
// wide makes numbers of 64 bits numbers, too.
func appendValue(out *bytes.Buffer, v []byte, oid uint32, wide bool) {
	if v == nil {
		out.WriteString("null")
		return
	}
	switch oid {
	case pgtype.BoolOID:
		out.WriteString(strconv.FormatBool(len(v) > 0 && v[0] == 't'))
		return
	case pgtype.Int8OID:
		if !wide {
			break
		}
		fallthrough
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Float4OID, pgtype.Float8OID, pgtype.JSONOID, pgtype.JSONBOID:
		if json.Valid(v) { // not NaN and Infinity
			out.Write(v)
			return
		}
	default:
		if t, ok := types.TypeForOID(oid); ok {
			if array, ok := t.Codec.(*pgtype.ArrayCodec); ok && appendJSONArray(out, v, array.ElementType.OID, wide) {
				return
			}
		}
	}
	appendText(out, v)
}

// appendJSONArray appends an array literal as a JSON array. It appends nothing and returns false if v is malformed.
func appendJSONArray(out *bytes.Buffer, v []byte, element uint32, wide bool) bool {
	if at := bytes.IndexByte(v, '='); len(v) > 0 && v[0] == '[' && at > 0 {
		v = v[at+1:] // bounds that do not begin at 1
	}
	var array bytes.Buffer
	p := arrayParser{rest: v, out: &array, element: element, wide: wide}
	if !p.array(0) || len(p.rest) > 0 {
		return false
	}
	out.Write(array.Bytes())
	return true
}

// arrayParser translates an array literal.
type arrayParser struct {
	rest    []byte
	out     *bytes.Buffer
	element uint32
	wide    bool
}

// next consumes c if it is the next byte.
func (p *arrayParser) next(c byte) bool {
	if len(p.rest) == 0 || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *arrayParser) array(depth int) bool {
	if depth > maxDepth || !p.next('{') {
		return false
	}
	p.out.WriteByte('[')
	if p.next('}') {
		p.out.WriteByte(']')
		return true
	}
	for {
		if len(p.rest) > 0 && p.rest[0] == '{' {
			if !p.array(depth + 1) {
				return false
			}
		} else if !p.value() {
			return false
		}
		if p.next('}') {
			p.out.WriteByte(']')
			return true
		}
		if !p.next(',') {
			return false
		}
		p.out.WriteByte(',')
	}
}

func (p *arrayParser) value() bool {
	if p.next('"') {
		text := []byte{}
		for len(p.rest) > 0 {
			c := p.rest[0]
			p.rest = p.rest[1:]
			if c == '"' {
				appendValue(p.out, text, p.element, p.wide)
				return true
			}
			if c == '\\' && len(p.rest) > 0 {
				c, p.rest = p.rest[0], p.rest[1:]
			}
			text = append(text, c)
		}
		return false
	}
	n := bytes.IndexAny(p.rest, `,{}"\`)
	if n <= 0 {
		return false
	}
	text := p.rest[:n]
	p.rest = p.rest[n:]
	if bytes.EqualFold(text, []byte("NULL")) {
		text = nil
	}
	appendValue(p.out, text, p.element, p.wide)
	return true
}
