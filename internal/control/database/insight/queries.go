package insight

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Insights returns what a server does, and has done since its statistics were reset.
func (s *Service) Insights(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	q api.InsightQuery,
) (api.DatabaseInsights, error) {
	q.Database, q.Limit = cmp.Or(q.Database, defaultDatabase), cmp.Or(q.Limit, 20)
	out := api.DatabaseInsights{Database: q.Database, At: time.Now().UTC()}
	server, err := s.server(ctx, p, id)
	if err != nil {
		return out, err
	}
	err = session(ctx, server, q.Database, func(ctx context.Context, conn *pgx.Conn) error {
		return read(ctx, conn, q, &out)
	})
	if err != nil {
		return out, err
	}
	lines, err := readLog(ctx, server.Guest(), slowLines)
	if err != nil {
		return out, err
	}
	out.SlowQueries = slowQueries(lines, q.Limit)
	return out, nil
}

func read(ctx context.Context, conn *pgx.Conn, q api.InsightQuery, out *api.DatabaseInsights) (err error) {
	if out.TopQueries, err = topQueries(ctx, conn, q); err != nil {
		return err
	}
	if err = sessions(ctx, conn, q.Limit, &out.Connections); err != nil {
		return err
	}
	if out.Locks, err = list[api.DatabaseLock](ctx, conn, selectLocks, q.Limit); err != nil {
		return err
	}
	if out.Bloat, err = list[api.DatabaseTableBloat](ctx, conn, selectBloat, q.Limit); err != nil {
		return err
	}
	c := &out.Cache
	return conn.QueryRow(ctx, selectCache).Scan(&c.HitRatio, &c.TableHitRatio, &c.IndexHitRatio, &c.SharedBuffers)
}

// list reads rows into structs, field by field.
func list[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if out == nil {
		out = []T{}
	}
	return out, err
}

// orders are the columns that queries are ordered by.
var orders = map[string]string{
	api.OrderTotalTime: "total_exec_time", api.OrderMeanTime: "mean_exec_time", api.OrderCalls: "calls",
	api.OrderRows: "rows", api.OrderReads: "shared_blks_read",
}

// topQueries reads pg_stat_statements; a database without the extension has no queries.
func topQueries(ctx context.Context, conn *pgx.Conn, q api.InsightQuery) ([]api.DatabaseQuery, error) {
	schemas, err := conn.Query(ctx, "SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace "+
		"WHERE extname = 'pg_stat_statements'")
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(schemas, pgx.RowTo[string])
	if err != nil || len(found) == 0 {
		return []api.DatabaseQuery{}, err
	}
	return list[api.DatabaseQuery](ctx, conn, `SELECT coalesce(s.queryid, 0)::text, left(s.query, 4096),
		coalesce(d.datname, ''), coalesce(r.rolname, ''), s.calls, s.rows, s.total_exec_time, s.mean_exec_time,
		s.max_exec_time,
		coalesce(s.shared_blks_hit / nullif(s.shared_blks_hit + s.shared_blks_read, 0)::float8, 1),
		s.shared_blks_read * current_setting('block_size')::bigint,
		s.temp_blks_written * current_setting('block_size')::bigint
		FROM `+pgx.Identifier{found[0], "pg_stat_statements"}.Sanitize()+` s
		LEFT JOIN pg_database d ON d.oid = s.dbid LEFT JOIN pg_roles r ON r.oid = s.userid
		ORDER BY s.`+orders[cmp.Or(q.Order, api.OrderTotalTime)]+` DESC, 1 LIMIT $1`, q.Limit)
}

