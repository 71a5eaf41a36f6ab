package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// maxDatabases bounds the databases of a server that are copied.
const maxDatabases = 1000

// selectCopied selects the databases of users.
const selectCopied = "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn " +
	"AND datname NOT IN ('postgres', 'template0', 'template1', '" + Prepared + "') ORDER BY oid LIMIT "

// What Copy copies of a server.
const (
	Schema Part = iota // roles and databases without rows of tables
	All                // with their rows
)

// Part is what Copy copies of a server.
type Part int

// Copy makes the roles and the databases of one server in a new one, whose version may be newer.
//
// The programs of the guests do it, and what they print goes through this process. Large objects, values of sequences
// and content of materialized views are rows, too. After an error the new server has a part of them.
func Copy(ctx context.Context, from, to Guest, what Part) error {
	var names []string
	err := Use(ctx, from, Maintained, func(conn *pgx.Conn) (err error) {
		names, err = Databases(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	var roles map[string]bool
	err = Use(ctx, to, Maintained, func(conn *pgx.Conn) (err error) {
		roles, err = prepareCopy(ctx, conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the new server: %w", err)
	}
	err = pipe(ctx, from, []string{"pg_dumpall", "--roles-only"}, to, filter{math.MaxInt, func(line string) bool {
		name, is := strings.CutPrefix(line, "CREATE ROLE ")
		return !is || !roles[strings.TrimSuffix(name, ";")]
	}})
	if err != nil {
		return fmt.Errorf("copy the roles: %w", err)
	}
	for _, name := range names {
		dump := []string{
			"pg_dump", "--create", "--lock-wait-timeout=30s", "--dbname=dbname=" + connectionValue(name),
		}
		if what == Schema {
			dump = append(dump, "--schema-only")
		}
		if err := pipe(ctx, from, dump, to, filter{headLines, known}); err != nil {
			return fmt.Errorf("copy database %.64q: %w", name, err)
		}
		if what == Schema {
			continue
		}
		err := Use(ctx, to, name, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, local+"ANALYZE") // a dump has no statistics, and queries are slow without
			return err
		})
		if err != nil {
			return fmt.Errorf("analyze database %.64q: %w", name, err)
		}
	}
	return nil
}

// Databases returns the names of the databases of users.
func Databases(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, selectCopied+fmt.Sprint(maxDatabases+1))
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	if len(names) > maxDatabases {
		return nil, fmt.Errorf("the server has more than %d databases", maxDatabases)
	}
	return names, nil
}

// prepareCopy removes the prepared database of a new server, and returns the names of its roles as SQL has them.
func prepareCopy(ctx context.Context, conn *pgx.Conn) (map[string]bool, error) {
	for _, statement := range []string{
		local + "ALTER DATABASE " + Prepared + " IS_TEMPLATE false",
		"DROP DATABASE " + Prepared + " WITH (FORCE)",
		local + settingsOfAll,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT pg_catalog.quote_ident(rolname) FROM pg_catalog.pg_roles LIMIT %d",
		maxRoles))
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	roles := map[string]bool{}
	for _, name := range names {
		roles[name] = true
	}
	return roles, err
}

// known reports whether servers of every version know what a line of a dump sets. The program that dumps may be newer
// than the server, and this setting is one of version 17.
func known(line string) bool { return line != "SET transaction_timeout = 0;" }

// connectionValue returns a text as a value of a connection string.
func connectionValue(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}

// headLines is how many lines at the beginning of the dump of a database set what its session needs, at most.
const headLines = 100

// filter chooses among the first lines of a dump.
type filter struct {
	lines int
	keep  func(line string) bool
}

// pipe runs a program that dumps in one guest, and psql with its output in another.
func pipe(ctx context.Context, from Guest, dump []string, to Guest, keep filter) error {
	r, w := io.Pipe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := runDump(ctx, from, dump, w)
		_ = w.CloseWithError(err) // it returns none
		return err
	})
	g.Go(func() (err error) {
		defer func() { _ = r.CloseWithError(err) }() // ends the dump, whose error follows from this one
		return load(ctx, to, r, keep)
	})
	return g.Wait()
}

// client returns the arguments of a client of the server in its guest.
func client(argv ...string) guestapi.ProcessSpec {
	all := append(argv[:1:1], "--host="+path.Dir(Socket), "--username="+Superuser)
	return guestapi.ProcessSpec{Argv: append(all, argv[1:]...), User: "root", Dir: "/"}
}

// maxComplaint bounds what is kept of the errors that a program prints.
const maxComplaint = 1024

func runDump(ctx context.Context, g Guest, dump []string, w io.Writer) error {
	complaint := guestexec.NewBuffer(guestexec.Limit{Bytes: maxComplaint, Keep: guestexec.Tail})
	st, err := guestexec.Stream(ctx, g, guestexec.Command{Spec: client(dump...)}, guestexec.Sink{
		Output: func(e guestapi.Event) error {
			if e.Stream == guestapi.StreamStderr {
				complaint.Add(e.Data)
				return nil
			}
			_, err := w.Write(e.Data)
			return err
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", dump[0], err)
	}
	return exitError(dump[0], st.Exit, complaint.Output().Data)
}

// load runs the statements of a dump. The first that fails ends it.
func load(ctx context.Context, g Guest, dump io.Reader, keep filter) error {
	tail := guestexec.Limit{Bytes: maxComplaint, Keep: guestexec.Tail}
	var fed error
	spec := client("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname="+Maintained)
	// Changes of a copy that is not complete are lost with it: they wait for nothing.
	spec.Env = map[string]string{"PGOPTIONS": "-c synchronous_commit=off"}
	out, err := guestexec.Run(ctx, g, guestexec.Command{Spec: spec,
		Input: func(_ context.Context, w io.Writer) error {
			fed = feed(w, dump, keep)
			return fed
		},
	}, guestexec.Limits{Stdout: guestexec.Limit{Bytes: 1, Keep: guestexec.Tail}, Stderr: tail})
	if err != nil {
		return fmt.Errorf("psql: %w", err)
	}
	if err := exitError("psql", out.Exit, out.Stderr.Data); err != nil {
		return err
	}
	return errors.Join(fed, out.InputErr)
}

// feed copies a dump, without the lines of its head that are not kept.
func feed(w io.Writer, dump io.Reader, keep filter) error {
	in := bufio.NewReaderSize(dump, 64<<10)
	for whole, n := true, 0; n < keep.lines; {
		line, err := in.ReadSlice('\n')
		ends := err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && err != io.EOF {
			return err
		}
		if len(line) > 0 && (!whole || !ends || keep.keep(string(bytes.TrimSuffix(line, []byte{'\n'})))) {
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if whole = ends; ends {
			n++
		}
	}
	_, err := io.Copy(w, in)
	return err
}

// exitError returns the error of a program that did not succeed.
func exitError(program string, exit guestapi.Exit, complaint []byte) error {
	if exit.Code == 0 && exit.Signal == 0 && exit.Error == "" {
		return nil
	}
	return fmt.Errorf("%s: exit code %d: %s%s", program, exit.Code, exit.Error,
		guestapi.Printable(strings.TrimSpace(string(complaint))))
}
