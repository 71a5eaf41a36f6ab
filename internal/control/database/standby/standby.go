// Package standby makes the server of a guest follow the server of another guest by streaming replication.
//
// Guests cannot reach each other: the host carries the stream. Seed copies the data directory of the primary into a
// guest and starts its server as a standby, and Carry carries a connection of the standby to the primary's socket. The
// standby keeps its place by a replication slot of the primary, so that a connection that breaks is only made again.
package standby

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

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Position is a position of the log.
type Position = wal.LSN

const (
	// seedIdle is how long a primary may send nothing of a copy; a checkpoint comes before its first byte.
	seedIdle = 5 * time.Minute
	// poll is the time between looks at a server that starts or is promoted.
	poll = 100 * time.Millisecond
	// pause is the time between attempts to connect a standby.
	pause = 500 * time.Millisecond
)

// Pair is a standby and the primary that it follows.
type Pair struct {
	Slot    string                                  // of the primary, for this standby alone
	Primary func(context.Context) (net.Conn, error) // connects to the socket of the server that takes writes
	Standby guestapi.Guest                          // that the standby runs in
}

// Replication implements what databases need of this package.
type Replication struct{}

// Seed makes a server a standby, with the content of its primary in place of its own.
//
// It returns when the standby accepts connections, and may be repeated.
func (Replication) Seed(ctx context.Context, p Pair) error {
	conn, err := replication.Dial(ctx, replication.Config{
		Dial: p.Primary, User: server.Superuser, Application: p.Slot,
	})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the copy has ended
	if err := newSlot(conn, p.Slot); err != nil {
		return err
	}
	err = backup.GuestServer{Guest: p.Standby}.Load(ctx, func(w io.Writer) error {
		_, err := conn.BaseBackup("pandastack standby", seedIdle, replication.BackupSink{
			Begin:   func(wal.LSN, wal.Timeline) error { return nil },
			Archive: func(data []byte) error { _, err := w.Write(data); return err },
		})
		return err
	}, p.configure())
	if err != nil {
		return fmt.Errorf("copy the primary: %w", err)
	}
	following, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with following; Seed waits for it
		defer close(done)
		p.carryOn(following)
	}()
	defer func() { stop(); <-done }()
	return waitReady(ctx, p)
}

// carryOn carries the connections of the standby until ctx ends.
func (p Pair) carryOn(ctx context.Context) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = Replication{}.Carry(ctx, p) // the standby says in its log what is wrong
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// newSlot makes a slot that keeps the log from now on, in place of one of an earlier attempt.
func newSlot(conn *replication.Conn, name string) error {
	has, err := conn.Slot(name)
	if err == nil && has.Exists {
		err = conn.DropSlot(name)
	}
	if err != nil {
		return err
	}
	return conn.CreateSlot(name)
}

// configure returns a script that makes the data directory that it runs in that of a standby. Settings of an earlier
// recovery of the primary's server may be in it.
func (p Pair) configure() string {
	return `touch standby.signal
rm -f recovery.signal
cat >> postgresql.auto.conf <<'S'
primary_conninfo = 'host=` + socketDir + ` user=` + server.Superuser + ` application_name=` + p.Slot + `'
primary_slot_name = '` + p.Slot + `'
wal_retrieve_retry_interval = '500ms'
hot_standby = 'on'
restore_command = ''
recovery_target = ''
recovery_target_lsn = ''
recovery_target_name = ''
recovery_target_time = ''
recovery_target_xid = ''
recovery_target_timeline = 'latest'
S
`
}

// waitReady waits until a standby accepts connections.
func waitReady(ctx context.Context, p Pair) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := server.Use(ctx, p.Standby, server.Maintained, func(conn *pgx.Conn) error {
			_, err := Read(ctx, conn)
			return err
		})
		if err == nil {
			return nil
		}
		if ended := (backup.GuestServer{Guest: p.Standby}).Check(ctx); ended != nil {
			return fmt.Errorf("the standby has ended: %w", ended)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the standby does not accept connections: %w: %w", context.Cause(ctx), err)
		}
	}
}

// Status is the state of a standby.
type Status struct {
	Recovering bool // it takes no writes
	Streaming  bool // it receives the log
	Received   Position
	Replayed   Position
	Behind     time.Duration // since the last transaction that it has was committed; 0 if it has seen none
}

