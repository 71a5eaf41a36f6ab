//go:build e2e

package databases

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/ingress/pghttp"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/scram"
	"github.com/pandastack/pandastack/test/pgclients"
)

const token = "pds_pg_token"

// broker is a database with a broker token.
type broker struct{ *database }

func (b broker) BrokerLogin(_ context.Context, got string) (pghttp.BrokerLogin, error) {
	if got != token {
		return pghttp.BrokerLogin{}, pghttp.ErrBadToken
	}
	v, err := scram.ParseVerifier(b.verifier)
	if err != nil {
		return pghttp.BrokerLogin{}, err
	}
	keys, _, err := v.Check(password)
	return pghttp.BrokerLogin{Role: owner, Database: owner, Keys: keys}, err
}

// web is a lab with the edge for HTTP.
type web struct {
	*lab
	http    *pghttp.Server
	buffers *budget.Pool
	server  *httptest.Server
	browser *http.Client // trusts the certificate of the databases
}

func newWeb(t testing.TB, limits pghttp.Limits) *web {
	t.Helper()
	w := &web{lab: newLab(t), buffers: budget.New(budget.Config{
		Name: "buffers", Total: 256 << 20, Levels: []budget.Level{{Name: "endpoint"}},
	})}
	var err error
	w.http, err = pghttp.New(pghttp.Config{
		Suffix: suffix, Resolver: w.lab, Edge: w.edge, Limiter: w.limiter, MockSecret: []byte("0123456789abcdef"),
		Buffers: w.buffers, Limits: limits, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if path, ok := strings.CutPrefix(r.URL.Path, "/broker"); ok {
			w.http.ServeBroker(rw, r, "db1", broker{w.database}, path)
			return
		}
		w.http.ServeHTTP(rw, r)
	}))
	w.browser = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "api." + suffix},
	}}
	t.Cleanup(w.browser.CloseIdleConnections)
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{w.cert}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.http.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if w.server.URL != "" {
			w.server.Close()
		}
	})
	return w
}

func (w *web) url(pass string) string {
	return fmt.Sprintf("postgresql://%s:%s@%s/%s?sslmode=require&channel_binding=require",
		owner, url.PathEscape(pass), host, owner)
}

// sql sends a body to /sql and returns status and body of the response.
func (w *web) sql(t testing.TB, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/sql", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Neon-Connection-String", w.url(password))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return w.do(t, req)
}

func (w *web) do(t testing.TB, req *http.Request) (int, string, http.Header) {
	t.Helper()
	resp, err := w.browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

// The published driver, which connects to port 443 of the host api beside the database's, and Drizzle over it.
func TestNeonDriver(t *testing.T) {
	dir := pgclients.Node(t)
	w := newWeb(t, pghttp.Limits{})
	address := fmt.Sprintf("127.%d.%d.%d", 20+os.Getpid()%200, os.Getpid()/200%250, 1+os.Getpid()%250)
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "443"))
	if err != nil {
		t.Skipf("probe port 443: %v", err)
	}
	_ = w.server.Listener.Close() // of another port
	w.server.Listener = listener
	w.server.StartTLS()
	place(t, dir, "names.cjs")
	out, err := run(t, []string{
		"NODE_EXTRA_CA_CERTS=" + w.caFile, "LAB_ADDRESS=" + address,
		"NODE_OPTIONS=--require=" + filepath.Join(dir, "names.cjs"),
	}, "node", place(t, dir, "neon.mjs"), w.url(password))
	operations(t, out, err, 18)
	w.until(t, "nothing is in use", func() bool {
		_, uses := w.counts()
		return uses == 0 && w.edge.Activity("db1").Sessions == 0
	})
	w.until(t, "nothing is held", func() bool { return w.buffers.Used() == 0 })
}

