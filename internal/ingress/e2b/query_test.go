package e2b_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// TestQueriesAreUnderstood checks that no route ignores an unknown name in a query.
func TestQueriesAreUnderstood(t *testing.T) {
	w := newFixture(t)
	id := w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
	fill := strings.NewReplacer(
		"{id}",
		"base",
		"{build}",
		"bldaaaaaaaaaaaaaaaaaaaaa",
		"{hash}",
		strings.Repeat("0", 64),
		"{part}",
		"tags",
	)
	ask := func(method, path, body string) {
		t.Helper()
		status, text, _ := w.call(method, path+"?colour=red", w.key, body)
		if (status != 400 || !strings.Contains(text, "colour")) && status != 501 {
			t.Errorf("%s %s with an unknown name: got %d %s, want a refusal that names it", method, path, status, text)
		}
	}
	for _, r := range ofSandbox {
		ask(r.method, r.at(id), r.body)
	}
	for _, r := range others {
		if !strings.HasPrefix(r.path, "/templates/uploads/") { // an address that this server makes
			ask(r.method, fill.Replace(r.path), r.body)
		}
	}
	w.must(200, "GET", "/sandboxes/"+id, "")
}

// TestFiltersAsClientsSendThem checks that metadata is decoded twice, that states come in either form of a list, and
// that the number of running sandboxes counts all pages.
func TestFiltersAsClientsSendThem(t *testing.T) {
	w := newFixture(t)
	const key, value = "a & b", "100% +ü=x y"
	for range 3 {
		w.create("/v2/sandboxes", fmt.Sprintf(`{"templateID":"base","metadata":{%q:%q}}`, key, value))
	}
	resting := w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
	w.must(204, "POST", "/sandboxes/"+resting+"/pause", "")
	// encodeURIComponent of a browser is url.PathEscape except for a few characters that need no escape.
	inner := url.Values{url.PathEscape(key): {url.PathEscape(value)}}.Encode()
	count := func(query string) int {
		t.Helper()
		return strings.Count(w.must(200, "GET", "/v2/sandboxes?"+query, ""), `"sandboxID"`)
	}
	for query, want := range map[string]int{
		"metadata=" + url.QueryEscape(inner):                                 3,
		"metadata=" + url.QueryEscape("a%20%26%20b=100%25 %2Bü%3Dx%20y"):     3, // encoded once
		"metadata=" + url.QueryEscape(strings.Replace(inner, "100", "1", 1)): 0,
		"":                           4,
		"state=running":              3,
		"state=running,paused":       4,
		"state=paused&state=running": 4,
		"state=paused":               1,
		"template=base&limit=2":      2,
		"template=nobody-has-it":     0,
	} {
		if got := count(query); got != want {
			t.Errorf("%s: got %d sandboxes, want %d", query, got, want)
		}
	}
	seen, next := 0, ""
	for range 4 {
		_, text, header := w.call("GET", "/v2/sandboxes?limit=1&nextToken="+url.QueryEscape(next), w.key, "")
		seen += strings.Count(text, `"sandboxID"`)
		if got := header.Get("X-Total-Running"); got != "3" {
			t.Errorf("X-Total-Running of a page = %s, want 3", got)
		}
		next = header.Get("X-Next-Token")
	}
	if seen != 4 || next != "" {
		t.Errorf("got %d sandboxes on the pages, then cursor %q; want all and none", seen, next)
	}
}

// TestMetricsOfRequestedTime checks that metrics are those of the requested time.
func TestMetricsOfRequestedTime(t *testing.T) {
	w := newFixture(t)
	id := w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
	now := time.Now().Unix()
	for i, row := range []struct {
		query string
		any   bool
	}{
		{"", true},
		{fmt.Sprintf("start=%d", now-60), true},
		{fmt.Sprintf("end=%d", now+600), true},
		{fmt.Sprintf("end=%d", now-600), false},
		{fmt.Sprintf("start=%d", now+600), false},
	} {
		want := 0
		if row.any {
			want = i + 1 // each request measures
		}
		text := w.must(200, "GET", "/sandboxes/"+id+"/metrics?"+row.query, "")
		if got := strings.Count(text, `"timestampUnix"`); got != want {
			t.Errorf("metrics with %s: got %d points, want %d", row.query, got, want)
		}
	}
	for _, query := range []string{"start=x", "end=-1", "start=5&end=4"} {
		w.must(400, "GET", "/sandboxes/"+id+"/metrics?"+query, "")
	}
	got := w.must(200, "GET", "/sandboxes/metrics?sandbox_ids="+id+",sbxaaaaaaaaaaaaaaaaaaaaa,"+id, "")
	if strings.Count(got, "timestampUnix") != 1 {
		t.Errorf("metrics of several sandboxes = %s, want one per sandbox", got)
	}
	w.must(404, "GET", "/sandboxes/sbxaaaaaaaaaaaaaaaaaaaaa/metrics", "")
}

