package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// retryPause is how long Start waits between looks at a server that is starting.
const retryPause = 50 * time.Millisecond

// Tags of the programs in guests, as the template has them.
const (
	tagServer = "postgres"
	tagPooler = "pgbouncer"
)

// Start returns when the server accepts connections. It starts server and pooler if they do not run, as after a boot
// of the machine from its disk.
func Start(ctx context.Context, g Guest) error {
	for {
		err := Use(ctx, g, Maintained, pingable)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, guestapi.ErrRefused):
			if err := startPrograms(ctx, g); err != nil {
				return err
			}
		case !starting(err):
			return fmt.Errorf("the server does not accept connections: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not accept connections: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(retryPause):
		}
	}
}

// starting reports whether an error is that of a server that may accept connections soon.
func starting(err error) bool {
	if errors.Is(err, guestapi.ErrNotFound) { // the socket
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "57P03" // cannot_connect_now
}

func startPrograms(ctx context.Context, g Guest) error {
	for _, p := range []struct{ tag, verb string }{{tagServer, "serve"}, {tagPooler, "pool"}} {
		one, err := g.Start(ctx, guestapi.ProcessSpec{
			Argv: []string{"sh", program, p.verb}, User: "root", Dir: "/", Tag: p.tag,
		})
		if errors.Is(err, guestapi.ErrExists) { // it runs
			continue
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", p.verb, err)
		}
		if err := one.Close(); err != nil {
			return fmt.Errorf("start %s: %w", p.verb, err)
		}
	}
	return nil
}

// Restart restarts the server with settings for all its databases.
//
// It then uses the memory that the machine has.
// The settings are by name; their values are literals of SQL.
func Restart(ctx context.Context, g Guest, settings map[string]string) error {
	conn, err := Connect(ctx, g, Maintained)
	if err != nil {
		return err
	}
	defer Close(ctx, conn)
	for name, value := range settings {
		if _, err := conn.Exec(ctx, "ALTER SYSTEM SET "+name+" = "+quote(value)); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return fmt.Errorf("find the data directory: %w", err)
	}
	Close(ctx, conn)
	if err := stop(ctx, g, data); err != nil {
		return err
	}
	return Start(ctx, g)
}

// MemorySettings returns the settings of a server with more memory than its template has.
func MemorySettings(mib int) map[string]string {
	return map[string]string{
		"work_mem":             fmt.Sprintf("%dMB", max(4, mib/256)),
		"maintenance_work_mem": fmt.Sprintf("%dMB", max(64, mib/16)),
		"max_wal_size":         fmt.Sprintf("%dMB", max(1024, mib/2)),
	}
}

// stopTimeout bounds the time in which a server stops.
const stopTimeout = time.Minute

func stop(ctx context.Context, g Guest, data string) error {
	out, err := guestexec.Run(ctx, g, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"runuser", "-u", "postgres", "--", "pg_ctl", "-D", data, "-w", "-m", "fast", "stop"},
		User: "root", Dir: "/", Timeout: stopTimeout,
	}, Overtime: 5 * time.Second}, guestexec.Limits{Stderr: guestexec.Limit{Bytes: 1024, Keep: guestexec.Tail}})
	if err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if e := out.Exit; e.Code != 0 || e.Signal != 0 || e.Error != "" {
		return fmt.Errorf("stop the server: exit code %d: %s%s", e.Code, e.Error,
			strings.TrimSpace(string(out.Stderr.Data)))
	}
	return nil
}

func pingable(*pgx.Conn) error { return nil }
