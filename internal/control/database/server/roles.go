package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxRoles bounds the roles of a server that are read.
const maxRoles = 1000

// Role is a role that may log in with a password.
type Role struct {
	Name     string
	Verifier string // SCRAM
}

// quote returns a text as a literal of SQL. It has no backslashes or zero bytes.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// local makes commits of a session wait for nothing but the server's own disk.
const local = "SET synchronous_commit = local; "

// settingsOfAll are the settings of every role.
const settingsOfAll = "ALTER ROLE ALL SET log_min_duration_statement = '1s'; ALTER ROLE ALL SET track_io_timing = on"

// CreateOwner makes the role of a new database's owner, and gives it the prepared database.
//
// That gets another name, in one transaction with the role: a copy would take several times as long as all the rest of
// a create.
func CreateOwner(ctx context.Context, conn *pgx.Conn, role, verifier, database string) error {
	name, db := pgx.Identifier{role}.Sanitize(), pgx.Identifier{database}.Sanitize()
	_, err := conn.Exec(ctx, local+
		"CREATE ROLE "+name+" LOGIN CREATEDB CREATEROLE PASSWORD "+quote(verifier)+"; "+
		"GRANT pg_monitor, pg_signal_backend TO "+name+"; "+
		"ALTER DATABASE "+Prepared+" RENAME TO "+db+"; "+
		"ALTER DATABASE "+db+" IS_TEMPLATE false; "+
		"ALTER DATABASE "+db+" OWNER TO "+name+"; "+
		settingsOfAll)
	if err != nil {
		return fmt.Errorf("create the role %s and the database %s: %w", role, database, err)
	}
	return nil
}

// SetVerifier gives a role a password by its verifier.
func SetVerifier(ctx context.Context, conn *pgx.Conn, role, verifier string) error {
	_, err := conn.Exec(ctx, local+"ALTER ROLE "+pgx.Identifier{role}.Sanitize()+" LOGIN PASSWORD "+quote(verifier))
	if err != nil {
		return fmt.Errorf("set the password of the role %s: %w", role, err)
	}
	return nil
}

// selectRoles selects those who may log in through the edge: superusers may not.
const selectRoles = "SELECT rolname, rolpassword FROM pg_catalog.pg_authid WHERE rolcanlogin AND NOT rolsuper " +
	"AND rolpassword LIKE 'SCRAM-SHA-256$%' AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.now())"

// Roles reads the roles that may log in with a password.
func Roles(ctx context.Context, conn *pgx.Conn) ([]Role, error) {
	rows, err := conn.Query(ctx, fmt.Sprintf("%s ORDER BY rolname LIMIT %d", selectRoles, maxRoles))
	if err != nil {
		return nil, fmt.Errorf("read the roles: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Role])
	if err != nil {
		return nil, fmt.Errorf("read the roles: %w", err)
	}
	return all, nil
}

// FindRole reads one role. ok is false if it may not log in with a password.
func FindRole(ctx context.Context, conn *pgx.Conn, name string) (r Role, ok bool, err error) {
	if strings.ContainsRune(name, 0) {
		return Role{}, false, nil
	}
	err = conn.QueryRow(ctx, selectRoles+" AND rolname = "+quote(name)).Scan(&r.Name, &r.Verifier)
	if errors.Is(err, pgx.ErrNoRows) {
		return Role{}, false, nil
	}
	if err != nil {
		return Role{}, false, fmt.Errorf("read a role: %w", err)
	}
	return r, true, nil
}

// EndSessions ends all sessions of clients but that of conn.
func EndSessions(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity "+
		"WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()")
	if err != nil {
		return fmt.Errorf("end the sessions: %w", err)
	}
	return nil
}

// Checkpoint writes everything that is in memory alone to the disk.
func Checkpoint(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
