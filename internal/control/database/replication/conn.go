// Package replication is a client of PostgreSQL's streaming replication protocol.
//
// It owns the connection and the meaning of its messages. It does not know where the log or a base backup is kept.
//
// The server runs in a guest and is not trusted: the size of messages and the number of rows are bounded, and all text
// is parsed. A connection ends with the context that opened it; after an error of any method it is only good for
// Close. Methods of a Conn are for one goroutine.
package replication

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	// maxMessage bounds a message of the server, which sends 128 KiB of the log at most in one.
	maxMessage = wal.MaxHistoryBytes + 4096
	// maxRows bounds the rows of a command's result.
	maxRows = 64
	// readBuffer is what one read of the socket may take.
	readBuffer = 256 << 10
)

// Config says how to reach a server. Dial and User are required.
type Config struct {
	// Dial opens a byte stream to the server's socket.
	Dial func(ctx context.Context) (net.Conn, error)
	User string // a role with the attribute REPLICATION
	// Password is for SCRAM-SHA-256; no other method of authentication is accepted. Without one the server must accept
	// the connection as it is, as by peer authentication.
	Password string
	// Application is the application_name, which synchronous_standby_names can list.
	Application string
	// Limit bounds connecting and every command but the streams; default 30 s.
	Limit time.Duration
}

// Conn is a connection in replication mode.
type Conn struct {
	net   *bufferedConn
	front *pgproto3.Frontend
	limit time.Duration
	ctx   context.Context // of Dial: the connection ends with it
	stop  func() bool     // releases ctx
}

// bufferedConn reads as much as there is, so that Buffered knows of messages that have arrived.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

// Read implements io.Reader.
func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Dial connects and authenticates. When ctx ends, so does the connection.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	limit := cfg.Limit
	if limit <= 0 {
		limit = 30 * time.Second
	}
	config, err := pgconn.ParseConfig(
		"host=localhost port=5432 user=replication dbname=replication sslmode=disable passfile=/dev/null",
	)
	if err != nil {
		return nil, fmt.Errorf("replication connection: %w", err)
	}
	config.User, config.Password, config.Fallbacks = cfg.User, cfg.Password, nil
	config.RuntimeParams = map[string]string{"replication": "true", "application_name": cfg.Application}
	config.RequireAuth = "scram-sha-256"
	if cfg.Password == "" {
		config.RequireAuth = "none"
	}
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"localhost"}, nil }
	c := &Conn{limit: limit, ctx: ctx}
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		raw, err := cfg.Dial(ctx)
		if err != nil {
			return nil, err
		}
		c.net = &bufferedConn{raw, bufio.NewReaderSize(raw, readBuffer)}
		return c.net, nil
	}
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		front := pgproto3.NewFrontend(r, w)
		front.SetMaxBodyLen(maxMessage)
		return front
	}
	dialCtx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the server did not respond in time"))
	defer cancel()
	pg, err := pgconn.ConnectConfig(dialCtx, config)
	if err != nil {
		return nil, fmt.Errorf("replication connection: %w", err)
	}
	taken, err := pg.Hijack()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("replication connection: %w", err), pg.Close(dialCtx))
	}
	c.front = taken.Frontend
	c.stop = context.AfterFunc(ctx, func() { _ = c.net.Close() }) // the reader reports it
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.stop()
	return c.net.Close()
}

// watch closes the connection if the returned function is not called within the limit.
func (c *Conn) watch() (done func()) {
	timer := time.AfterFunc(c.limit, func() { _ = c.net.Close() }) // the reader reports it
	return func() { timer.Stop() }
}

func (c *Conn) send(sql string) error {
	c.front.Send(&pgproto3.Query{String: sql})
	return c.wrap(c.front.Flush())
}

// wrap adds the reason why the connection was closed from this side.
func (c *Conn) wrap(err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(c.ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("replication connection: %w", err)
}

// receive returns the next message that is not a notice or a parameter. An error of the server is an error.
func (c *Conn) receive() (pgproto3.BackendMessage, error) {
	for {
		message, err := c.front.Receive()
		if err != nil {
			return nil, c.wrap(err)
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return nil, pgconn.ErrorResponseToPgError(m)
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus, *pgproto3.NotificationResponse:
			continue
		}
		return message, nil
	}
}

// rows reads results until ReadyForQuery. The values are text; NULL is nil.
func (c *Conn) rows() ([][][]byte, error) {
	var all [][][]byte
	for {
		message, err := c.receive()
		if err != nil {
			return nil, err
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			if len(all) == maxRows {
				return nil, fmt.Errorf("the server sent more than %d rows", maxRows)
			}
			row := make([][]byte, len(m.Values))
			for i, v := range m.Values {
				row[i] = slices.Clone(v)
			}
			all = append(all, row)
		case *pgproto3.RowDescription, *pgproto3.CommandComplete, *pgproto3.EmptyQueryResponse:
		case *pgproto3.ReadyForQuery:
			return all, nil
		default:
			return nil, fmt.Errorf("unexpected message %T of the server", message)
		}
	}
}

// command runs a command that returns rows. After an error of the server the connection can be used.
func (c *Conn) command(sql string, columns int) ([][][]byte, error) {
	defer c.watch()()
	if err := c.send(sql); err != nil {
		return nil, err
	}
	rows, err := c.rows()
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		if _, err := c.rows(); err != nil { // up to ReadyForQuery
			return nil, errors.Join(refused, err)
		}
		return nil, refused
	}
	for _, row := range rows {
		if len(row) < columns {
			return nil, fmt.Errorf("%s: a row has %d columns, want %d", firstWord(sql), len(row), columns)
		}
	}
	return rows, err
}

