//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// databaseClient calls the API of a node.
type databaseClient struct {
	t *testing.T
	n *nodelab.Node
}

// call makes a request that must have the given status, and decodes the response into out.
func (c databaseClient) call(method, path string, in, out any, status int) {
	c.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.n.URL+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.n.AccessKey())
	r.Header.Set("Content-Type", "application/json")
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != status {
		var text bytes.Buffer
		_, _ = text.ReadFrom(got.Body)
		c.t.Fatalf("%s %s: status %d, %s; want %d", method, path, got.StatusCode, text.String(), status)
	}
	if out != nil {
		if err := json.NewDecoder(got.Body).Decode(out); err != nil {
			c.t.Fatal(err)
		}
	}
}

// running waits until a database runs.
func (c databaseClient) running(id api.DatabaseID) api.Database {
	c.t.Helper()
	return c.until(id, api.DatabaseRunning)
}

// until waits until a database has a status.
func (c databaseClient) until(id api.DatabaseID, want api.DatabaseStatus) (d api.Database) {
	c.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(nodelab.Limit); time.Now().Before(deadline); <-tick.C {
		c.call("GET", "/v1/databases/"+string(id), nil, &d, http.StatusOK)
		if d.Status == api.DatabaseFailed {
			c.t.Fatalf("the database failed: %s", d.Error)
		}
		if d.Status == want {
			return d
		}
	}
	c.t.Fatalf("the database is %s", d.Status)
	return d
}

// connect logs in through the edge, by the name of the server.
func (c databaseClient) connect(connection string) *pgx.Conn {
	c.t.Helper()
	conn, err := c.tryConnect(connection)
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// tryConnect is connect for a server that may refuse.
func (c databaseClient) tryConnect(connection string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(connection)
	if err != nil {
		return nil, err
	}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), nodelab.Limit)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg)
}

