//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestDatabaseFailover ends the monitor of a synchronous database and destroys its volume. A failover brings every row
// that was confirmed.
func TestDatabaseFailover(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	c := databaseClient{t, n}
	var d api.Database
	c.call("POST", "/v1/databases", map[string]string{"durability": "sync"}, &d, http.StatusAccepted)
	path := "/v1/databases/" + string(d.ID)
	d = c.running(d.ID)
	conn := c.connect(d.ConnectionURL)
	c.exec(conn, "CREATE TABLE t (v text)")
	c.exec(conn, "INSERT INTO t VALUES ('one')")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(nodelab.Limit); !d.FailoverAvailable; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("there is no base backup: %s", d.FailoverReason)
		}
		c.call("GET", path, nil, &d, http.StatusOK)
	}
	c.call("POST", path+"/failover", nil, nil, http.StatusConflict)
	c.exec(conn, "INSERT INTO t VALUES ('two')")

	var usage api.Usage
	c.call("GET", "/v1/sandboxes/"+string(d.SandboxID)+"/metrics", nil, &usage, http.StatusOK)
	if err := syscall.Kill(usage.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	volumes, err := filepath.Glob(filepath.Join(dir, "volumes", "*", "*"))
	if err != nil || len(volumes) == 0 {
		t.Fatalf("volumes: %v, %v", volumes, err)
	}
	for _, file := range volumes {
		if info, err := os.Stat(file); err == nil && info.Size() > 1<<20 {
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.until(d.ID, api.DatabaseHibernated)
	began := time.Now()
	var over api.Database
	c.call("POST", path+"/failover", nil, &over, http.StatusAccepted)
	over = c.running(d.ID)
	if over.ConnectionURL != d.ConnectionURL || over.SandboxID == d.SandboxID || over.Error != "" {
		t.Errorf("after the failover: %s, want the same connection and another machine", over.Error)
	}
	conn = c.connect(d.ConnectionURL)
	if got := c.rows(conn); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after the failover it has %q", got)
	}
	t.Logf("failover to the first row: %v", time.Since(began))
	c.exec(conn, "INSERT INTO t VALUES ('three')")
	_ = conn.Close(t.Context())
	c.call("DELETE", path, nil, nil, http.StatusNoContent)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
