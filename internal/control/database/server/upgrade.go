package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// UpgradeTemplate is the template of upgrades whose caller names none.
const UpgradeTemplate = "postgres-17"

// KeepSeconds is how long what a database had is kept if the caller does not say.
const KeepSeconds = 7 * 24 * 3600

// maxObstacles bounds what is read of each kind, and the reasons.
const maxObstacles = 20

// obstacles selects what a dump of a server lacks, as a reason and a name.
const obstacles = "(SELECT 'it has a prepared transaction, which a dump lacks: commit or roll back ' AS reason, " +
	"gid AS name FROM pg_catalog.pg_prepared_xacts LIMIT %[1]d) UNION ALL " +
	"(SELECT 'it has a logical replication slot, which a dump lacks: drop ', slot_name::text " +
	"FROM pg_catalog.pg_replication_slots WHERE slot_type = 'logical' LIMIT %[1]d) UNION ALL " +
	"(SELECT 'it has a tablespace, which a dump lacks: drop ', spcname::text " +
	"FROM pg_catalog.pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global') LIMIT %[1]d) UNION ALL " +
	"(SELECT 'it has a database without connections, which cannot be dumped: drop or allow ', datname::text " +
	"FROM pg_catalog.pg_database WHERE NOT datallowconn AND datname <> 'template0' LIMIT %[1]d)"

// CheckUpgrade returns why a server cannot be upgraded to one that a template has; none if it can.
func CheckUpgrade(ctx context.Context, g Guest, from, to Facts) (reasons []string, err error) {
	was, is := major(from.Version), major(to.Version)
	if is <= was {
		return []string{fmt.Sprintf("it has PostgreSQL %s and the template %s: an upgrade is to a newer major version",
			from.Version, to.Version)}, nil
	}
	var names []string
	err = Use(ctx, g, Maintained, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, fmt.Sprintf(obstacles, maxObstacles))
		if err != nil {
			return fmt.Errorf("look for what cannot be dumped: %w", err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Reason, Name string }])
		if err != nil {
			return fmt.Errorf("look for what cannot be dumped: %w", err)
		}
		for _, f := range found {
			reasons = append(reasons, fmt.Sprintf("%s%.64q", f.Reason, f.Name))
		}
		names, err = Databases(ctx, conn)
		return err
	})
	for i := 0; err == nil && i < len(names) && len(reasons) < maxObstacles; i++ {
		var missing []string
		missing, err = lacks(ctx, g, names[i], to)
		for _, e := range missing {
			reasons = append(reasons, fmt.Sprintf("the template has no extension %.64q, which database %.64q has: "+
				"drop it there, or use another template", e, names[i]))
		}
	}
	if err != nil {
		return nil, err
	}
	return reasons[:min(len(reasons), maxObstacles)], nil
}

// lacks returns the extensions of a database that a template does not have.
func lacks(ctx context.Context, g Guest, database string, to Facts) (missing []string, err error) {
	err = Use(ctx, g, database, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT extname FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql' "+
			"ORDER BY extname LIMIT 1000")
		if err == nil {
			missing, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			return fmt.Errorf("read the extensions of database %.64q: %w", database, err)
		}
		return nil
	})
	return slices.DeleteFunc(missing, to.Has), err
}

// major returns the major version of a server; 0 if the text has none.
func major(version string) int {
	digits, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