// rows returns the rows of the table t.
func (c databaseClient) rows(conn *pgx.Conn) []string {
	c.t.Helper()
	found, err := conn.Query(c.t.Context(), "SELECT v FROM t ORDER BY v")
	if err != nil {
		c.t.Fatal(err)
	}
	all, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func (c databaseClient) exec(conn *pgx.Conn, sql string) {
	c.t.Helper()
	if _, err := conn.Exec(c.t.Context(), sql); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
}

// TestDatabases takes a database through a suspension, a killed node, a branch, a killed monitor and its deletion.
func TestDatabases(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	c := databaseClient{t, n}
	began := time.Now()
	var d api.Database
	c.call("POST", "/v1/databases", map[string]string{"label": "orders"}, &d, http.StatusAccepted)
	d = c.running(d.ID)
	conn := c.connect(d.ConnectionURL)
	var one int
	if err := conn.QueryRow(t.Context(), "SELECT 1").Scan(&one); err != nil || one != 1 {
		t.Fatal(one, err)
	}
	t.Logf("create to the first query: %v", time.Since(began))
	var took []time.Duration
	for range 50 {
		began = time.Now()
		c.exec(conn, "SELECT 1")
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("SELECT 1: p50 %v", took[len(took)/2])
	c.exec(conn, "CREATE TABLE t (v text)")
	c.exec(conn, "INSERT INTO t VALUES ('one')")
	c.exec(conn, "CREATE ROLE reader LOGIN PASSWORD 'reads'")
	c.psql(d)
	c.pooled(d)
	_ = conn.Close(t.Context())

	c.call("POST", "/v1/databases/"+string(d.ID)+"/suspend", nil, &d, http.StatusOK)
	if d.Status != api.DatabaseHibernated {
		t.Errorf("suspended, it is %s", d.Status)
	}
	began = time.Now()
	conn = c.connect(d.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one"}) {
		t.Errorf("woken, it has %q", got)
	}
	t.Logf("wake by a connection to the first row: %v", time.Since(began))
	c.exec(conn, "INSERT INTO t VALUES ('two')")

	n.Kill()
	n = nodelab.Start(t, dir)
	c = databaseClient{t, n}
	d = c.running(d.ID)
	conn = c.connect(d.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after the node was killed it has %q", got)
	}
	began = time.Now()
	var b api.Database
	c.call("POST", "/v1/databases/"+string(d.ID)+"/clone", map[string]string{"label": "try"}, &b, http.StatusAccepted)
	b = c.running(b.ID)
	branch := c.connect(b.ConnectionURL)
	if got := c.rows(branch); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the branch has %q", got)
	}
	t.Logf("branch to the first query: %v", time.Since(began))
	c.schemaOnly(d, conn)
	c.exec(branch, "DELETE FROM t WHERE v = 'two'")
	_ = branch.Close(t.Context())
	c.call("POST", "/v1/databases/"+string(b.ID)+"/suspend", nil, &b, http.StatusOK)
	branch = c.connect(b.ConnectionURL)
	if got := c.rows(branch); !slices.Equal(got, []string{"one"}) {
		t.Errorf("woken, the branch has %q", got)
	}
	_ = branch.Close(t.Context())
	began = time.Now()
	c.call("POST", "/v1/databases/"+string(b.ID)+"/reset", map[string]string{}, &b, http.StatusAccepted)
	b = c.running(b.ID)
	branch = c.connect(b.ConnectionURL)
	if got := c.rows(branch); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after a reset the branch has %q", got)
	}
	t.Logf("reset to the first query: %v", time.Since(began))
	_ = branch.Close(t.Context())
	if got := c.rows(conn); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after a change of the branch it has %q", got)
	}
	_ = conn.Close(t.Context())

	// A machine whose monitor is killed boots from its disks, and the server recovers.
	var usage api.Usage
	c.call("GET", "/v1/sandboxes/"+string(d.SandboxID)+"/metrics", nil, &usage, http.StatusOK)
	if err := syscall.Kill(usage.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.until(d.ID, api.DatabaseHibernated)
	conn = c.connect(d.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after its monitor was killed it has %q", got)
	}
	_ = conn.Close(t.Context())
	for _, id := range []api.DatabaseID{d.ID, b.ID} {
		c.call("DELETE", "/v1/databases/"+string(id), nil, nil, http.StatusNoContent)
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
	if left, err := filepath.Glob(filepath.Join(dir, "volumes", "*")); err != nil || len(left) > 0 {
		t.Errorf("left of volumes: %v, %v", left, err)
	}
}

// schemaOnly makes a branch without rows: tables, sequences, roles and their rights are there, and nothing else.
func (c databaseClient) schemaOnly(d api.Database, conn *pgx.Conn) {
	c.t.Helper()
	c.exec(conn, "CREATE SCHEMA \"Odd 'name\"; CREATE SEQUENCE s START 7; SELECT nextval('s')")
	c.exec(conn, "CREATE EXTENSION citext")
	c.exec(conn, "CREATE TABLE \"Odd 'name\".u (id bigint DEFAULT nextval('s'), v citext UNIQUE)")
	c.exec(conn, "INSERT INTO \"Odd 'name\".u (v) VALUES ('row'); GRANT SELECT ON t TO reader")
	c.exec(conn, "CREATE MATERIALIZED VIEW m AS SELECT v FROM t")
	c.exec(conn, "SELECT lo_from_bytea(0, 'large')")
	began := time.Now()
	var b api.Database
	c.call("POST", "/v1/databases/"+string(d.ID)+"/clone", map[string]bool{"schema_only": true}, &b,
		http.StatusAccepted)
	b = c.running(b.ID)
	branch := c.connect(b.ConnectionURL)
	var next, large int64
	var tables, readable, readers int
	err := branch.QueryRow(c.t.Context(), `SELECT nextval('s'), (SELECT count(*) FROM pg_largeobject_metadata),
		(SELECT count(*) FROM t) + (SELECT count(*) FROM "Odd 'name".u) + (SELECT count(*) FROM pg_class
			WHERE relname = 'm' AND relispopulated),
		has_table_privilege('reader', 't', 'SELECT')::int, (SELECT count(*) FROM pg_roles WHERE rolname = 'reader')`).
		Scan(&next, &large, &tables, &readable, &readers)
	if err != nil || next != 7 || large != 0 || tables != 0 || readable != 1 || readers != 1 {
		c.t.Errorf("the branch has the next value %d, %d large objects, %d rows, right %d, role %d; %v", next, large,
			tables, readable, readers, err)
	}
	c.t.Logf("branch without rows to the first query: %v", time.Since(began))
	c.exec(branch, "INSERT INTO \"Odd 'name\".u (v) VALUES ('own')")
	_ = branch.Close(c.t.Context())
	c.call("DELETE", "/v1/databases/"+string(b.ID), nil, nil, http.StatusNoContent)
}

// psql connects with a client of others, as a role that was made with SQL.
func (c databaseClient) psql(d api.Database) {
	c.t.Helper()
	program, err := exec.LookPath("psql")
	if err != nil {
		c.t.Log("probe psql: it is not installed")
		return
	}
	named := "host=" + d.Host + " hostaddr=127.0.0.1 dbname=pandastack sslmode=require channel_binding=require"
	port := fmt.Sprintf(" port=%d", d.Port)
	for _, one := range []struct{ target, password string }{
		{d.ConnectionURL, ""}, {named + port + " user=pandastack", d.Password},
		{named + port + " user=reader", "reads"},
	} {
		cmd := exec.CommandContext(c.t.Context(), program, "-X", "-qAt", "-c", "SELECT 6 * 7", "-d", one.target)
		cmd.Env = append(cmd.Environ(), "PGPASSWORD="+one.password)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "42" {
			c.t.Errorf("psql -d %s: %s, %v", one.target, out, err)
		}
	}
}

// pooled runs prepared statements through the pooler.
func (c databaseClient) pooled(d api.Database) {
	c.t.Helper()
	u, err := url.Parse(d.PoolerURL)
	if d.PoolerURL == "" {
		var all api.DatabaseConnection
		c.call("GET", "/v1/databases/"+string(d.ID)+"/connection", nil, &all, http.StatusOK)
		u, err = url.Parse(all.PoolerURL)
	}
	if err != nil || !strings.Contains(u.Query().Get("options"), "-pooler") {
		c.t.Fatalf("pooler URL %s, %v", u.Redacted(), err)
	}
	conn := c.connect(u.String())
	for i := range 3 {
		var got int
		if err := conn.QueryRow(c.t.Context(), "SELECT 6 * $1::int", i).Scan(&got); err != nil || got != 6*i {
			c.t.Errorf("through the pooler: %d, %v", got, err)
		}
	}
	_ = conn.Close(c.t.Context())
}