// sessions reads the connections of clients, without the one that asks.
func sessions(ctx context.Context, conn *pgx.Conn, limit int, out *api.DatabaseSessions) error {
	err := conn.QueryRow(ctx, `SELECT current_setting('max_connections')::int, count(*)::int,
		(SELECT coalesce(jsonb_object_agg(state, n), '{}') FROM (
			SELECT coalesce(state, 'unknown') AS state, count(*) AS n
			FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() GROUP BY 1) s)
		FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).
		Scan(&out.Max, &out.Total, &out.ByState)
	if err != nil {
		return err
	}
	out.Sessions, err = list[api.DatabaseSession](ctx, conn, `SELECT pid, coalesce(datname, ''), coalesce(usename, ''),
		coalesce(application_name, ''), coalesce(state, ''),
		coalesce(greatest(extract(epoch FROM clock_timestamp() - state_change), 0), 0)::float8,
		concat_ws(': ', wait_event_type, wait_event), left(coalesce(query, ''), 1024)
		FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
		ORDER BY (state = 'idle'), state_change LIMIT $1`, limit)
	return err
}

const selectLocks = `SELECT l.pid, pg_blocking_pids(l.pid), l.locktype, l.mode,
	coalesce(CASE WHEN l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		THEN l.relation::regclass::text ELSE l.relation::text END, ''),
	coalesce(greatest(extract(epoch FROM clock_timestamp() - l.waitstart), 0), 0)::float8,
	left(coalesce(a.query, ''), 1024)
	FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	WHERE NOT l.granted ORDER BY l.waitstart NULLS LAST, l.pid LIMIT $1`

const selectCache = `SELECT
	(SELECT coalesce(blks_hit / nullif(blks_hit + blks_read, 0)::float8, 1) FROM pg_stat_database
		WHERE datname = current_database()),
	(SELECT coalesce(sum(heap_blks_hit) / nullif(sum(heap_blks_hit + heap_blks_read), 0), 1)::float8
		FROM pg_statio_user_tables),
	(SELECT coalesce(sum(idx_blks_hit) / nullif(sum(idx_blks_hit + idx_blks_read), 0), 1)::float8
		FROM pg_statio_user_tables),
	(SELECT setting::bigint * 8192 FROM pg_settings WHERE name = 'shared_buffers')`

// selectBloat takes no lock of a table. It compares the pages of each table with those that its rows would need: their
// average width by the statistics, 28 bytes of header and pointer each, and the fill factor of tables.
const selectBloat = `WITH t AS (
	SELECT c.oid, n.nspname, c.relname, c.relpages::bigint * 8192 AS size, c.relpages, c.reltuples,
		coalesce((SELECT sum((1 - null_frac) * avg_width) FROM pg_stats
			WHERE schemaname = n.nspname AND tablename = c.relname AND NOT inherited), 0) AS width,
		coalesce((SELECT option_value::float8 FROM pg_options_to_table(c.reloptions)
			WHERE option_name = 'fillfactor'), 100) / 100 AS fill
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
		AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\_toast%'
), e AS (
	SELECT t.*, CASE WHEN reltuples <= 0 OR width = 0 THEN 0 ELSE
		greatest(relpages - ceil(reltuples * (width + 28) / ((8192 - 24) * fill)), 0) * 8192 END AS bloat
	FROM t
)
SELECT e.nspname, e.relname, e.size, coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
	least(e.bloat, e.size)::bigint, (100 * least(e.bloat, e.size) / greatest(e.size, 1))::float8,
	greatest(s.last_vacuum, s.last_autovacuum), greatest(s.last_analyze, s.last_autoanalyze)
FROM e LEFT JOIN pg_stat_all_tables s ON s.relid = e.oid
ORDER BY 6 DESC, 3 DESC, 1, 2 LIMIT $1`

// slowStart is the first line of a log entry about a statement that took long. Its other lines begin with a tab, so no
// statement can imitate one.
var slowStart = regexp.MustCompile(`^(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) (?:UTC|GMT) )?[^\t]*?LOG:  ` +
	`duration: (\d{1,15}(?:\.\d{1,6})?) ms  (?:statement|(?:parse|bind|execute) [^:]{0,80}): (.*)$`)

// slowBytes bounds the text of a statement of the log.
const slowBytes = 4096

// slowQueries finds the statements of a log that took long, the newest first.
func slowQueries(lines []string, limit int) []api.DatabaseSlowQuery {
	out := []api.DatabaseSlowQuery{}
	var inside bool
	for _, line := range lines {
		if more, ok := strings.CutPrefix(line, "\t"); ok {
			if last := len(out) - 1; inside && len(out[last].Query) < slowBytes {
				out[last].Query = cut(out[last].Query + "\n" + more)
			}
			continue
		}
		m := slowStart.FindStringSubmatch(line)
		if inside = m != nil; !inside {
			continue
		}
		took, err := strconv.ParseFloat(m[2], 64)
		if inside = err == nil; !inside {
			continue
		}
		one := api.DatabaseSlowQuery{DurationMS: took, Query: cut(m[3])}
		if at, err := time.Parse("2006-01-02 15:04:05.999999", m[1]); err == nil {
			one.At = &at
		}
		out = append(out, one)
	}
	slices.Reverse(out)
	return out[:min(len(out), limit)]
}

// cut returns at most slowBytes of a text, of whole characters.
func cut(text string) string {
	if len(text) <= slowBytes {
		return text
	}
	return strings.ToValidUTF8(text[:slowBytes], "")
}
