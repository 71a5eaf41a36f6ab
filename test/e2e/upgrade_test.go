//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestUpgradeDatabase gives a database PostgreSQL 17, with rows, large objects, sequences, roles and another database.
func TestUpgradeDatabase(t *testing.T) {
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and template postgres-17 takes minutes to bake")
	}
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	n.Bake("postgres-17")
	c := databaseClient{t, n}
	var d, k api.Database
	c.call("POST", "/v1/databases", map[string]string{"label": "orders"}, &d, http.StatusAccepted)
	path := "/v1/databases/" + string(d.ID)
	d = c.running(d.ID)
	conn := c.connect(d.ConnectionURL)
	c.exec(conn, "CREATE TABLE t (v text); INSERT INTO t VALUES ('one')")
	c.exec(conn, "CREATE SEQUENCE s START 7; SELECT nextval('s'); SELECT lo_from_bytea(4711, 'large')")
	c.exec(conn, "CREATE ROLE reader LOGIN PASSWORD 'reads'; GRANT SELECT ON t TO reader")
	c.exec(conn, "CREATE MATERIALIZED VIEW m AS SELECT v FROM t; CREATE INDEX ON t (v)")
	c.exec(conn, "CREATE DATABASE \"Odd 'name\"")

	var refused api.Error
	c.call("POST", path+"/upgrade", map[string]string{"template": "postgres-16"}, &refused,
		http.StatusPreconditionFailed)
	if !strings.Contains(refused.Message, "newer major version") {
		t.Errorf("to the version that it has: %v", &refused)
	}
	began := time.Now()
	c.call("POST", path+"/upgrade", map[string]int{"keep_seconds": 3600}, &d, http.StatusAccepted)
	c.call("GET", path, nil, &k, http.StatusOK)
	if k.Status != api.DatabaseRestoring || k.PreviousID != d.PreviousID || !d.PreviousID.Valid() {
		t.Errorf("begun: %+v", k)
	}
	kept := d.PreviousID
	if _, err := c.tryConnect(d.ConnectionURL); err == nil {
		t.Error("a login succeeded while the database is upgraded")
	}
	d = c.running(d.ID)
	conn = c.connect(d.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one"}) {
		t.Errorf("upgraded, it has %q", got)
	}
	t.Logf("upgrade to the first query: %v", time.Since(began))
	c.wantUpgraded(conn)
	if d.Template != "postgres-17" || !strings.HasPrefix(d.Version, "17.") || !slices.Contains(d.Extensions, "vector") {
		t.Errorf("upgraded: %+v", d)
	}
	_ = conn.Close(t.Context())
	reader, err := c.tryConnect(strings.Replace(strings.Replace(d.ConnectionURL, d.Password, "reads", 1),
		"//pandastack:", "//reader:", 1))
	if err != nil {
		t.Fatalf("a role that was made with SQL: %v", err)
	}
	if got := c.rows(reader); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the role sees %q", got)
	}
	_ = reader.Close(t.Context())
	c.pooled(d)

	c.call("GET", "/v1/databases/"+string(kept), nil, &k, http.StatusOK)
	if !strings.HasPrefix(k.Version, "16.") || k.ClonedFrom != d.ID || k.ExpiresAt == nil {
		t.Errorf("the branch that keeps what it had: %+v", k)
	}
	old := c.connect(k.ConnectionURL)
	if got := c.rows(old); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the branch has %q", got)
	}
	_ = old.Close(t.Context())
	c.eventually("a base backup of the new version", func() bool {
		var all api.DatabaseBackups
		c.call("GET", path+"/backups", nil, &all, http.StatusOK)
		return len(all.Bases) > 0
	})
	for _, id := range []api.DatabaseID{d.ID, k.ID} {
		c.call("DELETE", "/v1/databases/"+string(id), nil, nil, http.StatusNoContent)
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// wantUpgraded checks what is beside rows.
func (c databaseClient) wantUpgraded(conn *pgx.Conn) {
	c.t.Helper()
	var version, next, others, analyzed int
	var large string
	err := conn.QueryRow(c.t.Context(), `SELECT current_setting('server_version_num')::int / 10000, nextval('s'),
		convert_from(lo_get(4711), 'UTF8'), (SELECT count(*) FROM m) +
			(SELECT count(*) FROM pg_database WHERE datname = 'Odd ''name'),
		(SELECT count(*) FROM pg_stats WHERE tablename = 't')`).
		Scan(&version, &next, &large, &others, &analyzed)
	if err != nil || version != 17 || next != 8 || large != "large" || others != 2 || analyzed != 1 {
		c.t.Errorf("version %d, next value %d, large object %q, view and database %d, statistics %d; %v", version, next,
			large, others, analyzed, err)
	}
}
