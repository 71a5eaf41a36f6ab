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
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
)

const databaseTemplate = "postgres-16"

// databaseLimit bounds each step with a database.
const databaseLimit = 3 * time.Minute

// database measures databases, whose edge is reached at the host of the API.
func (r *run) database(ctx context.Context) (err error) {
	if err := r.baked(ctx, databaseTemplate); err != nil {
		return err
	}
	var made []api.DatabaseID
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		for _, id := range made {
			err = errors.Join(err, r.cl.Databases.Delete(end, id))
		}
	}()
	first := func(s *Series, begin func(context.Context) (api.Database, error), measured bool) (api.Database, error) {
		ctx, cancel := context.WithTimeout(ctx, databaseLimit)
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
	branch := r.series("database_branch", "branch of a database to its first query", &Target{P50: 800})
	for range r.times(5) {
		_, err := first(branch, func(ctx context.Context) (api.Database, error) {
			return r.cl.Databases.Clone(ctx, d.ID, api.CloneDatabaseRequest{})
		}, true)
		if err != nil {
			return err
		}
	}
	if err := r.databaseWakes(ctx, d); err != nil {
		return err
	}
	return r.databaseQueries(ctx, d)
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
	for {
		d, err := r.cl.Databases.Get(ctx, id)
		switch {
		case err != nil || d.Status == api.DatabaseRunning:
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
