package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/databaseapi"
)

// fakeDatabases has databases in a map, and remembers the calls.
type fakeDatabases struct {
	mu    sync.Mutex
	rows  map[api.DatabaseID]api.Database // guarded by mu, as are the fields below
	of    map[api.DatabaseID]api.Workspace
	calls []string
	fail  error
}

func (f *fakeDatabases) on(p auth.Principal, id api.DatabaseID, call string, args ...any) (api.Database, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[id] != p.Workspace {
		return api.Database{}, api.Errorf(api.NotFound, "database %s not found", id)
	}
	f.calls = append(f.calls, strings.TrimSpace(call+" "+fmt.Sprint(args...)))
	return f.rows[id], f.fail
}

// last returns the last call.
func (f *fakeDatabases) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		return ""
	}
	return f.calls[len(f.calls)-1]
}

func (f *fakeDatabases) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeDatabases) setStatus(id api.DatabaseID, st api.DatabaseStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.rows[id]
	d.Status = st
	f.rows[id] = d
}

func (f *fakeDatabases) Create(
	_ context.Context,
	p auth.Principal,
	req api.CreateDatabaseRequest,
) (api.Database, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := api.Database{
		ID: api.NewDatabaseID(), Status: api.DatabaseRunning, Label: req.Label, Size: req.Size,
		Host: "h", Port: 5432, Username: "pandastack", Password: "secret", ConnectionURL: "postgres://secret",
		PoolerURL: "postgres://secret-pooler", BrokerToken: "pds_pg_secret", BrokerURL: "http://broker",
	}
	f.rows[d.ID], f.of[d.ID] = d, p.Workspace
	return d, f.fail
}

func (f *fakeDatabases) List(_ context.Context, p auth.Principal) ([]api.Database, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []api.Database
	for id, d := range f.rows {
		if f.of[id] == p.Workspace {
			out = append(out, d)
		}
	}
	return out, f.fail
}

func (f *fakeDatabases) Get(_ context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
	return f.on(p, id, "get")
}

func (f *fakeDatabases) Delete(_ context.Context, p auth.Principal, id api.DatabaseID) error {
	_, err := f.on(p, id, "delete")
	return err
}

