package httpapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	dbs "github.com/pandastack/pandastack/internal/ingress/httpapi/databaseapi"
)

const (
	databasesPath = "/v1/databases"
	databasePath  = databasesPath + "/{database}"
)

func databaseRoutes() []route {
	broker := raw("application/json", proxyBroker)
	return tagged("databases",
		post(databasesPath, "Begin to create a PostgreSQL database; it can be used when its status is running",
			jsonInOut(202, createDatabase)),
		post(databasesPath+"/adopt", "Begin to take a database over from a lost node with the same object store",
			jsonInOut(202, adoptDatabase)),
		get(databasesPath, "List databases, newest first, without credentials", jsonOut(200, listDatabases)),
		get(databasePath, "Get a database; with its credentials for keys with the scope exec",
			jsonOut(200, onDatabase(dbs.Databases.Get))),
		patch(databasePath, "Change it; absent fields stay", jsonInOut(200, onDatabaseIn(dbs.Databases.Update))),
		del(databasePath, "Delete a database with all its data and backups", noContent(deleteDatabase)),
		get(databasePath+"/connection", "Get its URLs and broker token", jsonOut(200, onData(dbs.API.Connection))),
		post(databasePath+"/wake", "Begin to wake a database that sleeps", jsonOut(202, onData(dbs.API.Wake))),
		post(databasePath+"/suspend", "End the sessions of a database and let it sleep",
			jsonOut(200, onDatabase(dbs.Databases.Suspend))),
		post(databasePath+"/clone", "Begin to branch a database, as it is now or was at a moment of the past",
			jsonInOut(202, onDatabaseIn(dbs.Databases.Clone))),
		post(databasePath+"/reset", "Begin to give a branch what its database has; its id, URL and credentials stay",
			jsonInOut(202, onDatabaseIn(dbs.Databases.Reset))),
		post(databasePath+"/upgrade", "Begin to give it a newer major version of PostgreSQL; its id and URL stay",
			jsonInOut(202, onDatabaseIn(dbs.Databases.Upgrade))),
		post(databasePath+"/failover", "Replace the server of a database; 202 if that continues",
			jsonInOut(200, failover)),
		post(databasePath+"/reset-credentials", "Replace the password and the broker token of a database",
			jsonOut(200, onDatabase(dbs.Databases.ResetCredentials))),
		get(databasePath+"/stats", "Get measurements of a database's server", jsonOut(200, onData(dbs.API.Stats))),
		get(databasePath+"/logs", "Get the end of the log of a database's server", jsonOut(200, onData(dbs.API.Logs)),
			param{"lines", "integer", "At most so many, 1 to 10000; 100 if absent."}),
		get(databasePath+"/metrics", "Get what its server used over time", jsonOut(200, onData(dbs.API.Metrics)),
			param{"range", "string", "1h, the default, 24h, 7d or 30d."},
			param{"bucket", "string", "15s, 1m, 5m, 30m or 2h; one that fits the range if absent."}),
		get(databasePath+"/insights", "Get queries, sessions, locks, cache and bloat of a database",
			jsonOut(200, onData(dbs.API.Insights)),
			param{"database", "string", "Database of the server; pandastack if absent."},
			param{"order", "string", "total_time, the default, mean_time, calls, rows or reads."},
			param{"limit", "integer", "At most so many of each list, 1 to 100; 20 if absent."}),
		get(databasePath+"/backups", "Get the state of its backups, what can be restored, and rehearsals",
			jsonOut(200, onData(dbs.API.Backups))),
		post(databasePath+"/backups", "Order a base backup, which is taken when the database runs",
			jsonOut(202, onData(dbs.API.BackUp))),
		post(databasePath+"/rehearsals", "Begin to restore it into a machine of its own, where everything is verified",
			jsonOut(202, onData(dbs.API.Rehearse))),
		anyMethod(databasePath+"/proxy/{path...}", "Query a database with its broker token", broker),
	)
}

// database returns the caller of the API of databases, for the database in the path.
func (rq *request) database() dbs.Caller {
	return dbs.Caller{Principal: rq.p, Database: rq.r.PathValue("database")}
}

// onDatabase is a handler that makes a call on the database in the path.
func onDatabase(do dbs.Verb) func(*request) (api.Database, error) {
	return func(rq *request) (api.Database, error) {
		return rq.s.deps.Databases.On(rq.r.Context(), rq.database(), do)
	}
}

// onDatabaseIn is onDatabase for a call with a request.
func onDatabaseIn[In any](
	do func(dbs.Databases, context.Context, auth.Principal, api.DatabaseID, In) (api.Database, error),
) func(*request, In) (api.Database, error) {
	return func(rq *request, in In) (api.Database, error) {
		return onDatabase(func(
			s dbs.Databases, ctx context.Context, p auth.Principal, id api.DatabaseID,
		) (api.Database, error) {
			return do(s, ctx, p, id, in)
		})(rq)
	}
}

// onData is a handler of a call with the query of its request.
func onData[Out any](
	do func(dbs.API, context.Context, dbs.Caller, url.Values) (Out, error),
) func(*request) (Out, error) {
	return func(rq *request) (Out, error) {
		return do(rq.s.deps.Databases, rq.r.Context(), rq.database(), rq.r.URL.Query())
	}
}

func createDatabase(rq *request, req api.CreateDatabaseRequest) (api.Database, error) {
	d, err := rq.s.deps.Databases.Create(rq.r.Context(), rq.database(), req)
	rq.target = string(d.ID)
	return d, err
}

func adoptDatabase(rq *request, req api.AdoptDatabaseRequest) (api.Database, error) {
	rq.target = string(req.ID)
	return rq.s.deps.Databases.Adopt(rq.r.Context(), rq.database(), req)
}

func listDatabases(rq *request) ([]api.Database, error) {
	return rq.s.deps.Databases.List(rq.r.Context(), rq.database())
}

func deleteDatabase(rq *request) error {
	return rq.s.deps.Databases.Delete(rq.r.Context(), rq.database())
}

func failover(rq *request, req api.FailoverRequest) (api.Database, error) {
	d, err := onDatabaseIn(dbs.Databases.Failover)(rq, req)
	if err == nil && d.Status == api.DatabaseRestoring {
		rq.w = &statusAs{rq.w, http.StatusAccepted}
	}
	return d, err
}

// statusAs sends another status than the handler's.
type statusAs struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusAs) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }

func proxyBroker(rq *request) error {
	return rq.s.deps.Databases.ServeBroker(rq.w, rq.r, rq.r.PathValue("database"), "/"+rq.r.PathValue("path"))
}

// checksBrokerToken reports whether the query broker checks the caller of a route.
func (rt route) checksBrokerToken() bool { return rt.need == access.Broker }
