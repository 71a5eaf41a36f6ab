package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
)

const databaseTemplate = "postgres-16"

// Limits of each step with a database, and of those that may take longer.
const (
	databaseLimit     = 3 * time.Minute
	databaseLongLimit = 10 * time.Minute
)

// A branch of the past is of pastMiB and may take pastLimit ms; one of what a database has now is of branchMiB more.
const (
	pastMiB, branchMiB = 100, 1<<10 - pastMiB
	pastLimit          = 60_000
)

// database measures databases, whose edge is reached at the host of the API.
func (r *run) database(ctx context.Context) (err error) {
	if err := r.baked(ctx, databaseTemplate); err != nil {
		return err
	}
	var made []api.DatabaseID
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		for _, id := range slices.Backward(made) { // branches before their database
			err = errors.Join(err, r.cl.Databases.Delete(end, id))
		}
	}()
	first := func(s *Series, begin func(context.Context) (api.Database, error), measured bool) (api.Database, error) {
		ctx, cancel := context.WithTimeout(ctx, databaseLongLimit)
		defer cancel()
		began := time.Now()
		d, err := begin(ctx)
		if err != nil {
			return d, err
		}
		made = append(made, d.ID)
		if d, err = r.databaseRuns(ctx, d.ID); err == nil {
			err = r.firstRow(ctx, d)
		}
		if measured {
			r.add(s, time.Since(began), err)
		}
		return d, err
	}
	create := r.series("database_create", "create of a database to its first query", &Target{P50: 600})
	var d api.Database
	for i := range r.times(10) + 1 { // the first one is not measured: caches are cold
		d, err = first(create, func(ctx context.Context) (api.Database, error) {
			return r.cl.Databases.Create(ctx, api.CreateDatabaseRequest{})
		}, i > 0)
		if err != nil {
			return err
		}
		if i < r.times(10) {
			if err := r.cl.Databases.Delete(ctx, d.ID); err != nil {
				return err
			}
			made = made[:len(made)-1]
		}
	}
	if err := r.databaseWakes(ctx, d); err != nil {
		return err
	}
	if err := r.databaseQueries(ctx, d); err != nil {
		return err
	}
	if d, err = r.databaseWhen(ctx, d.ID, func(d api.Database) bool { return d.FailoverAvailable }); err != nil {
		return err // without a base backup there is no past
	}
	past := r.series("database_past", "branch of a past moment of a database of 100 MiB to its first query",
		&Target{P50: pastLimit})
	moment, err := r.databaseFill(ctx, d, pastMiB)
	if err != nil {
		return err
	}
	for range r.times(3) {
		_, err := first(past, func(ctx context.Context) (api.Database, error) {
			return r.cl.Databases.Clone(ctx, d.ID, api.CloneDatabaseRequest{TargetTime: &moment})
		}, true)
		if err != nil {
			return err
		}
	}
	branch := r.series("database_branch", "branch of a database of 1 GiB to its first query", &Target{P50: 800})
	mib := min(branchMiB, r.times(branchMiB))
	if _, err := r.databaseFill(ctx, d, mib); err != nil {
		return err
	}
	branch.Note = fmt.Sprintf("%d MiB", mib+pastMiB)
	for range r.times(5) {
		_, err := first(branch, func(ctx context.Context) (api.Database, error) {
			return r.cl.Databases.Clone(ctx, d.ID, api.CloneDatabaseRequest{})
		}, true)
		if err != nil {
			return err
		}
	}
	return nil
}

// databaseFill adds rows to a database, and returns a moment after them, before which everything that came earlier
// committed and nothing that comes later.
func (r *run) databaseFill(ctx context.Context, d api.Database, mib int) (moment time.Time, err error) {
	conn, err := r.databaseSession(ctx, d)
	if err != nil {
		return moment, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with the session
	if _, err := conn.Exec(ctx, "create table if not exists filler (n bigint, v text)"); err != nil {
		return moment, err
	}
	const rows = 1024 // of a MiB
	for range mib {
		sql := "insert into filler select n, repeat(md5(n::text), 30) from generate_series(1, $1::int) n"
		if _, err := conn.Exec(ctx, sql, rows); err != nil {
			return moment, err
		}
	}
	err = conn.QueryRow(ctx, "select date_trunc('second', clock_timestamp()) + '1 second'").Scan(&moment)
	if err == nil {
		_, err = conn.Exec(ctx, "select pg_sleep_until($1::timestamptz + '1 millisecond')", moment)
	}
	return moment, err
}

// databaseWakes measures connections to a database that sleeps.
func (r *run) databaseWakes(ctx context.Context, d api.Database) error {
	wake := r.series("database_wake", "connection to a database that sleeps to its first row", &Target{P50: 500})
	for range r.times(10) {
		if _, err := r.cl.Databases.Suspend(ctx, d.ID); err != nil {
			return err
		}
		began := time.Now()
		err := r.firstRow(ctx, d)
		r.add(wake, time.Since(began), err)
	}
	return nil
}

// databaseQueries measures repeated queries.
func (r *run) databaseQueries(ctx context.Context, d api.Database) error {
	conn, err := r.databaseSession(ctx, d)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with the session
	native := r.series("database_select", "select 1, repeatedly in one session", &Target{P50: 15})
	broker := r.series("database_select_http", "select 1, repeatedly over HTTP", &Target{P50: 30})
	for i := range r.times(200) + 3 {
		began := time.Now()
		_, err := conn.Exec(ctx, "select 1")
		if i >= 3 { // the first ones are not measured: caches are cold
			r.add(native, time.Since(began), err)
		}
		began = time.Now()
		err = queryHTTP(ctx, d)
		if i >= 3 {
			r.add(broker, time.Since(began), err)
		}
	}
	return nil
}

// databaseRuns waits until a database runs.
func (r *run) databaseRuns(ctx context.Context, id api.DatabaseID) (api.Database, error) {
	return r.databaseWhen(ctx, id, func(d api.Database) bool { return d.Status == api.DatabaseRunning })
}

// databaseWhen waits until ok accepts a database.
func (r *run) databaseWhen(ctx context.Context, id api.DatabaseID, ok func(api.Database) bool) (api.Database, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseLongLimit)
	defer cancel()
	for {
		d, err := r.cl.Databases.Get(ctx, id)
		switch {
		case err != nil || ok(d):
			return d, err
		case d.Status == api.DatabaseFailed:
			return d, fmt.Errorf("database %s failed: %s", id, d.Error)
		}
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return d, err
		}
	}
}

// databaseSession connects to a database by its name, at the host of the API.
func (r *run) databaseSession(ctx context.Context, d api.Database) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(d.ConnectionURL)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(r.cl.URL())
	if err != nil {
		return nil, err
	}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{u.Hostname()}, nil }
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	ctx, cancel := context.WithTimeout(ctx, databaseLimit)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg)
}

// firstRow connects to a database and reads one row.
func (r *run) firstRow(ctx context.Context, d api.Database) error {
	conn, err := r.databaseSession(ctx, d)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with the session
	var one int
	return conn.QueryRow(ctx, "select 1").Scan(&one)
}

// queryHTTP sends a query to the query broker of a database.
func queryHTTP(ctx context.Context, d api.Database) error {
	body := bytes.NewReader([]byte(`{"sql":"select 1"}`))
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, d.BrokerURL+"/v1/query", body)
	if err != nil {
		return err
	}
	rq.Header.Set("Authorization", "Bearer "+d.BrokerToken)
	res, err := http.DefaultClient.Do(rq)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("a query over HTTP has the status %s", res.Status)
	}
	return nil
}