func (f *fakeDatabases) Connection(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (api.DatabaseConnection, error) {
	d, err := f.on(p, id, "connection")
	return api.DatabaseConnection{ConnectionURL: d.ConnectionURL, BrokerToken: d.BrokerToken}, err
}

func (f *fakeDatabases) Wake(_ context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error) {
	_, err := f.on(p, id, "wake")
	return api.DatabaseAccepted{ID: id, Status: "waking"}, err
}

func (f *fakeDatabases) Suspend(_ context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
	return f.on(p, id, "suspend")
}

func (f *fakeDatabases) Update(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.UpdateDatabaseRequest,
) (api.Database, error) {
	return f.on(p, id, "update", req.AlwaysOn != nil && *req.AlwaysOn)
}

func (f *fakeDatabases) ResetCredentials(_ context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
	return f.on(p, id, "reset")
}

func (f *fakeDatabases) Clone(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.CloneDatabaseRequest,
) (api.Database, error) {
	at := ""
	if req.TargetTime != nil {
		at = req.TargetTime.Format(time.RFC3339)
	}
	return f.on(p, id, "clone", at)
}

func (f *fakeDatabases) Reset(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.ResetDatabaseRequest,
) (api.Database, error) {
	at := ""
	if req.TargetTime != nil {
		at = req.TargetTime.Format(time.RFC3339)
	}
	return f.on(p, id, "reset to", at)
}

func (f *fakeDatabases) Upgrade(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.UpgradeDatabaseRequest,
) (api.Database, error) {
	return f.on(p, id, "upgrade", fmt.Sprintf("%s/%d", req.Template, req.KeepSeconds))
}

func (f *fakeDatabases) Adopt(
	_ context.Context,
	p auth.Principal,
	req api.AdoptDatabaseRequest,
) (api.Database, error) {
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	return api.Database{ID: req.ID, Status: api.DatabaseProvisioning, Password: "secret of " + string(p.Workspace)}, nil
}

func (f *fakeDatabases) Failover(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.FailoverRequest,
) (api.Database, error) {
	return f.on(p, id, "failover", req.Force)
}

func (f *fakeDatabases) Backups(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (api.DatabaseBackups, error) {
	_, err := f.on(p, id, "backups")
	return api.DatabaseBackups{Relay: &api.DatabaseRelay{State: "streaming"}}, err
}

func (f *fakeDatabases) BackUp(_ context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error) {
	_, err := f.on(p, id, "back up")
	return api.DatabaseAccepted{ID: id, Status: "ordered"}, err
}

func (f *fakeDatabases) Rehearse(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (api.DatabaseRehearsal, error) {
	_, err := f.on(p, id, "rehearse")
	return api.DatabaseRehearsal{ID: "reh1", State: "running"}, err
}

func (f *fakeDatabases) Stats(_ context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseStats, error) {
	_, err := f.on(p, id, "stats")
	return api.DatabaseStats{PostgresVersion: "16.14"}, err
}

func (f *fakeDatabases) Logs(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	lines int,
) (api.DatabaseLogs, error) {
	_, err := f.on(p, id, "logs", lines)
	return api.DatabaseLogs{Logs: "LOG:  ready\n"}, err
}

func (f *fakeDatabases) Metrics(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	span, bucket string,
) (api.DatabaseMetrics, error) {
	_, err := f.on(p, id, "metrics", span+"/"+bucket)
	return api.DatabaseMetrics{Range: span, Bucket: bucket, Points: []api.DatabaseMetricPoint{}, Empty: true}, err
}

func (f *fakeDatabases) Insights(
	_ context.Context,
	p auth.Principal,
	id api.DatabaseID,
	q api.InsightQuery,
) (api.DatabaseInsights, error) {
	_, err := f.on(p, id, "insights", fmt.Sprintf("%+v", q))
	return api.DatabaseInsights{Database: q.Database}, err
}

// ServeDatabase is a query broker that knows one token.
func (f *fakeDatabases) ServeDatabase(w http.ResponseWriter, r *http.Request, id, path string) {
	if r.Header.Get("Authorization") != "Bearer pds_pg_secret" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %s", r.Method, id, path, body)
}

func withDatabases(f *fakeDatabases) func(*httpapi.Deps) {
	f.rows, f.of = map[api.DatabaseID]api.Database{}, map[api.DatabaseID]api.Workspace{}
	return func(d *httpapi.Deps) { d.Databases = databaseapi.API{Databases: f, Insight: f, Broker: f} }
}

// newDatabase creates a database of the member and returns its path.
func (w *fixture) newDatabase() (api.DatabaseID, string) {
	w.t.Helper()
	var d api.Database
	a := w.do("POST", "/v1/databases", `{"label":"shop","size":"1g","always_on":true}`)
	if a.json(w.t, &d); a.status != http.StatusAccepted || !d.ID.Valid() || d.ConnectionURL == "" {
		w.t.Fatalf("create: got %d %s, want 202 and a database", a.status, a.body)
	}
	return d.ID, "/v1/databases/" + string(d.ID)
}

func TestDatabases(t *testing.T) {
	f := &fakeDatabases{}
	w := newFixture(t, withDatabases(f))
	id, path := w.newDatabase()
	for _, tt := range []struct {
		method, path, body string
		status             int
		call, want         string // the call of the service, and part of the response
	}{
		{"GET", path, "", 200, "get", `"connection_url":"postgres://secret"`},
		{"GET", path + "/connection", "", 200, "connection", `"broker_token":"pds_pg_secret"`},
		{"PATCH", path, `{"always_on":true}`, 200, "update true", `"id"`},
		{"POST", path + "/wake", "", 202, "wake", `"status":"waking"`},
		{"POST", path + "/suspend", "", 200, "suspend", `"id"`},
		{"POST", path + "/clone", `{"target_time":"2026-01-02T03:04:05Z"}`, 202, "clone 2026-01-02T03:04:05Z", `"id"`},
		{"POST", path + "/clone", "", 202, "clone", `"id"`},
		{"POST", path + "/reset", `{"target_time":"2026-01-02T03:04:05Z"}`, 202, "reset to 2026-01-02T03:04:05Z",
			`"id"`},
		{"POST", path + "/upgrade", `{"template":"postgres-17","keep_seconds":7}`, 202, "upgrade postgres-17/7",
			`"id"`},
		{"POST", path + "/failover", "", 200, "failover false", `"id"`},
		{"POST", path + "/failover", `{"force":true}`, 200, "failover true", `"id"`},
		{"POST", path + "/reset-credentials", "", 200, "reset", `"password":"secret"`},
		{"GET", path + "/backups", "", 200, "backups", `"state":"streaming"`},
		{"POST", path + "/backups", "", 202, "back up", `"status":"ordered"`},
		{"POST", path + "/rehearsals", "", 202, "rehearse", `"state":"running"`},
		{"GET", path + "/stats", "", 200, "stats", `"postgres_version":"16.14"`},
		{"GET", path + "/logs", "", 200, "logs 100", `"logs":"LOG:`},
		{"GET", path + "/logs?lines=7", "", 200, "logs 7", `"logs"`},
		{"GET", path + "/metrics?range=24h&bucket=5m", "", 200, "metrics 24h/5m", `"points":[]`},
		{"GET", path + "/insights?order=calls&limit=3&database=app", "", 200,
			"insights {Database:app Order:calls Limit:3}", `"database":"app"`},
		{"DELETE", path, "", 204, "delete", ""},
	} {
		a := w.do(tt.method, tt.path, tt.body)
		if a.status != tt.status || f.last() != tt.call || !strings.Contains(a.body, tt.want) {
			t.Errorf("%s %s: got %d %s after %q, want %d with %s after %q",
				tt.method, tt.path, a.status, a.body, f.last(), tt.status, tt.want, tt.call)
		}
	}
	f.setStatus(id, api.DatabaseRestoring)
	if a := w.do("POST", path+"/failover", `{"force":true}`); a.status != http.StatusAccepted {
		t.Errorf("failover that continues: got %d %s, want 202", a.status, a.body)
	}
}

// TestDatabaseCredentials checks who sees the credentials of a database: keys that may run commands, and never a list.
func TestDatabaseCredentials(t *testing.T) {
	w := newFixture(t, withDatabases(&fakeDatabases{}))
	_, path := w.newDatabase()
	for _, tt := range []struct {
		path, key string
		secret    bool
	}{
		{path, keyMember, true}, {path, keyViewer, false}, {"/v1/databases", keyMember, false},
	} {
		a := w.do("GET", tt.path, "", as(tt.key))
		if a.status != 200 || strings.Contains(a.body, "secret") != tt.secret || !strings.Contains(a.body, "shop") {
			t.Errorf("%s with %s: got %d %s, credentials wanted: %t", tt.path, tt.key, a.status, a.body, tt.secret)
		}
	}
	if e := w.do("GET", path+"/connection", "", as(keyViewer)).failed(t); e.Code != api.Forbidden {
		t.Errorf("a viewer got the connection: %+v", e)
	}
}

// TestDatabaseReasons checks that only keys that operate the node see details of the host in reasons of failures.
func TestDatabaseReasons(t *testing.T) {
	f := &fakeDatabases{}
	w := newFixture(t, withDatabases(f))
	id, path := w.newDatabase()
	host := errors.New("open /var/lib/node/spool: no space")
	why := api.Reason("the reset failed: ", api.Wrap(api.Unavailable, host, "no backups: "+host.Error()))
	f.mu.Lock()
	d := f.rows[id]
	d.Error, d.ReplicaStates = why, []api.DatabaseReplica{{Error: why}}
	f.rows[id] = d
	f.mu.Unlock()
	see := func(method, path, key string, details bool, times int) {
		t.Helper()
		a := w.do(method, path, "", as(key))
		want := 0
		if details {
			want = times
		}
		if strings.Count(a.body, "/var/lib/node") != want || strings.Count(a.body, "no backups") != times {
			t.Errorf("%s %s with %s: got %s, details wanted: %t", method, path, key, a.body, details)
		}
	}
	for _, path := range []string{path, "/v1/databases"} {
		see("GET", path, keyMember, false, 2)
		see("GET", path, keyViewer, false, 2)
		see("GET", path, keyOperator, true, 2)
	}
	f.mu.Lock()
	f.fail = api.Wrap(api.Unavailable, host, "no backups: "+host.Error())
	f.mu.Unlock()
	for _, path := range []string{path + "/wake", path + "/suspend", path + "/upgrade"} {
		see("POST", path, keyMember, false, 1)
		see("POST", path, keyOperator, true, 1)
	}
}

// TestDatabaseBackupScopes checks that a key that may read sees the state of backups, and orders none.
func TestDatabaseBackupScopes(t *testing.T) {
	w := newFixture(t, withDatabases(&fakeDatabases{}))
	_, path := w.newDatabase()
	if a := w.do("GET", path+"/backups", "", as(keyViewer)); a.status != 200 {
		t.Errorf("a viewer reads the backups: got %d %s, want 200", a.status, a.body)
	}
	for _, what := range []string{"/backups", "/rehearsals"} {
		if e := w.do("POST", path+what, "", as(keyViewer)).failed(t); e.Code != api.Forbidden {
			t.Errorf("a viewer orders %s: got %+v, want forbidden", what, e)
		}
	}
}

// TestDatabasesOfOthers checks that strangers find no database on any route.
func TestDatabasesOfOthers(t *testing.T) {
	f := &fakeDatabases{}
	w := newFixture(t, withDatabases(f))
	id, _ := w.newDatabase()
	before := f.last()
	for _, rt := range httpapi.Table() {
		if !strings.Contains(rt.Pattern, "{database}") || rt.Need == string(access.Broker) {
			continue
		}
		for _, one := range []string{string(id), string(api.NewDatabaseID()), "dbs", "..%2f..%2fetc"} {
			a := w.do(rt.Method, strings.Replace(rt.Pattern, "{database}", one, 1), "", as(keyStranger))
			if e := a.failed(t); e.Code != api.NotFound {
				t.Errorf("%s %s of %s: got %s, want not_found", rt.Method, rt.Pattern, one, e.Code)
			}
		}
	}
	if a := w.do("GET", "/v1/databases", "", as(keyStranger)); a.body != "[]\n" {
		t.Errorf("a stranger lists %s", a.body)
	}
	if f.last() != before {
		t.Errorf("a stranger's request reached %s", f.last())
	}
}

func TestDatabaseRequestsAreChecked(t *testing.T) {
	w := newFixture(t, withDatabases(&fakeDatabases{}))
	_, path := w.newDatabase()
	for _, tt := range []struct{ method, path, body, field string }{
		{"POST", "/v1/databases", `{"size":"2g"}`, "size"},
		{"POST", "/v1/databases", `{"memory":1}`, "memory"},
		{"PATCH", path, `{"networks":["all"]}`, "networks"},
		{"POST", path + "/clone", `{"target_xid":7,"target_name":"a"}`, "target_time"},
		{"POST", path + "/failover", `{"forced":true}`, "forced"},
		{"POST", path + "/reset", `{"to":"now"}`, "to"},
		{"POST", path + "/upgrade", `{"to":"17"}`, "to"},
		{"GET", path + "/logs?lines=0", "", "lines"},
		{"GET", path + "/logs?lines=10001", "", "lines"},
		{"GET", path + "/insights?limit=101", "", "limit"},
		{"GET", path + "/insights?order=size", "", "order"},
		{"GET", path + "/insights?database=" + strings.Repeat("x", 64), "", "database"},
		{"GET", path + "/stats?range=1h", "", "range"},
	} {
		e := w.do(tt.method, tt.path, tt.body).failed(t)
		if e.Code != api.Invalid || e.Details["field"] != tt.field {
			t.Errorf("%s %s %s: got %+v, want a refusal of %s", tt.method, tt.path, tt.body, e, tt.field)
		}
	}
}

// TestDatabaseFailures checks that the failures of the service keep their codes, and when to retry.
func TestDatabaseFailures(t *testing.T) {
	f := &fakeDatabases{}
	w := newFixture(t, withDatabases(f))
	_, path := w.newDatabase()
	for _, tt := range []struct {
		method, path string
		code         api.Code
		retry        bool
	}{
		{"GET", "/connection", api.Unavailable, true}, {"DELETE", "", api.Conflict, false},
		{"DELETE", "", api.Unavailable, true}, {"POST", "/failover", api.WrongState, false},
		{"POST", "/failover", api.Unsupported, false}, {"POST", "/clone", api.NoSpace, false},
	} {
		f.failWith(api.Errorf(tt.code, "no"))
		a := w.do(tt.method, path+tt.path, "")
		if e := a.failed(t); e.Code != tt.code || (a.header.Get("Retry-After") != "") != tt.retry ||
			strings.Contains(a.body, "secret") {
			t.Errorf("%s %s: got %d %s with Retry-After %q", tt.method, tt.path, a.status, a.body,
				a.header.Get("Retry-After"))
		}
	}
}

// TestBrokerProxy checks that the query broker gets requests with any method, with no key but with its own token, and
// that refused ones are recorded.
func TestBrokerProxy(t *testing.T) {
	w := newFixture(t, withDatabases(&fakeDatabases{}))
	id, path := w.newDatabase()
	for _, method := range []string{"GET", "POST", "DELETE"} {
		a := w.do(method, path+"/proxy/v1/query?x=1", "body", as("pds_pg_secret"))
		if want := fmt.Sprintf("%s %s /v1/query body", method, id); a.status != 200 || a.body != want {
			t.Errorf("%s: got %d %s, want %s", method, a.status, a.body, want)
		}
	}
	for _, key := range []string{"", keyMember, keyOperator, "pds_pg_wrong"} {
		if a := w.do("POST", path+"/proxy/v1/query", "{}", as(key)); a.status != http.StatusUnauthorized {
			t.Errorf("with %q: got %d %s, want 401", key, a.status, a.body)
		}
	}
	refused := func() (n int) {
		for _, e := range w.audit.copy() {
			if e.Target == string(id) && e.Outcome == string(api.Unauthenticated) {
				n++
			}
		}
		return n
	}
	for deadline := time.After(patience); refused() < 4; { // they are recorded after the responses
		select {
		case <-deadline:
			t.Fatalf("got %d records of refused requests, want 4", refused())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestBrokerRate checks that requests with a broker token count for the rate of their address.
func TestBrokerRate(t *testing.T) {
	f := &fakeDatabases{}
	w := newFixture(t, withDatabases(f), func(d *httpapi.Deps) {
		d.Guard = access.New(access.Config{AddressRate: 1}, d.Keys, nil)
	})
	path := "/v1/databases/" + string(api.NewDatabaseID()) + "/proxy/v1/query"
	var codes []int
	for range 4 {
		codes = append(codes, w.do("POST", path, "{}", as("pds_pg_secret")).status)
	}
	if !slices.Contains(codes, http.StatusTooManyRequests) || codes[0] != http.StatusOK {
		t.Errorf("got %v, want 200 and then 429", codes)
	}
}

// TestWithoutDatabases checks what a server without databases replies.
func TestWithoutDatabases(t *testing.T) {
	w := newFixture(t)
	at := "/v1/databases/" + string(api.NewDatabaseID())
	for _, path := range []string{"/v1/databases", at, at + "/connection", at + "/stats", at + "/proxy/v1/health"} {
		if e := w.do("GET", path, "").failed(t); e.Code != api.Unsupported {
			t.Errorf("%s: got %s, want unsupported", path, e.Code)
		}
	}
}
