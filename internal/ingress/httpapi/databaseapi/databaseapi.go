// Package databaseapi are the calls on managed databases as the API offers them.
//
// It checks ids, hides credentials from callers that may not run commands, and reads queries; the services do the rest.
// It must not know routes or how bodies are decoded.
package databaseapi

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Databases are the methods of the service for managed databases that this API uses.
type Databases interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateDatabaseRequest) (api.Database, error)
	Adopt(ctx context.Context, p auth.Principal, req api.AdoptDatabaseRequest) (api.Database, error)
	List(ctx context.Context, p auth.Principal) ([]api.Database, error)
	Get(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error)
	Delete(ctx context.Context, p auth.Principal, id api.DatabaseID) error
	Connection(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseConnection, error)
	Wake(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error)
	Suspend(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error)
	Update(
		ctx context.Context,
		p auth.Principal,
		id api.DatabaseID,
		req api.UpdateDatabaseRequest,
	) (api.Database, error)
	ResetCredentials(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error)
	Clone(ctx context.Context, p auth.Principal, id api.DatabaseID, req api.CloneDatabaseRequest) (api.Database, error)
	Reset(ctx context.Context, p auth.Principal, id api.DatabaseID, req api.ResetDatabaseRequest) (api.Database, error)
	Upgrade(
		ctx context.Context,
		p auth.Principal,
		id api.DatabaseID,
		req api.UpgradeDatabaseRequest,
	) (api.Database, error)
	Failover(ctx context.Context, p auth.Principal, id api.DatabaseID, req api.FailoverRequest) (api.Database, error)
	Backups(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseBackups, error)
	BackUp(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error)
	Rehearse(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseRehearsal, error)
}

// Insight reads the servers of databases; *insight.Service does. It wakes none.
type Insight interface {
	Stats(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseStats, error)
	Logs(ctx context.Context, p auth.Principal, id api.DatabaseID, lines int) (api.DatabaseLogs, error)
	Metrics(ctx context.Context, p auth.Principal, id api.DatabaseID, span, bucket string) (api.DatabaseMetrics, error)
	Insights(
		ctx context.Context,
		p auth.Principal,
		id api.DatabaseID,
		q api.InsightQuery,
	) (api.DatabaseInsights, error)
}

// QueryBroker serves queries over HTTP.
type QueryBroker interface {
	// ServeDatabase handles a request for the holder of the broker token of a database. path is below the broker's
	// root, such as /v1/query.
	ServeDatabase(w http.ResponseWriter, r *http.Request, id, path string)
}

// Caller is a caller and the database of its call, whose id is as in the path.
type Caller struct {
	Principal auth.Principal
	Database  string
}

// API has the services; nil ones are unsupported.
type API struct {
	Databases Databases
	Insight   Insight
	Broker    QueryBroker
}

// service returns the service for databases and the id of a caller.
func (a API) service(c Caller) (Databases, api.DatabaseID, error) {
	if a.Databases == nil {
		return nil, "", errNoDatabases()
	}
	id, err := api.ParseDatabaseID(c.Database)
	return a.Databases, id, err
}

func errNoDatabases() error { return api.Errorf(api.Unsupported, "this server has no databases") }

// insight returns what reads the servers of databases, and the id of a caller.
func (a API) insight(c Caller) (Insight, api.DatabaseID, error) {
	if a.Insight == nil {
		return nil, "", errNoDatabases()
	}
	id, err := api.ParseDatabaseID(c.Database)
	return a.Insight, id, err
}

// shown returns a database as a caller may see it: one that may not run commands does not get credentials, and only one
// that operates the node sees details of the host in reasons of failures.
func shown(c Caller, d api.Database) api.Database {
	d = withReasons(c, d)
	if !c.Principal.Scopes.Has(api.ScopeExec) {
		return withoutCredentials(d)
	}
	return d
}

func withReasons(c Caller, d api.Database) api.Database {
	d.Error, d.ReplicaStates = api.ShownReason(d.Error, c.Principal.Operator), slices.Clone(d.ReplicaStates)
	for i := range d.ReplicaStates {
		r := &d.ReplicaStates[i]
		r.Error = api.ShownReason(r.Error, c.Principal.Operator)
	}
	return d
}

// refusal returns an error as a caller may see it.
func refusal(c Caller, err error) error {
	if err == nil || c.Principal.Operator {
		return err
	}
	return api.ForUsers(err)
}

func withoutCredentials(d api.Database) api.Database {
	d.Password, d.ConnectionURL, d.PoolerURL, d.BrokerToken = "", "", "", ""
	d.ReadOnlyURL, d.ReadOnlyPoolerURL = "", ""
	return d
}

// Verb is a call on one database.
type Verb func(Databases, context.Context, auth.Principal, api.DatabaseID) (api.Database, error)

