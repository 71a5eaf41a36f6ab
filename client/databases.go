package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Databases are the calls on managed PostgreSQL databases.
type Databases struct{ c *Client }

// Pauses between two requests of WaitUntilRunning.
const (
	firstDatabasePause = 100 * time.Millisecond
	maxDatabasePause   = 2 * time.Second
)

func databasePath(id api.DatabaseID, below ...string) string {
	return apiPath(append([]string{"databases", string(id)}, below...)...)
}

// Create begins to create a database. WaitUntilRunning waits until it can be used.
func (d *Databases) Create(ctx context.Context, req api.CreateDatabaseRequest) (api.Database, error) {
	return d.call(ctx, post(apiPath("databases"), req))
}

func (d *Databases) call(ctx context.Context, rq call) (api.Database, error) {
	var out api.Database
	err := d.c.do(ctx, rq, &out)
	return out, err
}

// List returns all databases without credentials, newest first.
func (d *Databases) List(ctx context.Context) ([]api.Database, error) {
	var out []api.Database
	err := d.c.do(ctx, get(apiPath("databases")), &out)
	return out, err
}

// Get returns one database. Keys with the scope exec get its credentials.
func (d *Databases) Get(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	return d.call(ctx, get(databasePath(id)))
}

// WaitUntilRunning waits until a database accepts connections. One that failed is an error with the code wrong_state.
func (d *Databases) WaitUntilRunning(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	for pause := firstDatabasePause; ; pause = min(2*pause, maxDatabasePause) {
		db, err := d.Get(ctx, id)
		switch {
		case err != nil:
			return db, err
		case db.Status == api.DatabaseRunning:
			return db, nil
		case db.Status == api.DatabaseFailed:
			return db, api.Errorf(api.WrongState, "database %s failed: %s", id, db.Error)
		}
		select {
		case <-ctx.Done():
			return db, api.AsError(context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// WaitWhileRestoring waits until the server of a database has been replaced.
//
// If it was not, the error says why, with the code wrong_state.
func (d *Databases) WaitWhileRestoring(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	for pause := firstDatabasePause; ; pause = min(2*pause, maxDatabasePause) {
		db, err := d.Get(ctx, id)
		switch {
		case err != nil:
			return db, err
		case db.Status != api.DatabaseRestoring && db.Error != "":
			return db, api.Errorf(api.WrongState, "database %s: %s", id, db.Error)
		case db.Status != api.DatabaseRestoring:
			return db, nil
		}
		select {
		case <-ctx.Done():
			return db, api.AsError(context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Connection returns how to connect to a database.
func (d *Databases) Connection(ctx context.Context, id api.DatabaseID) (api.DatabaseConnection, error) {
	var out api.DatabaseConnection
	err := d.c.do(ctx, get(databasePath(id, "connection")), &out)
	return out, err
}

// Update changes a database; absent fields stay.
func (d *Databases) Update(
	ctx context.Context,
	id api.DatabaseID,
	req api.UpdateDatabaseRequest,
) (api.Database, error) {
	return d.call(ctx, call{method: http.MethodPatch, path: databasePath(id), in: req})
}

// Delete deletes a database with all its data and backups.
func (d *Databases) Delete(ctx context.Context, id api.DatabaseID) error {
	rq := del(databasePath(id))
	rq.idempotent = false // a second response would be not_found
	return d.c.do(ctx, rq, nil)
}

// Wake begins to wake a database that sleeps. WaitUntilRunning waits until it can be used.
func (d *Databases) Wake(ctx context.Context, id api.DatabaseID) (api.DatabaseAccepted, error) {
	var out api.DatabaseAccepted
	err := d.c.do(ctx, post(databasePath(id, "wake"), nil), &out)
	return out, err
}

// Suspend ends the sessions of a database and lets it sleep.
func (d *Databases) Suspend(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "suspend"), nil))
}

// Clone begins to branch a database, as it is now or was at a moment of the past.
func (d *Databases) Clone(ctx context.Context, id api.DatabaseID, req api.CloneDatabaseRequest) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "clone"), req))
}

// Reset begins to give a branch what its database has. Its id, URL and credentials stay.
func (d *Databases) Reset(ctx context.Context, id api.DatabaseID, req api.ResetDatabaseRequest) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "reset"), req))
}

