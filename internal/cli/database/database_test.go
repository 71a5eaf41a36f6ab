package database_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/database"
)

// shop is the id that the tests write as dbs1.
const shop = "dbs10000000000000000000"

// server returns its replies in turn, the last one again and again, and keeps the calls.
type server struct {
	*httptest.Server
	calls   []string
	replies []any
}

func newServer(t *testing.T, replies ...any) *server {
	t.Helper()
	s := &server{replies: replies}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		call := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
		s.calls = append(s.calls, strings.ReplaceAll(call, shop, "dbs1"))
		reply := s.replies[0]
		if len(s.replies) > 1 {
			s.replies = s.replies[1:]
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	t.Cleanup(s.Close)
	return s
}

// run runs one command of the group.
func (s *server) run(t *testing.T, asJSON bool, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	f := &cmdutil.Factory{JSON: asJSON, Stdin: strings.NewReader("stdin"), Stdout: &out, Stderr: &errs,
		Dial: func() (*client.Client, error) { return client.New(s.URL, "pds_test") }}
	c := database.Command(f)
	c.SilenceUsage, c.SilenceErrors = true, true
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "dbs1" {
			args[i] = shop
		}
	}
	c.SetArgs(args)
	err = c.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

var running = api.Database{
	ID: "dbs1", Status: api.DatabaseRunning, Label: "shop", Size: api.Database1G, ConnectionURL: "postgres://u:p@h/d",
	CreatedAt: 1.7e9,
}

func TestCalls(t *testing.T) {
	accepted := api.DatabaseAccepted{ID: "dbs1", Status: "waking"}
	for _, tt := range []struct {
		args    string
		replies []any
		calls   string // all of them
		out     string // part of the output
	}{
		{"create --label shop --size 4g --idle 5m --network 192.0.2.0/24 --extension vector --detach",
			[]any{api.Database{ID: "dbs1"}}, `POST /v1/databases {"label":"shop","size":"4g","idle_seconds":300,` +
				`"networks":["192.0.2.0/24"],"extensions":["vector"]}`, "dbs1\n"},
		{"create", []any{api.Database{ID: "dbs1"}, api.Database{ID: "dbs1", Status: api.DatabaseProvisioning}, running},
			"POST /v1/databases {}, GET /v1/databases/dbs1, GET /v1/databases/dbs1", "postgres://u:p@h/d\n"},
		{"list", []any{[]api.Database{running}}, "GET /v1/databases", "shop"},
		{"get dbs1", []any{running}, "GET /v1/databases/dbs1", "postgres://u:p@h/d"},
		{"connect dbs1", []any{api.DatabaseConnection{BrokerToken: "pds_pg_1"}}, "GET /v1/databases/dbs1/connection",
			"pds_pg_1"},
		{"branch dbs1 --schema-only --size 4g", []any{api.Database{ID: "dbs2"}, running},
			`POST /v1/databases/dbs1/clone {"size":"4g","schema_only":true}, GET /v1/databases/dbs2`,
			"postgres://"},
		{"restore dbs1 --at 2026-01-02T03:04:05Z --detach", []any{api.Database{ID: "dbs2"}},
			`POST /v1/databases/dbs1/clone {"target_time":"2026-01-02T03:04:05Z"}`, "dbs2\n"},
		{"restore dbs1 --xid 7 --detach", []any{api.Database{ID: "dbs2"}},
			`POST /v1/databases/dbs1/clone {"target_xid":7}`, "dbs2\n"},
		{"update dbs1 --always-on=false --network=", []any{running},
			`PATCH /v1/databases/dbs1 {"always_on":false,"networks":[]}`, "running"},
		{"suspend dbs1", []any{running}, "POST /v1/databases/dbs1/suspend", "dbs1"},
		{"wake dbs1", []any{accepted, running}, "POST /v1/databases/dbs1/wake, GET /v1/databases/dbs1", "running"},
		{"rotate dbs1", []any{running}, "POST /v1/databases/dbs1/reset-credentials", "postgres://"},
		{"reset dbs1 --at 2026-01-02T03:04:05Z", []any{api.Database{ID: "dbs1", Status: "restoring"}, running},
			`POST /v1/databases/dbs1/reset {"target_time":"2026-01-02T03:04:05Z"}, GET /v1/databases/dbs1`, "running"},
		{"reset dbs1 --detach", []any{running}, "POST /v1/databases/dbs1/reset {}", "dbs1"},
		{"upgrade dbs1 --keep 24h", []any{api.Database{ID: "dbs1", Status: "restoring"}, running},
			`POST /v1/databases/dbs1/upgrade {"keep_seconds":86400}, GET /v1/databases/dbs1`, "running"},
		{"upgrade dbs1 --template pg --detach", []any{running},
			`POST /v1/databases/dbs1/upgrade {"template":"pg"}`, "dbs1"},
		{"failover dbs1 --force", []any{running}, `POST /v1/databases/dbs1/failover {"force":true}`, "dbs1"},
		{"backups dbs1", []any{api.DatabaseBackups{
			Relay: &api.DatabaseRelay{State: "spool_full", UploadError: "the bucket is gone",
				Hole: &api.DatabaseHole{Timeline: 1, From: "0/1", To: "0/2"}},
			Rehearsals: []api.DatabaseRehearsal{{ID: "reh1", State: "failed"}},
		}}, "GET /v1/databases/dbs1/backups", "the bucket is gone"},
		{"backup dbs1", []any{api.DatabaseAccepted{ID: "dbs1", Status: "ordered"}},
			"POST /v1/databases/dbs1/backups", "dbs1\tordered\n"},
		{"rehearse dbs1", []any{api.DatabaseRehearsal{ID: "reh1", State: "running"}},
			"POST /v1/databases/dbs1/rehearsals", "reh1\trunning\n"},
		{"delete dbs1", []any{nil}, "DELETE /v1/databases/dbs1", ""},
		{"logs dbs1 -n 7", []any{api.DatabaseLogs{Logs: "LOG: a\n"}}, "GET /v1/databases/dbs1/logs?lines=7",
			"LOG: a\n"},
		{"stats dbs1", []any{api.DatabaseStats{Connections: 3, MaxConnections: 100, CacheHitRatio: 0.5}},
			"GET /v1/databases/dbs1/stats", "3 of 100"},
		{"metrics dbs1 --range 24h", []any{api.DatabaseMetrics{Points: []api.DatabaseMetricPoint{{CPUPct: 12.5}}}},
			"GET /v1/databases/dbs1/metrics?range=24h", "12.5 %"},
		{"top dbs1 --order calls", []any{api.DatabaseInsights{
			TopQueries: []api.DatabaseQuery{{Calls: 9, Query: "SELECT\n  1"}},
			Locks:      []api.DatabaseLock{{PID: 5, BlockedBy: []int{6, 7}, Mode: "ShareLock"}},
		}}, "GET /v1/databases/dbs1/insights?limit=10&order=calls", "SELECT 1"},
	} {
		s := newServer(t, tt.replies...)
		out, _, err := s.run(t, false, strings.Fields(tt.args)...)
		if got := strings.Join(s.calls, ", "); err != nil || got != tt.calls || !strings.Contains(out, tt.out) {
			t.Errorf("%s: %s gives %q, %v; want %s and %q", tt.args, got, out, err, tt.calls, tt.out)
		}
	}
}

func TestJSON(t *testing.T) {
	s := newServer(t, running)
	out, errs, err := s.run(t, true, "create")
	var got api.Database
	if err != nil || errs != "" || json.Unmarshal([]byte(out), &got) != nil || got.ID != "dbs1" {
		t.Errorf("got %s and %s, %v", out, errs, err)
	}
}

func TestFailures(t *testing.T) {
	s := newServer(t, api.Database{ID: "dbs1", Status: api.DatabaseFailed, Error: "no space"})
	if _, _, err := s.run(t, false, "create"); api.CodeOf(err) != api.WrongState ||
		!strings.Contains(err.Error(), "no space") {
		t.Errorf("a database that failed: %v", err)
	}
	for _, wrong := range [][]string{
		{"create", "x"}, {"get"}, {"restore", "dbs1"}, {"restore", "dbs1", "--at", "yesterday"},
		{"restore", "dbs1", "--at", "1m", "--xid", "7"}, {"psql"}, {"psql", "dbs1", "--program", "/nonexistent/psql"},
	} {
		if _, _, err := s.run(t, false, wrong...); err == nil {
			t.Errorf("%v succeeds", wrong)
		}
	}
}

// TestPsql runs a program in place of psql: it gets the URL without the password, and the password in its environment.
func TestPsql(t *testing.T) {
	program := filepath.Join(t.TempDir(), "psql")
	script := "#!/bin/sh\nfor a in \"$@\"; do echo \"[$a]\"; done\necho \"$PGPASSWORD\"\ncat\nexit 3\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, api.DatabaseConnection{
		ConnectionURL: "postgres://u:p%2Fq@h:5432/d?sslmode=require", PoolerURL: "postgres://u:p%2Fq@pool:5432/d",
	})
	out, _, err := s.run(t, false, "psql", "dbs1", "--program", program, "--", "-c", "select 1")
	want := "[-d]\n[postgres://u@h:5432/d?sslmode=require]\n[-c]\n[select 1]\np/q\nstdin"
	if err != cmdutil.ExitCode(3) || out != want {
		t.Errorf("got %q, %v; want %q and its exit code", out, err, want)
	}
	out, _, _ = s.run(t, false, "psql", "dbs1", "--pooler", "--program", program)
	if !strings.Contains(out, "[postgres://u@pool:5432/d]") {
		t.Errorf("through the pooler: %q", out)
	}
}
