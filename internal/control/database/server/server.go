// Package server speaks to the PostgreSQL server that a template has running in its guests.
//
// It comes in as the superuser postgres by the server's Unix socket, which the template's authentication rules let a
// peer inside of the guest do. Guests are hostile: what a server returns is bounded and never trusted beyond its own
// database.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// What a template with a PostgreSQL cluster has.
const (
	Socket     = "/run/postgresql/.s.PGSQL.5432"
	Port       = 5432
	PoolerPort = 6432
	Disk       = "data" // the data disk that the cluster is on
	Superuser  = "postgres"
	Prepared   = "prepared" // the database that has the extensions; it becomes that of the owner
	Maintained = "postgres" // the database that administration connects to

	factsFile = "/etc/pandastack/postgres.json"
	program   = "/usr/local/lib/pandastack/postgres.sh"
)

// maxFacts bounds the description of a server, in bytes.
const maxFacts = 64 << 10

// dialTimeout bounds one attempt to connect.
const dialTimeout = 15 * time.Second

// Guest is what the package needs of a guest.
type Guest interface {
	guestapi.FileSystem
	guestapi.ProcessManager
	DialSocket(ctx context.Context, path string) (net.Conn, error)
}

// Connect logs into a database of the server as its superuser. Statements use the simple protocol.
func Connect(ctx context.Context, g Guest, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("host=127.0.0.1 sslmode=disable")
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database = "localhost", Port, Superuser, "", database
	cfg.Fallbacks, cfg.ConnectTimeout = nil, dialTimeout
	cfg.RuntimeParams = map[string]string{
		"application_name": "pandastack", "default_transaction_read_only": "off",
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return g.DialSocket(ctx, Socket) }
	return pgx.ConnectConfig(ctx, cfg)
}

// Use connects to a database, calls f, and closes the connection.
func Use(ctx context.Context, g Guest, database string, f func(*pgx.Conn) error) error {
	conn, err := Connect(ctx, g, database)
	if err != nil {
		return err
	}
	defer Close(ctx, conn)
	return f(conn)
}

// Close closes a connection, within a second.
func Close(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // what it was used for has ended
}

// Facts is what a template says of its server.
type Facts struct {
	Variant    string            `json:"variant"`
	Version    string            `json:"version"`
	Collation  string            `json:"collation_version"`
	Data       string            `json:"data"`
	Extensions map[string]string `json:"extensions"` // versions by name: those of the prepared database
	Others     []string          `json:"others"`     // extensions that CREATE EXTENSION knows, too
}

// Has reports whether the server has an extension.
func (f Facts) Has(extension string) bool {
	if _, ok := f.Extensions[extension]; ok {
		return true
	}
	for _, o := range f.Others {
		if o == extension {
			return true
		}
	}
	return false
}

// ReadFacts reads what a template says of its server.
func ReadFacts(ctx context.Context, g Guest) (Facts, error) {
	_, r, err := g.Read(ctx, factsFile, "root", 0, maxFacts)
	if errors.Is(err, guestapi.ErrNotFound) {
		return Facts{}, fmt.Errorf("the template has no PostgreSQL server: it lacks %s", factsFile)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("read %s: %w", factsFile, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxFacts))
	if err != nil {
		return Facts{}, fmt.Errorf("read %s: %w", factsFile, err)
	}
	return ParseFacts(data)
}

// maxText bounds the texts of a description.
const maxText = 128

// ParseFacts parses the description of a server.
func ParseFacts(data []byte) (Facts, error) {
	var f Facts
	if err := json.Unmarshal(data, &f); err != nil {
		return Facts{}, fmt.Errorf("%s: %w", factsFile, err)
	}
	texts := append([]string{f.Variant, f.Version, f.Collation, f.Data}, f.Others...)
	for name, version := range f.Extensions {
		texts = append(texts, name, version)
	}
	for _, text := range texts {
		if len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			return Facts{}, fmt.Errorf("%s: %.40q is too long or has control characters", factsFile, text)
		}
	}
	if f.Version == "" {
		return Facts{}, fmt.Errorf("%s has no version", factsFile)
	}
	return f, nil
}
