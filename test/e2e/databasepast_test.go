//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// eventually waits for a condition.
func (c databaseClient) eventually(what string, ok func() bool) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(nodelab.Limit); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			c.t.Fatalf("timeout: %s", what)
		}
	}
}

// rehearse restores a database into a machine of its own, where amcheck verifies it.
func (c databaseClient) rehearse(d api.Database) {
	c.t.Helper()
	path := "/v1/databases/" + string(d.ID)
	var b api.DatabaseBackups
	c.eventually("a base backup", func() bool {
		c.call("GET", path+"/backups", nil, &b, http.StatusOK)
		return len(b.Bases) > 0
	})
	before := len(b.Rehearsals)
	began := time.Now()
	c.call("POST", path+"/rehearsals", nil, nil, http.StatusAccepted)
	c.eventually("the rehearsal", func() bool {
		c.call("GET", path+"/backups", nil, &b, http.StatusOK)
		return len(b.Rehearsals) > before && b.Rehearsals[0].State != "running"
	})
	if r := b.Rehearsals[0]; r.State != "passed" || r.Bytes == 0 {
		c.t.Errorf("rehearsal = %+v, want one that passed", r)
	}
	c.t.Logf("rehearsal: %v, %d MiB", time.Since(began), b.Rehearsals[0].Bytes>>20)
}

// TestPastOfDatabase makes a branch of a moment of the past, to the second, and rehearses a restore.
func TestPastOfDatabase(t *testing.T) {
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and a branch of the past and a rehearsal take minutes")
	}
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	c := databaseClient{t, n}
	var d, b api.Database
	c.call("POST", "/v1/databases", nil, &d, http.StatusAccepted)
	path := "/v1/databases/" + string(d.ID)
	d = c.running(d.ID)
	c.eventually("a base backup", func() bool {
		var all api.DatabaseBackups
		c.call("GET", path+"/backups", nil, &all, http.StatusOK)
		return len(all.Bases) > 0
	})
	conn := c.connect(d.ConnectionURL)
	c.exec(conn, "CREATE TABLE t (v text)")
	c.exec(conn, "CREATE TABLE ballast AS SELECT n, repeat(md5(n::text), 30) AS v FROM generate_series(1, 5000) n")
	c.exec(conn, "INSERT INTO t VALUES ('kept')")
	var moment time.Time
	// Commits carry the server's time; the next second has none of them.
	err := conn.QueryRow(t.Context(), "SELECT date_trunc('second', clock_timestamp()) + '1 second'").Scan(&moment)
	if err != nil {
		t.Fatal(err)
	}
	c.exec(conn, "SELECT pg_sleep_until('"+moment.Add(time.Millisecond).Format(time.RFC3339Nano)+"')")
	c.exec(conn, "INSERT INTO t VALUES ('too late')")
	c.exec(conn, "DROP TABLE ballast")
	_ = conn.Close(t.Context())

	began := time.Now()
	request := map[string]string{"label": "past", "target_time": moment.UTC().Format(time.RFC3339Nano)}
	c.call("POST", path+"/clone", request, &b, http.StatusAccepted)
	b = c.running(b.ID)
	branch := c.connect(b.ConnectionURL)
	if got := c.rows(branch); len(got) != 1 || got[0] != "kept" {
		t.Errorf("the branch has %q, want what was there at %v", got, moment)
	}
	var rows, size string
	if err := branch.QueryRow(t.Context(), "SELECT count(*)::text, (pg_total_relation_size('ballast') >> 20)::text "+
		"FROM ballast").Scan(&rows, &size); err != nil || rows != "5000" {
		t.Errorf("the dropped table has %s rows in the branch, %v; want 5000", rows, err)
	}
	t.Logf("branch of the past with a table of %s MiB to the first query: %v", size, time.Since(began))
	_ = branch.Close(t.Context())
	c.rehearse(d)
	for _, id := range []api.DatabaseID{d.ID, b.ID} {
		c.call("DELETE", "/v1/databases/"+string(id), nil, nil, http.StatusNoContent)
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