func TestSQL(t *testing.T) {
	w := newWeb(t, pghttp.Limits{RequestBytes: 1 << 20, ResponseBytes: 1 << 20, Rows: 1000})
	w.server.StartTLS()
	raw := []string{"Neon-Raw-Text-Output", "true", "Neon-Array-Mode", "true"}
	bad := "Neon-Connection-String"
	for _, test := range []struct {
		name, body string
		header     []string
		status     int
		want       string
	}{
		{name: "raw", body: `{"query":"select 1::int8 as a, null as b, 't'::bool as c"}`, header: raw, status: 200,
			want: `"rowAsArray":true,"fields":[{"name":"a","dataTypeID":20,"tableID":0,"columnID":0,"dataTypeSize":8,` +
				`"dataTypeModifier":-1,"format":"text"}`},
		{name: "raw-rows", body: `{"query":"select 1::int8, null, 't'::bool"}`, header: raw, status: 200,
			want: `"rows":[["1",null,"t"]]}`},
		{name: "values", status: 200, want: `"rows":[{"a":[1,null],"b":true,"c":1.5,"d":{"x": 1},"e":"NaN","f":"7"}]}`,
			body: `{"query":"select array[1,null] a, true b, 1.5::float8 c, '{\"x\":1}'::jsonb d, ` +
				`'NaN'::float4 e, 7::int8 f"}`},
		{name: "params", status: 200, want: `"rows":[["{\"x\":[1]}","{1,2}","y","5"]]`, header: raw,
			body: `{"query":"select $1::json, $2::int[], $3::text, $4::int","params":[{"x":[1]},[1,2],"y",5]}`},
		{name: "array-mode-of-query", status: 200, want: `"rows":[[1]]`, body: `{"query":"select 1","arrayMode":true}`},
		{name: "batch", status: 200, want: `{"results":[{"command":"SELECT","rowCount":1`,
			body: `{"queries":[{"query":"select 1"},{"query":"select 2"}]}`},
		{name: "insert", status: 200, want: `"command":"CREATE","rowCount":null`,
			body: `{"query":"create table x(a int)"}`},
		{name: "syntax", body: `{"query":"selec"}`, status: 400, want: `"code":"42601"`},
		{name: "not-json", body: `{"query":`, status: 400, want: `not JSON`},
		{name: "neither", body: `{}`, status: 400, want: `either query or queries`},
		{name: "isolation", body: `{"queries":[]}`, status: 400, want: `is not ReadUncommitted`,
			header: []string{"Neon-Batch-Isolation-Level", "Chaos"}},
		{name: "no-connection", body: `{}`, header: []string{bad, ""}, status: 400, want: `is missing`},
		{name: "bad-connection", body: `{}`, header: []string{bad, "mysql://secret"}, status: 400,
			want: `is not of the form`},
		{name: "foreign-host", body: `{}`, header: []string{bad, "postgres://a:b@evil.test/x"}, status: 400,
			want: `not a database of this server`},
		{name: "wrong-password", body: `{}`, header: []string{bad, w.url("no")}, status: 400, want: `"code":"28P01"`},
		{name: "no-database", body: `{"query":"select 1"}`, status: 400, want: `"code":"3D000"`,
			header: []string{bad, strings.Replace(w.url(password), "/"+owner+"?", "/none?", 1)}},
		{name: "too-large", status: 507, want: `the result is too large`,
			body: `{"query":"select repeat('x', 2000000)"}`},
		{name: "too-large-row", status: 507, want: `the result is too large`,
			body: `{"query":"select repeat('x', 20000000)"}`},
		{name: "too-many", status: 507, want: `too many rows`,
			body: `{"query":"select generate_series(1, 2000)"}`},
		{name: "large-request", status: 413, want: `1048576 bytes`,
			body: `{"query":"` + strings.Repeat("x", 2<<20) + `"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body, header := w.sql(t, test.body, test.header...)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("got %d %.300s, want %d with %s", status, body, test.status, test.want)
			}
			if header.Get("Access-Control-Allow-Origin") != "*" || !json.Valid([]byte(body)) {
				t.Errorf("the response is not JSON for every origin: %v", header)
			}
		})
	}
	// The client has a response before the handler has returned.
	w.until(t, "nothing is held", func() bool { return w.buffers.Used() == 0 })
}

// A request does not see what another one set, and a query ends with its request.
func TestSQLSessions(t *testing.T) {
	w := newWeb(t, pghttp.Limits{})
	w.server.StartTLS()
	if status, body, _ := w.sql(t, `{"query":"set work_mem = '77MB'"}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if _, body, _ := w.sql(t, `{"query":"show work_mem"}`); strings.Contains(body, "77MB") {
		t.Errorf("a setting stays: %s", body)
	}
	w.sql(t, `{"query":"begin"}`)
	w.until(t, "the transaction ends", func() bool {
		return w.Value("select count(*) from pg_stat_activity where state = 'idle in transaction'") == "0"
	})
	const running = "select count(*) from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
	ctx, cancel := context.WithCancel(t.Context())
	dropped := make(chan struct{})
	go func() {
		defer close(dropped)
		body := strings.NewReader(`{"query":"select pg_sleep(1000)"}`)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.server.URL+"/sql", body)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Neon-Connection-String", w.url(password))
		if resp, err := w.browser.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("the query ended with %s", resp.Status)
		}
	}()
	w.until(t, "the query runs", func() bool { return w.Value(running) == "1" })
	cancel()
	<-dropped
	w.until(t, "the query ends with its request", func() bool { return w.Value(running) == "0" })
	// The server goes away, with the connections of the pool, and comes back.
	w.sleep()
	wrong := fmt.Sprintf("postgresql://%s:wrong@%s/%s", owner, host, owner)
	if status, _, _ := w.sql(t, `{"query":"select 1"}`, "Neon-Connection-String", wrong); status != 400 {
		t.Errorf("a wrong password: %d", status)
	}
	if wakes, _ := w.counts(); wakes != 0 {
		t.Error("a wrong password woke the database")
	}
	if _, body, _ := w.sql(t, `{"query":"select 1 as n"}`); !strings.Contains(body, `"n":1`) {
		t.Errorf("after a restart: %s", body)
	}
	if wakes, _ := w.counts(); wakes != 1 {
		t.Errorf("%d wakes, want one", wakes)
	}
}

