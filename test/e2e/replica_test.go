//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// replicas waits until a database has n read replicas that stream.
func (c databaseClient) replicas(id api.DatabaseID, n int) (d api.Database) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(nodelab.Limit); time.Now().Before(deadline); <-tick.C {
		d = api.Database{}
		c.call("GET", "/v1/databases/"+string(id), nil, &d, http.StatusOK)
		stream := 0
		for _, r := range d.ReplicaStates {
			if r.Status == api.ReplicaStreaming {
				stream++
			}
		}
		if stream == n && len(d.ReplicaStates) == n && d.Status == api.DatabaseRunning {
			return d
		}
	}
	c.t.Fatalf("the replicas are %+v", d.ReplicaStates)
	return d
}

// has waits until a server has rows.
func (c databaseClient) has(conn *pgx.Conn, want ...string) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var got []string
	for deadline := time.Now().Add(nodelab.Limit); time.Now().Before(deadline); <-tick.C {
		if got = c.rows(conn); slices.Equal(got, want) {
			return
		}
	}
	c.t.Fatalf("it has %q, want %q", got, want)
}

// TestDatabaseReplica takes a database with a read replica through a suspension and the loss of its primary: the
// replica becomes the primary with every row that was confirmed, and another replica is made.
func TestDatabaseReplica(t *testing.T) {
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and a second replica of a database takes a minute")
	}
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	c := databaseClient{t, n}
	began := time.Now()
	var d api.Database
	c.call("POST", "/v1/databases", map[string]any{"durability": "sync"}, &d, http.StatusAccepted)
	path := "/v1/databases/" + string(d.ID)
	d = c.running(d.ID)
	conn := c.connect(d.ConnectionURL)
	c.exec(conn, "CREATE TABLE t (v text)")
	c.exec(conn, "INSERT INTO t VALUES ('one')")
	readOnly := strings.Replace(d.ConnectionURL, string(d.ID), string(d.ID)+"-ro", 1)
	if _, err := c.tryConnect(readOnly); err == nil || !strings.Contains(err.Error(), "0A000") {
		t.Errorf("a connection to a replica that there is not: %v", err)
	}
	c.call("PATCH", path, map[string]any{"replicas": 1}, &d, http.StatusOK)
	d = c.replicas(d.ID, 1)
	t.Logf("create with a replica: %v", time.Since(began))
	if d.ReadOnlyURL != readOnly {
		t.Errorf("read-only URL %q, want %q", d.ReadOnlyURL, readOnly)
	}
	ro := c.connect(readOnly)
	c.has(ro, "one")
	c.exec(conn, "INSERT INTO t VALUES ('two')")
	c.has(ro, "one", "two")
	_, err := ro.Exec(t.Context(), "INSERT INTO t VALUES ('three')")
	if pg, ok := err.(*pgconn.PgError); !ok || pg.Code != "25006" {
		t.Errorf("a write to a replica: %v, want error 25006", err)
	}

	pooled := c.connect(d.ReadOnlyPoolerURL)
	c.has(pooled, "one", "two")
	if _, err := pooled.Exec(t.Context(), "INSERT INTO t VALUES ('three')"); err == nil {
		t.Error("a write through the pooler of a replica succeeded")
	}
	_ = pooled.Close(t.Context())

	c.call("POST", path+"/suspend", nil, &d, http.StatusOK)
	began = time.Now()
	ro = c.connect(readOnly)
	c.has(ro, "one", "two")
	t.Logf("wake by a connection to a replica: %v", time.Since(began))
	c.call("POST", path+"/reset-credentials", nil, &d, http.StatusOK)
	d = c.replicas(d.ID, 1)
	conn = c.connect(d.ConnectionURL)

	var usage api.Usage
	c.call("GET", "/v1/sandboxes/"+string(d.SandboxID)+"/metrics", nil, &usage, http.StatusOK)
	c.exec(conn, "INSERT INTO t VALUES ('three')")
	if err := syscall.Kill(usage.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.until(d.ID, api.DatabaseHibernated)
	began = time.Now()
	c.call("POST", path+"/failover", nil, nil, http.StatusAccepted)
	over := c.running(d.ID)
	if over.SandboxID != d.ReplicaStates[0].SandboxID || over.ConnectionURL != d.ConnectionURL || over.Error != "" {
		t.Errorf("after the failover it is on %s (%s), want the replica %s", over.SandboxID, over.Error,
			d.ReplicaStates[0].SandboxID)
	}
	conn = c.connect(over.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one", "three", "two"}) {
		t.Errorf("after the failover it has %q", got)
	}
	t.Logf("promotion to the first row: %v", time.Since(began))
	c.exec(conn, "INSERT INTO t VALUES ('four')")
	over = c.replicas(d.ID, 1)
	ro = c.connect(over.ReadOnlyURL)
	c.has(ro, "four", "one", "three", "two")
	_ = ro.Close(t.Context())
	_ = conn.Close(t.Context())
	c.call("DELETE", path, nil, nil, http.StatusNoContent)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