// TestEveryField checks that every field of a create in the protocol is honoured or refused by its name.
func TestEveryField(t *testing.T) {
	w := newFixture(t)
	for field, c := range map[string]struct {
		body   string
		shows  string // in the sandbox's detail; "": the field is refused
		status int
	}{
		"templateID":            {`"timeout":60`, `"templateID":"base"`, 201},
		"metadata":              {`"metadata":{"k":"v"}`, `"metadata":{"k":"v"}`, 201},
		"allow_internet_access": {`"allow_internet_access":false`, `"allowInternetAccess":false`, 201},
		"autoPause":             {`"autoPause":true`, `"onTimeout":"pause"`, 201},
		"autoPauseMemory":       {`"autoPause":true,"autoPauseMemory":false`, `"onTimeout":"pause"`, 201},
		"autoResume":            {`"autoPause":true,"autoResume":{"enabled":true}`, `"autoResume":true`, 201},
		"network.allowOut": {
			`"network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}`, `"allowOut":["a.example"]`, 201},
		"network.denyOut": {
			`"network":{"denyOut":["198.51.100.0/24"]}`, `"denyOut":["198.51.100.0/24"]`, 201},
		"network.allowPublicTraffic": {`"network":{"allowPublicTraffic":false}`, `"allowPublicTraffic":false`, 201},
		"network.maskRequestHost": {
			`"network":{"maskRequestHost":"h.example:${PORT}"}`, `"maskRequestHost":"h.example:${PORT}"`, 201},
		"network.httpsPorts":  {`"network":{"httpsPorts":[8443]}`, `"httpsPorts":[8443]`, 201},
		"network.egressProxy": {`"network":{"egressProxy":{"address":"p.example:1080"}}`, "", 501},
		"network.rules": {
			`"network":{"rules":{"a.example":[{"transform":{"headers":{"a":"b"}}}]}}`, "", 501},
		"mcp":          {`"mcp":{"server":{}}`, "", 501},
		"iam":          {`"iam":{"tokens":{"a":{}}}`, "", 501},
		"volumeMounts": {`"volumeMounts":[{"name":"v","path":"v"}]`, "", 400},
		"colour":       {`"colour":"red","autoResume":{"policy":"any"}`, `"onTimeout":"kill"`, 201},
		"allowedHosts": {`"allowedHosts":[]`, "", 400},
		"network.new":  {`"network":{"new":1}`, "", 400},
		"nothing": {
			`"mcp":null,"iam":{},"volumeMounts":[],"network":{"egressProxy":null,"rules":{}}`,
			`"onTimeout":"kill"`, 201,
		},
	} {
		for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
			status, text, _ := w.call("POST", path, w.key, `{"templateID":"base",`+c.body+`}`)
			if status != c.status || c.shows == "" && !strings.Contains(text, field) {
				t.Errorf("%s in a create at %s: got %d %s, want %d", field, path, status, text, c.status)
				continue
			}
			if c.shows == "" {
				continue
			}
			var made created
			w.decode(text, &made)
			if detail := w.must(200, "GET", "/sandboxes/"+made.SandboxID, ""); !strings.Contains(detail, c.shows) {
				t.Errorf("%s: detail %s lacks %s", field, detail, c.shows)
			}
			if field == "autoPauseMemory" {
				if b, err := w.boxes.Get(t.Context(), w.principal(), api.SandboxID(made.SandboxID)); err != nil ||
					b.OnTimeout != api.TimeoutStop {
					t.Errorf("%s: lifecycle on timeout = %q, %v", field, b.OnTimeout, err)
				}
			}
		}
	}
	made := w.create("/v2/sandboxes", `{"templateID":"base","envVars":{"V":"given"},"timeout":1000}`)
	if got := w.output(made.SandboxID, "echo $V"); got != "given\n" {
		t.Errorf("envVars: the program sees %q", got)
	}
	var detail struct{ EndAt time.Time }
	w.decode(w.must(200, "GET", "/sandboxes/"+made.SandboxID, ""), &detail)
	if left := time.Until(detail.EndAt); left < 900*time.Second || left > 1000*time.Second {
		t.Errorf("timeout: the sandbox ends in %s", left)
	}
}