func firstWord(sql string) string {
	word, _, _ := strings.Cut(sql, " ")
	return word
}

// one is command for exactly one row.
func (c *Conn) one(sql string, columns int) ([][]byte, error) {
	rows, err := c.command(sql, columns)
	if err == nil && len(rows) != 1 {
		err = fmt.Errorf("%s: %d rows, want 1", firstWord(sql), len(rows))
	}
	if err != nil {
		return nil, err
	}
	return rows[0], nil
}

// System is what a server says of itself.
type System struct {
	ID       uint64       `json:"id,string"` // identifies the cluster and its copies
	Timeline wal.Timeline `json:"timeline"`
	Flushed  wal.LSN      `json:"flushed"` // end of the log on the server's disk
}

// Identify returns the identity and the position of the server.
func (c *Conn) Identify() (System, error) {
	row, err := c.one("IDENTIFY_SYSTEM", 3)
	if err != nil {
		return System{}, err
	}
	id, err1 := strconv.ParseUint(string(row[0]), 10, 64)
	timeline, err2 := parseTimeline(row[1])
	at, err3 := wal.ParseLSN(string(row[2]))
	if err := errors.Join(err1, err2, err3); err != nil {
		return System{}, fmt.Errorf("IDENTIFY_SYSTEM: %w", err)
	}
	return System{id, timeline, at}, nil
}

func parseTimeline(text []byte) (wal.Timeline, error) {
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err == nil && n == 0 {
		err = errors.New("timeline 0")
	}
	return wal.Timeline(n), err
}

// CheckSegments returns an error unless the server's segments have the size that this program knows.
func (c *Conn) CheckSegments() error {
	row, err := c.one("SHOW wal_segment_size", 1)
	if err != nil {
		return err
	}
	if got := string(row[0]); got != "16MB" {
		return fmt.Errorf("wal_segment_size of the server is %.20q; initialise the cluster with 16MB", got)
	}
	return nil
}

// Slot is the state of a physical replication slot.
type Slot struct {
	Exists bool
	// Restart is the position from which the server keeps the log for the slot. It is 0 if the slot is lost: the
	// server has given it up because it kept more than max_slot_wal_keep_size.
	Restart  wal.LSN
	Timeline wal.Timeline
}

// Lost reports whether the server has given the slot up.
func (s Slot) Lost() bool { return s.Exists && s.Restart == 0 }

// CheckSlotName returns an error unless a name can be that of a slot.
func CheckSlotName(name string) error {
	if name == "" || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return fmt.Errorf("invalid slot name %.80q: want 1 to 63 lower-case letters, digits and underscores", name)
	}
	return nil
}

// Slot returns the state of a slot.
func (c *Conn) Slot(name string) (Slot, error) {
	if err := CheckSlotName(name); err != nil {
		return Slot{}, err
	}
	row, err := c.one("READ_REPLICATION_SLOT "+name, 3)
	if err != nil || row[0] == nil {
		return Slot{}, err
	}
	if string(row[0]) != "physical" {
		return Slot{}, fmt.Errorf("replication slot %s is %.20q, want a physical one", name, row[0])
	}
	if row[1] == nil {
		return Slot{Exists: true}, nil
	}
	restart, err1 := wal.ParseLSN(string(row[1]))
	timeline, err2 := parseTimeline(row[2])
	if err := errors.Join(err1, err2); err != nil {
		return Slot{}, fmt.Errorf("READ_REPLICATION_SLOT: %w", err)
	}
	return Slot{true, restart, timeline}, nil
}

// CreateSlot makes a physical slot that keeps the log from now on.
func (c *Conn) CreateSlot(name string) error {
	if err := CheckSlotName(name); err != nil {
		return err
	}
	_, err := c.command("CREATE_REPLICATION_SLOT "+name+" PHYSICAL (RESERVE_WAL)", 0)
	return err
}

// DropSlot removes a slot that no connection uses.
func (c *Conn) DropSlot(name string) error {
	if err := CheckSlotName(name); err != nil {
		return err
	}
	_, err := c.command("DROP_REPLICATION_SLOT "+name, 0)
	return err
}

// History returns the history file of a timeline. Timeline 1 has none.
func (c *Conn) History(t wal.Timeline) ([]byte, error) {
	if t == 1 {
		return nil, nil
	}
	row, err := c.one(fmt.Sprintf("TIMELINE_HISTORY %d", uint32(t)), 2)
	if err != nil {
		return nil, err
	}
	if _, err := wal.ParseHistory(t, row[1]); err != nil {
		return nil, err
	}
	return row[1], nil
}

// IsMissing reports whether a server refused because it no longer has the log that was asked for.
func IsMissing(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	// undefined_file: a segment; object_not_in_prerequisite_state: an invalidated slot
	return ok && (refused.Code == "58P01" || refused.Code == "55000")
}

// IsBusy reports whether a server refused because another connection uses the slot.
func IsBusy(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.Code == "55006"
}
