package e2bapi

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

// FuzzDecode: what is taken is one JSON value of known fields, and what is refused says why.
func FuzzDecode(f *testing.F) {
	f.Add(`{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}}`)
	f.Add(`{"templateID":"base"}{}`)
	f.Add(`{"templateID":1}`)
	f.Fuzz(func(t *testing.T, body string) {
		var n newSandbox
		err := decode(httptest.NewRequest("POST", "/", strings.NewReader(body)), &n)
		if err != nil {
			if e := api.AsError(err); e.Code != api.Invalid && e.Code != api.TooLarge || e.Message == "" {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if strings.TrimSpace(body) != "" && !json.Valid([]byte(body)) {
			t.Errorf("%q was taken", body)
		}
		if n.check() != nil {
			return
		}
		p, err := n.policy()
		if err == nil && p != nil && p.Validate() != nil {
			t.Errorf("%q gives a policy that does not hold: %+v", body, p)
		}
	})
}

// FuzzFilter: every list has a bound.
func FuzzFilter(f *testing.F) {
	f.Add("metadata=a%3Db%26c%3Dd&limit=10&nextToken=x&order=desc")
	f.Add("metadata=%25zz&limit=-1")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if got, err := filterOf(q); err == nil && (got.Limit < 1 || got.Limit > 100) {
			t.Errorf("%q: a list of %d", query, got.Limit)
		}
	})
}
