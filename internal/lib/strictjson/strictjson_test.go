package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/strictjson"
)

func TestDuplicateKey(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "", `null`: "", `"a"`: "", `[1,{"a":1},{"a":2}]`: "", `{"a":{"a":1},"b":{"a":1}}`: "", "": "",
		`{"a":1,"a":2}`: "a", `{"env":{"A":"1","B":"2","A":"3"}}`: "env.A", `{"a":1,"A":2}`: "",
		`{"x":[{"y":1},{"z":{"q":[],"q":{}}}]}`: "x.z.q",
		`{"a":1,"\u0061":2}`:                    "a", `{"":1,"":2}`: "", `{"a":{},"b":[],"a":1}`: "a",
		`{"a":"b","b":"a","c":["a","a"],"a":null}`: "a",
	} {
		got, found := strictjson.DuplicateKey([]byte(text))
		if got != want || found != (want != "" || text == `{"":1,"":2}`) {
			t.Errorf("DuplicateKey(%s) = %q, %v; want %q", text, got, found, want)
		}
	}
}

func FuzzDuplicateKey(f *testing.F) {
	f.Add(`{"a":[{"b":1}],"a":{}}`)
	f.Add(strings.Repeat("[", 100))
	f.Fuzz(func(t *testing.T, text string) {
		got, found := strictjson.DuplicateKey([]byte(text))
		var members map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &members) != nil || len(members) != 1 || found {
			return
		}
		for name, value := range members { // the same member twice
			name, _ := json.Marshal(name)
			twice := "{" + string(name) + ":" + string(value) + "," + string(name) + ":" + string(value) + "}"
			if _, found := strictjson.DuplicateKey([]byte(twice)); !found {
				t.Errorf("DuplicateKey(%s) = %q, want the member", twice, got)
			}
		}
	})
}