// Upgrade begins to give a database a newer major version of PostgreSQL. Its id, URL and credentials stay.
func (d *Databases) Upgrade(
	ctx context.Context,
	id api.DatabaseID,
	req api.UpgradeDatabaseRequest,
) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "upgrade"), req))
}

// Failover replaces the server of a database.
func (d *Databases) Failover(ctx context.Context, id api.DatabaseID, req api.FailoverRequest) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "failover"), req))
}

// Adopt begins to take a database over from a lost node with the same object store.
//
// The key has to operate the node. Id, URL, credentials and settings stay; credentials are not in the result.
func (d *Databases) Adopt(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	return d.call(ctx, post("/v1/databases/adopt", api.AdoptDatabaseRequest{ID: id}))
}

// ResetCredentials replaces the password and the broker token of a database.
func (d *Databases) ResetCredentials(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	return d.call(ctx, post(databasePath(id, "reset-credentials"), nil))
}

// Backups returns the state of the backups of a database, with what can be restored.
func (d *Databases) Backups(ctx context.Context, id api.DatabaseID) (api.DatabaseBackups, error) {
	var out api.DatabaseBackups
	err := d.c.do(ctx, get(databasePath(id, "backups")), &out)
	return out, err
}

// BackUp orders a base backup of a database. It is taken when the database runs.
func (d *Databases) BackUp(ctx context.Context, id api.DatabaseID) (api.DatabaseAccepted, error) {
	var out api.DatabaseAccepted
	err := d.c.do(ctx, post(databasePath(id, "backups"), nil), &out)
	return out, err
}

// Rehearse begins to restore a database into a machine of its own, where everything is verified.
func (d *Databases) Rehearse(ctx context.Context, id api.DatabaseID) (api.DatabaseRehearsal, error) {
	var out api.DatabaseRehearsal
	err := d.c.do(ctx, post(databasePath(id, "rehearsals"), nil), &out)
	return out, err
}

// Stats returns measurements of a database's server.
func (d *Databases) Stats(ctx context.Context, id api.DatabaseID) (api.DatabaseStats, error) {
	var out api.DatabaseStats
	err := d.c.do(ctx, get(databasePath(id, "stats")), &out)
	return out, err
}

// Logs returns the last lines of the log of a database's server; 0 lines is the server's default.
func (d *Databases) Logs(ctx context.Context, id api.DatabaseID, lines int) (string, error) {
	rq := get(databasePath(id, "logs"))
	if lines > 0 {
		rq.query = url.Values{"lines": {strconv.Itoa(lines)}}
	}
	var out api.DatabaseLogs
	err := d.c.do(ctx, rq, &out)
	return out.Logs, err
}

// Metrics returns what a database's server used over time. Empty arguments are the server's defaults.
func (d *Databases) Metrics(
	ctx context.Context,
	id api.DatabaseID,
	span, bucket string,
) (api.DatabaseMetrics, error) {
	rq := get(databasePath(id, "metrics"))
	rq.query = url.Values{}
	setNonEmpty(rq.query, "range", span)
	setNonEmpty(rq.query, "bucket", bucket)
	var out api.DatabaseMetrics
	err := d.c.do(ctx, rq, &out)
	return out, err
}

// Insights returns queries, sessions, locks, cache and bloat of a database.
func (d *Databases) Insights(
	ctx context.Context,
	id api.DatabaseID,
	q api.InsightQuery,
) (api.DatabaseInsights, error) {
	rq := get(databasePath(id, "insights"))
	rq.query = url.Values{}
	setNonEmpty(rq.query, "database", q.Database)
	setNonEmpty(rq.query, "order", q.Order)
	if q.Limit > 0 {
		rq.query.Set("limit", strconv.Itoa(q.Limit))
	}
	var out api.DatabaseInsights
	err := d.c.do(ctx, rq, &out)
	return out, err
}