// On makes a call on the database of a caller.
func (a API) On(ctx context.Context, c Caller, do Verb) (api.Database, error) {
	s, id, err := a.service(c)
	if err != nil {
		return api.Database{}, err
	}
	d, err := do(s, ctx, c.Principal, id)
	return shown(c, d), refusal(c, err)
}

// Create begins to create a database.
func (a API) Create(ctx context.Context, c Caller, req api.CreateDatabaseRequest) (api.Database, error) {
	if a.Databases == nil {
		return api.Database{}, errNoDatabases()
	}
	d, err := a.Databases.Create(ctx, c.Principal, req)
	return shown(c, d), refusal(c, err)
}

// Adopt begins to take a database over from a node that is lost. Its caller operates the node, and gets no credentials
// of other workspaces.
func (a API) Adopt(ctx context.Context, c Caller, req api.AdoptDatabaseRequest) (api.Database, error) {
	if a.Databases == nil {
		return api.Database{}, errNoDatabases()
	}
	d, err := a.Databases.Adopt(ctx, c.Principal, req)
	return withoutCredentials(withReasons(c, d)), refusal(c, err)
}

// List returns all databases without credentials.
func (a API) List(ctx context.Context, c Caller) ([]api.Database, error) {
	if a.Databases == nil {
		return nil, errNoDatabases()
	}
	list, err := a.Databases.List(ctx, c.Principal)
	if err != nil {
		return nil, refusal(c, err)
	}
	out := make([]api.Database, 0, len(list))
	for _, d := range list {
		out = append(out, withoutCredentials(withReasons(c, d)))
	}
	return out, nil
}

// Delete deletes the database of a caller.
func (a API) Delete(ctx context.Context, c Caller) error {
	s, id, err := a.service(c)
	if err != nil {
		return err
	}
	return refusal(c, s.Delete(ctx, c.Principal, id))
}

// Connection returns how to connect to the database of a caller, which may run commands.
func (a API) Connection(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseConnection, err error) {
	s, id, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Connection(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// Wake begins to wake the database of a caller.
func (a API) Wake(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseAccepted, err error) {
	s, id, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Wake(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// Backups returns the state of the backups of the database of a caller.
func (a API) Backups(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseBackups, err error) {
	s, id, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Backups(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// BackUp orders a base backup of the database of a caller.
func (a API) BackUp(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseAccepted, err error) {
	s, id, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.BackUp(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// Rehearse begins a rehearsal of the restore of the database of a caller.
func (a API) Rehearse(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseRehearsal, err error) {
	s, id, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Rehearse(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// Stats returns measurements of the server of a database.
func (a API) Stats(ctx context.Context, c Caller, _ url.Values) (out api.DatabaseStats, err error) {
	in, id, err := a.insight(c)
	if err != nil {
		return out, err
	}
	out, err = in.Stats(ctx, c.Principal, id)
	return out, refusal(c, err)
}

// Logs returns the end of the log of a database's server; q has lines.
func (a API) Logs(ctx context.Context, c Caller, q url.Values) (out api.DatabaseLogs, err error) {
	in, id, err := a.insight(c)
	if err != nil {
		return out, err
	}
	lines, err := number(q, "lines", api.MaxDatabaseLogLines, 100)
	if err != nil {
		return out, err
	}
	out, err = in.Logs(ctx, c.Principal, id, lines)
	return out, refusal(c, err)
}

// Metrics returns what a database's server used over time; q has range and bucket.
func (a API) Metrics(ctx context.Context, c Caller, q url.Values) (out api.DatabaseMetrics, err error) {
	in, id, err := a.insight(c)
	if err != nil {
		return out, err
	}
	out, err = in.Metrics(ctx, c.Principal, id, q.Get("range"), q.Get("bucket"))
	return out, refusal(c, err)
}

// Insights returns what a database does; q has database, order and limit.
func (a API) Insights(ctx context.Context, c Caller, q url.Values) (out api.DatabaseInsights, err error) {
	in, id, err := a.insight(c)
	if err != nil {
		return out, err
	}
	limit, err := number(q, "limit", api.MaxDatabaseInsights, 20)
	if err != nil {
		return out, err
	}
	what := api.InsightQuery{Database: q.Get("database"), Order: q.Get("order"), Limit: limit}
	if err := what.Validate(); err != nil {
		return out, err
	}
	out, err = in.Insights(ctx, c.Principal, id, what)
	return out, refusal(c, err)
}

// number returns a whole number of a query from 1 to most, or fallback if there is none.
func number(q url.Values, name string, most, fallback int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, api.Errorf(api.Invalid, "%s: %.60q is not a number from 1 to %d", name, text, most).
			With("field", name)
	}
	return n, nil
}

// ServeBroker hands a request to the query broker, which checks its token. The database is woken for it. What is no id
// goes to the broker, too: its reply does not depend on whether a database exists.
func (a API) ServeBroker(w http.ResponseWriter, r *http.Request, id, path string) error {
	if a.Broker == nil {
		return errNoDatabases()
	}
	a.Broker.ServeDatabase(w, r, id, path)
	return nil
}
