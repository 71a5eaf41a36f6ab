package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/insight"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/databaseapi"
	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/ingress/pghttp"
)

// listenDatabases listens on the address of the databases. It returns nil if there are none.
func (n *node) listenDatabases(ctx context.Context) (net.Listener, error) {
	if n.Config.Databases.Listen == "" {
		return nil, nil
	}
	return n.listenAt(ctx, n.Config.Databases.Listen, "--databases-listen (empty: no databases)")
}

// databaseSuffix returns the domain of the databases' host names.
func (n *node) databaseSuffix() string {
	if s := n.Config.Databases.Suffix; s != "" {
		return s
	}
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Hostname() != "" {
		if _, err := netip.ParseAddr(u.Hostname()); err != nil { // no name is below an address
			return "db." + u.Hostname()
		}
	}
	return "db.localhost"
}

// databases is the service for databases with its edges. The zero value is that of a node without databases.
type databases struct {
	service *database.Service
	keeper  *backup.Keeper
	edge    *pgedge.Server
	http    *pghttp.Server
	log     *databaseLog
	insight *insight.Service
	usage   *insight.Recorder
}

// databases creates the service for databases and its edges.
func (n *node) databases(
	ctx context.Context,
	deps database.Deps,
	boxes insight.Sandboxes,
	log *audit.Log,
	secret []byte,
) (d databases, err error) {
	if n.pg == nil {
		return d, nil
	}
	set, suffix := n.Config.Databases, n.databaseSuffix()
	_, text, err := net.SplitHostPort(n.pg.Addr().String())
	if err != nil {
		return d, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return d, err
	}
	var machines *rehearsals
	if d.keeper, machines, err = n.backups(ctx, deps.Store); err != nil {
		return d, err
	}
	deps.Backups, deps.Replication = d.keeper, standby.Replication{}
	d.service, err = database.New(database.Config{
		Suffix: suffix, Port: cmp.Or(set.Port, port), URL: n.apiURL, Template: set.Template, Idle: set.Idle,
		StorageMaxMiB: set.StorageMaxMiB, FixedMemory: !n.memory, ReplicaLag: set.ReplicaLag,
	}, deps)
	if err != nil {
		return d, err
	}
	machines.Service = d.service
	limiter := pgedge.NewLimiter(pgedge.Limits{DrainTimeout: n.Config.Lifecycle.ShutdownTimeout / 4})
	d.log = newDatabaseLog(d.service, log)
	resolver, mock := endpoints{d.service}, derive(secret, "database roles")
	d.edge, err = pgedge.New(pgedge.Config{
		Suffix: suffix, TLS: &tls.Config{GetCertificate: n.cert.Get, MinVersion: tls.VersionTLS12},
		Resolver: resolver, MockSecret: mock, Limiter: limiter, Buffers: n.shares.databases,
		Observe: d.log.observe, Log: n.Log,
	})
	if err != nil {
		return d, err
	}
	d.http, err = pghttp.New(pghttp.Config{
		Suffix: suffix, Resolver: resolver, Edge: d.edge, Limiter: limiter, MockSecret: mock,
		Buffers: n.shares.databases, Observe: d.log.observe, Log: n.Log,
	})
	if err != nil {
		return d, err
	}
	d.usage = insight.NewRecorder(boxes, insight.Primaries(deps.Store, database.OwnerKind))
	d.insight = insight.New(insight.Deps{Get: d.service.Get, Running: d.running, Recorder: d.usage})
	d.service.BeforeSuspend(func(ctx context.Context, id api.DatabaseID) {
		d.http.CloseIdle(string(id))
		d.edge.Disconnect(ctx, string(id), "the database is being suspended")
	})
	return d, nil
}

// run runs what databases need beside their edge.
func (d databases) run(ctx context.Context, n *node) {
	if d.service == nil {
		return
	}
	n.run(ctx, "audit of databases", d.log.run)
	n.run(ctx, "backups of databases", d.keeper.Run)
	n.run(ctx, "databases", d.service.Run)
	n.run(ctx, "queries of databases", d.http.Run)
	n.run(ctx, "metrics of databases", d.usage.Run)
}

