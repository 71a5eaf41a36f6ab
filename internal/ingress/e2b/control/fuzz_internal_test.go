package control

import (
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/e2b/lenient"
)

// FuzzDecode checks that what is accepted is one JSON value without unknown fields that decide access, and that a
// refusal says why.
func FuzzDecode(f *testing.F) {
	f.Add(`{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}}`)
	f.Add(`{"templateID":"base"}{}`)
	f.Add(`{"templateID":1}`)
	f.Fuzz(func(t *testing.T, body string) {
		var n newSandbox
		s := &Server{bodies: &lenient.Decoder{}}
		err := s.decode(httptest.NewRequest("POST", "/", strings.NewReader(body)), &n)
		if err != nil {
			if e := api.AsError(err); e.Code != api.Invalid && e.Code != api.TooLarge || e.Message == "" {
				t.Errorf("decode(%q) = %v, want a code and a message", body, err)
			}
			return
		}
		if strings.TrimSpace(body) != "" && !json.Valid([]byte(body)) {
			t.Errorf("decode(%q) accepted what is not JSON", body)
		}
		if n.check() != nil {
			return
		}
		p, err := n.policy()
		if err == nil && p != nil && p.Validate() != nil {
			t.Errorf("%q gives the invalid policy %+v", body, p)
		}
	})
}

// noFiles is a Builds that must receive no files.
type noFiles struct {
	Builds
	t *testing.T
}

func (d noFiles) PutFiles(context.Context, auth.Principal, string, io.Reader) error {
	d.t.Error("PutFiles was called without a ticket of this server")
	return nil
}

// FuzzTicket checks that only tickets of this server let files in.
func FuzzTicket(f *testing.F) {
	s := &Server{cfg: Config{Secret: []byte(strings.Repeat("k", 32))}}
	f.Add("aa", s.ticket("a", "aa", time.Now().Add(time.Hour)))
	f.Add("bb", "YQ.99999999999."+strings.Repeat("0", 64))
	good := s.ticket("a", "aa", time.Now().Add(time.Hour))
	f.Fuzz(func(t *testing.T, hash, ticket string) {
		if hash == "aa" && ticket == good || len(ticket) > 1<<12 {
			return
		}
		r := httptest.NewRequest("PUT", "/templates/uploads/x?"+url.Values{"ticket": {ticket}}.Encode(), nil)
		r.SetPathValue("hash", hash)
		if parts := strings.Split(ticket, "."); len(parts) == 3 && hash == "aa" &&
			strings.HasPrefix(good, parts[0]+"."+parts[1]) &&
			strings.HasSuffix(good, parts[2]) {
			return // the seed
		}
		if _, err := s.putFiles(r, noFiles{t: t}); err == nil {
			t.Errorf("upload of %q with ticket %q was accepted", hash, ticket)
		}
	})
}

// FuzzLogQuery checks that an accepted query selects no more entries than its limit.
func FuzzLogQuery(f *testing.F) {
	f.Add("cursor=1&limit=2&direction=backward&level=warn&search=x")
	f.Add("start=1000000")
	all := []logEntry{
		{Timestamp: time.Unix(1, 0), Message: "x", Level: "info"},
		{Timestamp: time.Unix(2, 0), Message: "y", Level: "error"},
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := parseLogQuery(values)
		if err != nil {
			return
		}
		if got := q.apply(all); len(got) > q.limit || q.limit > 10_000 {
			t.Errorf("%q selects %d entries, want at most %d", query, len(got), q.limit)
		}
	})
}

// FuzzFilter checks that every list has a limit.
func FuzzFilter(f *testing.F) {
	f.Add("metadata=a%3Db%26c%3Dd&limit=10&nextToken=x&order=desc")
	f.Add("metadata=%25zz&limit=-1")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if got, err := parseFilter(q); err == nil && (got.Limit < 1 || got.Limit > 100) {
			t.Errorf("parseFilter(%q) has the limit %d, want 1 to 100", query, got.Limit)
		}
	})
}
