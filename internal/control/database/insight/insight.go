// Package insight reads what the servers of databases do.
//
// These are measurements, now and over time, logs, queries, sessions, locks, cache and bloat.
// It logs into a server as superuser and reads system catalogs only, in a read-only session with short time limits. It
// wakes no database, and must not know how databases come about. What servers and guests return is bounded. Service and
// Recorder may be used concurrently.
package insight

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Bounds of what is read.
const (
	readLimit  = 20 * time.Second // of a whole request
	logLimit   = 5 * time.Second  // of the log
	logQuiet   = 150 * time.Millisecond
	lineBytes  = 16 << 10
	logBytes   = 4 << 20 // of a response
	slowLines  = api.MaxDatabaseLogLines
	outputSize = 4 << 10
)

// process is the tag of the server's process in its guest, whose output is its log.
const process = "postgres"

// Databases that are read if the caller names none.
const (
	administration  = "postgres"
	defaultDatabase = "pandastack"
)

// Server is a server that runs.
type Server interface {
	SQL(ctx context.Context, database string) (*pgx.Conn, error) // as superuser; the caller closes it
	Guest() guestapi.Guest
}

// Deps are what a Service works with.
type Deps struct {
	Get func(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error)
	// Running returns the server of a database; ok is false if it sleeps.
	Running  func(ctx context.Context, p auth.Principal, id api.DatabaseID) (s Server, ok bool, err error)
	Recorder *Recorder
}

// Service reads the servers of databases. Make one with New.
type Service struct{ deps Deps }

// New returns a service.
func New(deps Deps) *Service { return &Service{deps: deps} }

// server returns the server of a database that runs.
func (s *Service) server(ctx context.Context, p auth.Principal, id api.DatabaseID) (Server, error) {
	server, ok, err := s.deps.Running(ctx, p, id)
	if err == nil && !ok {
		err = api.Errorf(api.WrongState, "database %s sleeps: wake it with POST /v1/databases/%[1]s/wake", id)
	}
	return server, err
}

// session calls f with a session of a server that can change nothing.
func session(
	ctx context.Context,
	server Server,
	database string,
	f func(context.Context, *pgx.Conn) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readLimit, api.Errorf(api.Timeout,
		"the server did not reply within %v", readLimit))
	defer cancel()
	conn, err := server.SQL(ctx, database)
	if err != nil {
		return failed(ctx, err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with the session
	// Nothing that users of the database have made can stand in for a function or operator of the system.
	const settings = "SET search_path = pg_catalog; SET default_transaction_read_only = on; " +
		"SET statement_timeout = '5s'; SET lock_timeout = '1s'; SET application_name = 'pandastack-insight'"
	if _, err = conn.Exec(ctx, settings); err == nil {
		err = f(ctx, conn)
	}
	return failed(ctx, err)
}

// failed says what an error of a server means to a user.
func failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	if ctx.Err() != nil {
		return api.AsError(context.Cause(ctx))
	}
	if said, ok := errors.AsType[*pgconn.PgError](err); ok { // by the user's own server
		if said.Code == noDatabase {
			return api.Errorf(api.NotFound, "database: the server has none of this name: leave it out for %s",
				defaultDatabase).With("field", "database")
		}
		return api.Errorf(api.Unavailable, "the server of the database refused: %s", firstLine(said.Message))
	}
	cause := lineError{err}
	return api.Wrap(api.Unavailable, cause, "the server of the database did not answer: "+cause.Error())
}

// noDatabase is the SQLSTATE invalid_catalog_name.
const noDatabase = "3D000"

// lineError is an error of which only the first line is shown.
type lineError struct{ error }

// Error implements error.
func (e lineError) Error() string { return firstLine(e.error.Error()) }

// Unwrap returns the error.
func (e lineError) Unwrap() error { return e.error }

// lineLimit bounds the text of an error.
const lineLimit = 1 << 10

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return guestapi.Printable(line[:min(len(line), lineLimit)])
}

