// Package strictjson finds what encoding/json accepts in a JSON text and a careful server does not.
//
// The functions have no state and may be called concurrently.
package strictjson

import (
	"bytes"
	"encoding/json"
	"strings"
)

// frame is an object or array that is open.
type frame struct {
	keys map[string]struct{} // of an object; nil for an array
	name string              // of the member that is being read
	key  bool                // the next token is a key or the end
}

// DuplicateKey returns the path of the first member that an object of data has twice, such as "env.A".
//
// It returns false if there is none. The text must be valid JSON; the result of any other is undefined.
func DuplicateKey(data []byte) (path string, found bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var stack []*frame
	for {
		token, err := dec.Token()
		if err != nil {
			return "", false // the end
		}
		var top *frame
		if len(stack) > 0 {
			top = stack[len(stack)-1]
		}
		delim, _ := token.(json.Delim)
		if delim == '}' || delim == ']' {
			stack = stack[:len(stack)-1]
			continue
		}
		if top != nil && top.key {
			top.name, _ = token.(string)
			if _, twice := top.keys[top.name]; twice {
				return pathOf(stack), true
			}
			top.keys[top.name] = struct{}{}
			top.key = false
			continue
		}
		if top != nil && top.keys != nil {
			top.key = true
		}
		switch delim {
		case '{':
			stack = append(stack, &frame{keys: map[string]struct{}{}, key: true})
		case '[':
			stack = append(stack, &frame{})
		}
	}
}

func pathOf(stack []*frame) string {
	var names []string
	for _, f := range stack {
		if f.keys != nil {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ".")
}
