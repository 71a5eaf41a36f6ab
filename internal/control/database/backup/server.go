package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// connectLimit bounds connecting to a server, and closeLimit a good-bye.
	connectLimit = 30 * time.Second
	closeLimit   = 5 * time.Second
	// terminateMillis is how long a connection that has inherited a slot may take to end.
	terminateMillis = "5000"
	// maxRow bounds a message of a server, which is not trusted.
	maxRow = 1 << 20
)

// session is a connection of the superuser.
type session struct{ *pgx.Conn }

// connect opens a session. Its commits wait for no relay.
func (p Primary) connect(ctx context.Context, database string) (session, error) {
	config, err := pgx.ParseConfig("host=localhost port=5432 sslmode=disable passfile=/dev/null")
	if err != nil {
		return session{}, err
	}
	config.User, config.Password, config.Database, config.Fallbacks = p.user(), p.Password, database, nil
	config.RequireAuth = "scram-sha-256"
	if p.Password == "" {
		config.RequireAuth = "none"
	}
	config.RuntimeParams = map[string]string{
		"application_name": "pandastack", "synchronous_commit": "local", "search_path": "pg_catalog",
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"localhost"}, nil }
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) }
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		front := pgproto3.NewFrontend(r, w)
		front.SetMaxBodyLen(maxRow)
		return front
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectLimit, errors.New("the server did not respond in time"))
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	return session{conn}, err
}

func (s session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	_ = s.Close(ctx) // nothing depends on it
}

// prepare makes the slot of the relay and sets what belongs to replication.
func prepare(ctx context.Context, p Primary, slotMiB int) error {
	conn, err := p.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer conn.close(ctx)
	name := SlotName(p.Database)
	// A copy of another database's server has its slots, which would keep the log for no reader. Their names begin
	// with the prefix and have another id. The connections that used them are copies, too, without another end.
	const inherited = " from pg_replication_slots where starts_with(slot_name, $1) and slot_name <> $2 and " +
		"not starts_with(slot_name, $2 || '_')"
	for _, sql := range []string{
		"select pg_terminate_backend(active_pid, " + terminateMillis + ")" + inherited + " and active",
		"select pg_drop_replication_slot(slot_name)" + inherited,
	} {
		if _, err := conn.Exec(ctx, sql, slotPrefix, name); err != nil {
			return fmt.Errorf("remove the slots of another database: %w", err)
		}
	}
	_, err = conn.Exec(ctx, "select pg_create_physical_replication_slot($1, true) where not exists "+
		"(select from pg_replication_slots where slot_name = $1)", name)
	if err != nil {
		return fmt.Errorf("make slot %s: %w", name, err)
	}
	standby := ""
	if p.Synchronous {
		standby = name
	}
	return conn.set(ctx, [][2]string{
		{"synchronous_standby_names", standby}, {"max_slot_wal_keep_size", strconv.Itoa(slotMiB)},
	})
}

// set changes settings that have other values.
func (s session) set(ctx context.Context, settings [][2]string) error {
	changed := false
	for _, one := range settings {
		var now string
		if err := s.QueryRow(ctx, "select setting from pg_settings where name = $1", one[0]).Scan(&now); err != nil {
			return fmt.Errorf("setting %s: %w", one[0], err)
		}
		if now == one[1] {
			continue
		}
		sql := "alter system set " + one[0] + " = '" + strings.ReplaceAll(one[1], "'", "''") + "'"
		if _, err := s.Exec(ctx, sql); err != nil {
			return fmt.Errorf("setting %s: %w", one[0], err)
		}
		changed = true
	}
	if !changed {
		return nil
	}
	_, err := s.Exec(ctx, "select pg_reload_conf()")
	return err
}