// Stats returns measurements of a server.
func (s *Service) Stats(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseStats, error) {
	var out api.DatabaseStats
	db, err := s.deps.Get(ctx, p, id)
	if err != nil {
		return out, err
	}
	out.Replicas = db.ReplicaStates
	server, err := s.server(ctx, p, id)
	if err != nil {
		return out, err
	}
	var data string
	err = session(ctx, server, administration, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT current_setting('server_version'),
			(SELECT coalesce(sum(pg_database_size(oid)), 0)::bigint FROM pg_database WHERE NOT datistemplate),
			(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
			current_setting('max_connections')::int,
			extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::bigint,
			(SELECT coalesce(sum(blks_hit) / nullif(sum(blks_hit + blks_read), 0), 1)::float8 FROM pg_stat_database),
			current_setting('data_directory')`).
			Scan(&out.PostgresVersion, &out.DBSizeBytes, &out.Connections, &out.MaxConnections, &out.UptimeSeconds,
				&out.CacheHitRatio, &data)
	})
	if err != nil {
		return out, err
	}
	// A server that came with its template began before its database.
	if age := time.Since(time.UnixMicro(int64(db.CreatedAt * 1e6))); db.CreatedAt > 0 {
		out.UptimeSeconds = min(out.UptimeSeconds, int64(age.Seconds()))
	}
	out.UptimeSeconds = max(out.UptimeSeconds, 0)
	return out, disk(ctx, server.Guest(), data, &out)
}

// disk measures the file system of a server's data.
func disk(ctx context.Context, g guestapi.Guest, dir string, out *api.DatabaseStats) error {
	limit := guestexec.Limit{Bytes: outputSize}
	r, err := guestexec.Run(ctx, g, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"df", "--block-size=1", "--output=size,used,avail", "--", dir}, User: "root", Timeout: logLimit,
	}}, guestexec.Limits{Stdout: limit, Stderr: limit})
	if err != nil {
		return api.Wrap(api.Unavailable, err, "the guest of the database did not answer")
	}
	lines := strings.Split(strings.TrimSpace(string(r.Stdout.Data)), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) != 3 {
		return api.Errorf(api.Unavailable, "the guest of the database did not tell the size of its disk")
	}
	for i, to := range []*int64{&out.DiskSizeBytes, &out.DiskUsedBytes, &out.DiskAvailBytes} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || n < 0 {
			return api.Errorf(api.Unavailable, "the guest of the database did not tell the size of its disk")
		}
		*to = n
	}
	if whole := float64(out.DiskUsedBytes) + float64(out.DiskAvailBytes); whole > 0 {
		out.DiskUsedPct = 100 * float64(out.DiskUsedBytes) / whole
	}
	return nil
}

// Logs returns the last lines of the log of a server, as far as its guest keeps it.
func (s *Service) Logs(ctx context.Context, p auth.Principal, id api.DatabaseID, n int) (api.DatabaseLogs, error) {
	server, err := s.server(ctx, p, id)
	if err != nil {
		return api.DatabaseLogs{}, err
	}
	all, err := readLog(ctx, server.Guest(), n)
	if err != nil {
		return api.DatabaseLogs{}, err
	}
	size, first := 0, len(all)
	for first > 0 && size+len(all[first-1])+1 <= logBytes {
		first--
		size += len(all[first]) + 1
	}
	var text strings.Builder
	for _, line := range all[first:] {
		text.WriteString(line + "\n")
	}
	return api.DatabaseLogs{Logs: text.String()}, nil
}

// errRead ends the reading of a log that has no more to give now.
var errRead = errors.New("the log was read")

// readLog returns the last lines of the log of the server in a guest.
func readLog(ctx context.Context, g guestapi.Guest, n int) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, logLimit, errRead)
	defer cancel()
	list, err := g.Processes(ctx)
	if err != nil {
		return nil, api.Wrap(api.Unavailable, err, "the guest of the database did not answer")
	}
	var newest *guestapi.ProcessInfo
	for i, one := range list {
		if one.Tag == process && (newest == nil || one.Started.After(newest.Started)) {
			newest = &list[i]
		}
	}
	if newest == nil {
		return nil, nil
	}
	lines := &guestexec.Lines{Max: lineBytes, Keep: n}
	_, err = guestexec.Attach(ctx, g, guestapi.ProcessRef{PID: newest.PID}, guestapi.Offsets{}, guestexec.Sink{
		Output: func(e guestapi.Event) error {
			if e.Stream == guestapi.StreamStderr {
				lines.Add(e.Data)
			}
			return nil
		},
		Idle:      func() error { return errRead },
		IdleAfter: logQuiet,
	})
	if err != nil && !errors.Is(err, errRead) {
		return nil, api.Wrap(api.Unavailable, err, "the log of the database could not be read")
	}
	lines.Flush()
	return lines.Last(), nil
}
