//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestDatabaseOfLostNode kills a node and adopts its database on another one that shares nothing but the object store.
// The first node stops the database when it comes back.
func TestDatabaseOfLostNode(t *testing.T) {
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and a restore of a database on another node takes minutes")
	}
	dir := nodelab.DataDir(t)
	shared := t.TempDir()
	t.Setenv("PANDASTACK_OBJECT_STORE_URL", "file://"+filepath.Join(shared, "objects"))
	t.Setenv("PANDASTACK_OBJECT_STORE_KEY", filepath.Join(shared, "objects.key"))
	n := nodelab.Start(t, dir)
	n.Bake("postgres-16")
	a := databaseClient{t, n}
	var d, moved api.Database
	a.call("POST", "/v1/databases", map[string]any{"label": "orders", "always_on": true}, &d, http.StatusAccepted)
	d = a.running(d.ID)
	conn := a.connect(d.ConnectionURL)
	a.exec(conn, "CREATE TABLE t (v text)")
	a.exec(conn, "INSERT INTO t VALUES ('kept')")
	_ = conn.Close(t.Context())
	path := "/v1/databases/" + string(d.ID)
	a.eventually("a base backup, and the log in the object store", func() bool {
		var b api.DatabaseBackups
		a.call("GET", path+"/backups", nil, &b, http.StatusOK)
		return len(b.Bases) > 0 && b.Relay != nil && b.Relay.State == "streaming" && b.Relay.LagBytes == 0 &&
			b.Relay.UploadLagBytes == 0
	})
	n.Kill()

	second := nodelab.Start(t, secondDataDir(t, dir, "postgres-16"))
	b := databaseClient{t, second}
	b.call("POST", "/v1/databases/adopt", map[string]any{"id": d.ID}, &moved, http.StatusAccepted)
	moved = b.running(d.ID)
	if moved.ID != d.ID || moved.Password != d.Password || moved.BrokerToken != d.BrokerToken ||
		moved.Label != "orders" {
		t.Errorf("adopted %+v, want %+v", moved, d)
	}
	conn = b.connect(moved.ConnectionURL)
	if got := b.rows(conn); len(got) != 1 || got[0] != "kept" {
		t.Errorf("the adopted database has %q", got)
	}
	b.exec(conn, "INSERT INTO t VALUES ('by the second node')")

	n = nodelab.Start(t, dir)
	a = databaseClient{t, n}
	var left api.Database
	a.eventually("the first node stops the database", func() bool {
		a.call("GET", path, nil, &left, http.StatusOK)
		return left.Status == api.DatabaseFailed
	})
	if _, err := a.tryConnect(left.ConnectionURL); err == nil {
		t.Error("the first node, which is back, lets clients in")
	}
	a.call("DELETE", path, nil, nil, http.StatusNoContent)
	n.Stop()
	b.exec(conn, "INSERT INTO t VALUES ('and still')")
	if got := b.rows(conn); len(got) != 3 {
		t.Errorf("the adopted database has %q after the first node deleted it", got)
	}
	_ = conn.Close(t.Context())
	b.call("DELETE", path, nil, nil, http.StatusNoContent)
	second.Stop()
	nodelab.NothingLeft(t, dir)
}