// Position returns the end of the log that the standby has.
func (s Status) Position() Position { return max(s.Received, s.Replayed) }

const readStatus = "SELECT pg_catalog.pg_is_in_recovery()::text, " +
	"(EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver WHERE status = 'streaming'))::text, " +
	"coalesce(pg_catalog.pg_last_wal_receive_lsn(), '0/0')::text, " +
	"coalesce(pg_catalog.pg_last_wal_replay_lsn(), '0/0')::text, " +
	"coalesce(1000 * extract(epoch FROM pg_catalog.clock_timestamp() - " +
	"pg_catalog.pg_last_xact_replay_timestamp()), 0)::bigint::text"

// maxBehind bounds what a server says of the age of a transaction, in milliseconds.
const maxBehind = 1000 * 365 * 24 * 3600 * 1000

// Read reads the state of a server that may be a standby.
func Read(ctx context.Context, conn *pgx.Conn) (s Status, err error) {
	var recovering, streaming, received, replayed, age string
	err = conn.QueryRow(ctx, readStatus).Scan(&recovering, &streaming, &received, &replayed, &age)
	if err != nil {
		return s, fmt.Errorf("read the state of the replication: %w", err)
	}
	s.Recovering, s.Streaming = recovering == "true", streaming == "true"
	millis, err := strconv.ParseInt(age, 10, 64)
	s.Behind = time.Duration(min(max(0, millis), maxBehind)) * time.Millisecond
	var err1, err2 error
	s.Received, err1 = wal.ParseLSN(received)
	s.Replayed, err2 = wal.ParseLSN(replayed)
	return s, errors.Join(err, err1, err2)
}

// End reads the end of the log of a server that takes writes.
func End(ctx context.Context, conn *pgx.Conn) (Position, error) {
	var text string
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_lsn()::text").Scan(&text); err != nil {
		return 0, fmt.Errorf("read the end of the log: %w", err)
	}
	return wal.ParseLSN(text)
}

// Promote makes a standby take writes, when it has applied all of the log that it has. One that does already is left
// as it is.
func Promote(ctx context.Context, conn *pgx.Conn) error {
	s, err := Read(ctx, conn)
	if err != nil {
		return err
	}
	if s.Recovering {
		if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_promote(false)"); err != nil {
			return fmt.Errorf("promote the standby: %w", err)
		}
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for s.Recovering {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the standby does not become a primary: %w", context.Cause(ctx))
		}
		if s, err = Read(ctx, conn); err != nil {
			return err
		}
	}
	for _, name := range []string{"primary_conninfo", "primary_slot_name", "wal_retrieve_retry_interval"} {
		if _, err := conn.Exec(ctx, "ALTER SYSTEM RESET "+name); err != nil {
			return fmt.Errorf("reset %s: %w", name, err)
		}
	}
	return nil
}

// KeepSlots makes the slots of a primary whose names begin with prefix those that are wanted.
//
// Connections of slots that are not wanted end. lost has those that the server has given up, because they kept too much
// of the log.
func KeepSlots(ctx context.Context, conn *pgx.Conn, prefix string, wanted []string) (lost []string, err error) {
	rows, err := conn.Query(ctx, "SELECT slot_name::text, coalesce(wal_status, '')::text "+
		"FROM pg_catalog.pg_replication_slots WHERE pg_catalog.starts_with(slot_name, "+quote(prefix)+") LIMIT 64")
	if err != nil {
		return nil, fmt.Errorf("read the slots: %w", err)
	}
	type slot struct{ Name, Status string }
	slots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return nil, fmt.Errorf("read the slots: %w", err)
	}
	for _, one := range slots {
		keep := false
		for _, name := range wanted {
			keep = keep || name == one.Name
		}
		switch {
		case keep && one.Status == "lost":
			lost = append(lost, one.Name)
		case !keep:
			_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend(active_pid, 5000) "+
				"FROM pg_catalog.pg_replication_slots WHERE slot_name = "+quote(one.Name)+" AND active; "+
				"SELECT pg_catalog.pg_drop_replication_slot("+quote(one.Name)+")")
			if err != nil {
				return lost, fmt.Errorf("remove the slot of a standby: %w", err)
			}
		}
	}
	return lost, nil
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