func TestBroker(t *testing.T) {
	w := newWeb(t, pghttp.Limits{})
	w.server.StartTLS()
	call := func(method, path, body, token string) (int, string) {
		t.Helper()
		address := w.server.URL + "/broker" + path
		req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		status, text, _ := w.do(t, req)
		return status, text
	}
	many := `{"statements":[` + strings.TrimSuffix(strings.Repeat(`{"sql":"select 1"},`, 101), ",") + `]}`
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v1/info", "", 200, `"database" : "pandastack"`},
		{"POST", "/v1/query", `{"sql":"select 1 as a, 2::int8 as b, 'x' as c, null as d"}`, 200,
			`{"columns":[{"name":"a","type":"int4"},{"name":"b","type":"int8"},{"name":"c","type":"text"},` +
				`{"name":"d","type":"text"}],"rows":[[1,2,"x",null]],"count":1,"duration_ms":`},
		{"POST", "/v1/query", `{"sql":"select generate_series(1, 20000)","max_rows":3}`, 200,
			`"rows":[[1],[2],[3]],"count":3,"truncated":true`},
		{"POST", "/v1/query", `{"sql":"select generate_series(1, 20000)"}`, 200, `"count":10000,"truncated":true`},
		{"POST", "/v1/query", `{"sql":"select $1::int + $2::int","params":[1,"2"]}`, 200, `"rows":[[3]]`},
		{"POST", "/v1/query", `{"sql":"select pg_sleep(1000)","timeout_ms":1}`, 504, `"code":"57014"`},
		{"POST", "/v1/query", `{"sql":"select 1","timeout_ms":30001}`, 400, `timeout_ms`},
		{"POST", "/v1/query", `{"sql":"select 1","max_rows":10001}`, 400, `max_rows`},
		{"POST", "/v1/query", `{"sql":"select 1/0"}`, 400, `"code":"22012"`},
		{"POST", "/v1/query", `{"sql":""}`, 400, `sql is empty`},
		{"POST", "/v1/query", `{"query":"select 1"}`, 400, `unknown field`},
		{"POST", "/v1/query", `{"sql":"select 1","database":"none"}`, 404, `"code":"3D000"`},
		{"POST", "/v1/exec", `{"sql":"create table b (id int primary key)"}`, 200, `{"rows_affected":0,"duration_ms":`},
		{"POST", "/v1/exec", `{"sql":"insert into b select generate_series(1, 20000) returning id"}`, 200,
			`{"rows_affected":20000,"duration_ms":`},
		{"POST", "/v1/transaction",
			`{"statements":[{"sql":"delete from b where id < 11"},{"sql":"select count(*) from b"}]}`, 200,
			`{"results":[{"index":0,"rows_affected":10,"columns":[],"rows":[],"count":0},` +
				`{"index":1,"rows_affected":1,`},
		{"POST", "/v1/transaction",
			`{"statements":[{"sql":"delete from b"},{"sql":"insert into b values (1), (1)"}]}`,
			400, `"code":"23505"`},
		{"POST", "/v1/query", `{"sql":"select count(*) from b"}`, 200, `"rows":[[19990]]`},
		{"POST", "/v1/transaction", many, 400, `1 to 100`},
		{"POST", "/v1/databases", `{"name":"other"}`, 201, `{"name":"other"}`},
		{"POST", "/v1/databases", `{"name":"other"}`, 409, `"code":"42P04"`},
		{"POST", "/v1/databases", `{"name":"a\"b"}`, 400, `name of a database`},
		{"POST", "/v1/query", `{"sql":"select current_database()","database":"other"}`, 200, `"rows":[["other"]]`},
		{"GET", "/v1/databases", "", 200, `"name" : "other", "owner" : "pandastack"`},
		{"DELETE", "/v1/databases/other", "", 204, ""},
		{"DELETE", "/v1/databases/other", "", 404, `"code":"3D000"`},
		{"DELETE", "/v1/databases/pandastack", "", 400, `cannot be deleted`},
		{"GET", "/v2/nothing", "", 404, `no such path`},
	} {
		status, body := call(test.method, test.path, test.body, token)
		if status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s %s %.80s: %d %.300s, want %d with %s",
				test.method, test.path, test.body, status, body, test.status, test.want)
		}
	}
	w.sleep()
	status, body := call("GET", "/v1/health", "", "")
	if status != 200 || !strings.Contains(body, `"postgres":"down"`) {
		t.Errorf("health of a sleeping database: %d %s", status, body)
	}
	for _, wrong := range []string{"", "x"} {
		status, body := call("GET", "/v1/info", "", wrong)
		if status != 401 || !strings.Contains(body, "broker_token") {
			t.Errorf("token %q: %d %s", wrong, status, body)
		}
	}
	if wakes, _ := w.counts(); wakes != 0 {
		t.Errorf("%d wakes without a token", wakes)
	}
	if status, body := call("POST", "/v1/query", `{"sql":"select 1"}`, token); status != 200 {
		t.Errorf("a query of a sleeping database: %d %s", status, body)
	}
}

// BenchmarkHTTP measures "select 1" by POST /sql on one kept connection.
func BenchmarkHTTP(b *testing.B) {
	w := newWeb(b, pghttp.Limits{})
	w.server.StartTLS()
	var times []time.Duration
	for b.Loop() {
		began := time.Now()
		if status, body, _ := w.sql(b, `{"query":"select 1"}`); status != 200 {
			b.Fatal(status, body)
		}
		times = append(times, time.Since(began))
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
}