// running returns the server of a database for insights, if it runs.
func (d databases) running(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (insight.Server, bool, error) {
	return d.service.Running(ctx, p, id)
}

// api returns what the API offers of databases.
func (d databases) api() databaseapi.API {
	if d.service == nil {
		return databaseapi.API{}
	}
	return databaseapi.API{Databases: d.service, Insight: d.insight, Broker: d.http}
}

// middleware serves the host names of databases.
func (d databases) middleware(next http.Handler) http.Handler {
	if d.service == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.http.Serves(r.Host) {
			d.http.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// endpoints implements pgedge.Resolver with the service for databases.
type endpoints struct{ service *database.Service }

// Endpoint implements pgedge.Resolver. The result is a pghttp.BrokerEndpoint, too.
func (e endpoints) Endpoint(ctx context.Context, id string) (pgedge.Endpoint, error) {
	found, err := e.service.Endpoint(ctx, id)
	if errors.Is(err, database.ErrNoEndpoint) {
		return nil, pgedge.ErrNoEndpoint
	}
	if err != nil {
		return nil, err
	}
	return endpoint{found}, nil
}

// endpoint implements pghttp.BrokerEndpoint.
type endpoint struct{ *database.Endpoint }

func (e endpoint) Settings() pgedge.Settings {
	return pgedge.Settings{Networks: e.Networks(), Running: e.Running()}
}

func (e endpoint) Role(ctx context.Context, name string) (pgedge.Role, error) {
	verifier, err := e.Verifier(ctx, name)
	if errors.Is(err, database.ErrNoRole) {
		err = pgedge.ErrNoRole
	}
	return pgedge.Role{Verifier: verifier}, err
}

func (e endpoint) Dial(ctx context.Context, target pgedge.Target) (net.Conn, error) {
	switch target {
	case pgedge.Direct:
		return e.Endpoint.Dial(ctx, server.Port)
	case pgedge.Pooler:
		return e.Endpoint.Dial(ctx, server.PoolerPort)
	case pgedge.ReadOnly:
		return e.dialReplica(ctx, server.Port)
	case pgedge.ReadOnlyPooler:
		return e.dialReplica(ctx, server.PoolerPort)
	default:
		return nil, pgedge.ErrNoTarget
	}
}

func (e endpoint) dialReplica(ctx context.Context, port uint16) (net.Conn, error) {
	c, err := e.DialReplica(ctx, port)
	if errors.Is(err, replica.ErrNone) {
		err = pgedge.ErrNoTarget
	}
	return c, err
}

func (e endpoint) BrokerLogin(_ context.Context, token string) (pghttp.BrokerLogin, error) {
	keys, err := e.Keys(token)
	if errors.Is(err, database.ErrBadToken) {
		err = pghttp.ErrBadToken
	}
	return pghttp.BrokerLogin{Role: database.RoleName, Keys: keys, Database: database.DatabaseName}, err
}

// databaseLog writes what the edges of databases report into the audit log.
type databaseLog struct {
	service *database.Service
	log     *audit.Log
	events  chan pgedge.Event
}

// maxDatabaseEvents is how many events may wait to be written; others are dropped.
const maxDatabaseEvents = 1024

func newDatabaseLog(service *database.Service, log *audit.Log) *databaseLog {
	return &databaseLog{service: service, log: log, events: make(chan pgedge.Event, maxDatabaseEvents)}
}

// observe takes an event. It waits for nothing.
func (l *databaseLog) observe(e pgedge.Event) {
	select {
	case l.events <- e:
	default: // clients cause more than can be written
	}
}

// run writes events until ctx ends.
func (l *databaseLog) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-l.events:
			if entry, ok := l.entry(ctx, e); ok {
				l.log.Record(ctx, entry)
			}
		}
	}
}

// entry returns the entry for an event. Those at names that are no database's are not recorded.
func (l *databaseLog) entry(ctx context.Context, e pgedge.Event) (audit.Entry, bool) {
	found, err := l.service.Endpoint(ctx, e.Endpoint)
	if err != nil {
		return audit.Entry{}, false
	}
	entry := audit.Entry{
		At: time.Now(), Principal: auth.Principal{Workspace: found.Workspace(), KeyPrefix: "database"},
		Target: e.Endpoint, Outcome: "ok", Remote: e.Client.String(), Took: e.Duration,
	}
	switch e.Kind {
	case pgedge.EventOpened:
		entry.Action = "open session as " + e.Role
	case pgedge.EventClosed:
		entry.Action = "close session as " + e.Role
	case pgedge.EventCanceled:
		entry.Action = "cancel query"
	case pgedge.EventRejected:
		entry.Action, entry.Outcome = "open session as "+e.Role, string(api.Unauthenticated)
	case pgedge.EventRefused:
		entry.Action, entry.Outcome = "open session as "+e.Role, string(api.Forbidden)
	case pgedge.EventFailed:
		entry.Action, entry.Outcome = "open session as "+e.Role, string(api.Unavailable)
	}
	return entry, true
}
