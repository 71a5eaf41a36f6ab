// Package servertest has a PostgreSQL server that knows a handful of statements, for tests.
//
// It keeps its roles and databases in a file of the guest, so that they are copied and lost as those of a real one.
package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// File is where the server keeps what it has.
const File = "/var/lib/postgresql/fake.json"

// State is what a server has.
type State struct {
	Roles     map[string]string `json:"roles"` // verifiers by name
	Databases []string          `json:"databases"`
	Rows      []string          `json:"rows"`    // that "INSERT ..." statements have added
	Standby   bool              `json:"standby"` // it takes no writes
}

// Fake is a fake server.
type Fake struct {
	mu   sync.Mutex
	fail map[string]error // by the beginning of the statement
	seen []string
	hook func(statement string, done bool) error

	used     int64 // bytes of its storage
	readOnly bool
	cut      bool // standbys receive nothing

	extensions []string // of every database
	obstacles  []string // reasons and names of what a dump lacks
}

// New returns a server without faults.
func New() *Fake { return &Fake{fail: map[string]error{}} }

// Fail makes the next statement that begins with a text fail, before it has an effect.
func (f *Fake) Fail(beginning string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[beginning] = err
}

// SetHook sets a function that is called with each statement before and after its effect.
//
// The client gets its error. nil removes the function.
func (f *Fake) SetHook(hook func(statement string, done bool) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// SetUsed sets how much of its storage the server uses, in bytes.
func (f *Fake) SetUsed(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used = bytes
}

// Cut makes standbys receive nothing, or ends that.
func (f *Fake) Cut(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
}

// SetExtensions sets the extensions of every database, and what the server has that a dump lacks: reasons and names.
func (f *Fake) SetExtensions(extensions []string, obstacles ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.extensions, f.obstacles = extensions, obstacles
}

// ReadOnly reports whether the server is read-only.
func (f *Fake) ReadOnly() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readOnly
}

// Statements returns the statements so far.
func (f *Fake) Statements() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.seen...)
}

// Load reads what the server of a guest has.
func Load(ctx context.Context, files guestapi.FileSystem) (State, error) {
	s := State{Roles: map[string]string{}}
	_, r, err := files.Read(ctx, File, "root", 0, -1)
	if errors.Is(err, guestapi.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// Save writes what the server of a guest has.
func Save(ctx context.Context, files guestapi.FileSystem, s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = files.Write(ctx, File, guestapi.WriteOptions{Size: int64(len(data))}, bytes.NewReader(data))
	return err
}

// Serve is a hosttest.SocketServer.
func (f *Fake) Serve(ctx context.Context, files guestapi.FileSystem, c net.Conn) {
	backend := pgproto3.NewBackend(c, c)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		backend.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		m, err := backend.Receive()
		if err != nil {
			return
		}
		q, ok := m.(*pgproto3.Query)
		if !ok {
			return
		}
		f.run(ctx, files, backend, q.String)
	}
}

func (f *Fake) run(ctx context.Context, files guestapi.FileSystem, b *pgproto3.Backend, sql string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, sql)
	sql = strings.TrimPrefix(sql, "SET synchronous_commit = local; ")
	for beginning, err := range f.fail {
		if strings.HasPrefix(sql, beginning) {
			delete(f.fail, beginning)
			b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX000", Message: err.Error()})
			return
		}
	}
	call := func(done bool) error {
		if f.hook == nil {
			return nil
		}
		return f.hook(sql, done)
	}
	err := call(false)
	if err == nil {
		err = f.apply(ctx, files, b, sql)
	}
	if err == nil {
		err = call(true)
	}
	if err != nil {
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42000", Message: err.Error()})
	}
}

var (
	roleStatement     = regexp.MustCompile(`^(CREATE|ALTER) ROLE "([^"]+)" .*PASSWORD '([^']+)'`)
	databaseStatement = regexp.MustCompile(`RENAME TO "([^"]+)"`)
	oneRole           = regexp.MustCompile(`rolname = '([^']*)'`)
)

func (f *Fake) apply(ctx context.Context, files guestapi.FileSystem, b *pgproto3.Backend, sql string) error {
	s, err := Load(ctx, files)
	if err != nil {
		return err
	}
	switch {
	case s.Standby && (roleStatement.MatchString(sql) || strings.HasPrefix(sql, "INSERT ")):
		return errors.New("cannot execute it in a read-only transaction")
	case strings.HasPrefix(sql, dump):
		data, err := json.Marshal(s)
		send(b, string(data))
		return err
	case strings.HasPrefix(sql, load):
		s = State{}
		if err = json.Unmarshal([]byte(strings.TrimPrefix(sql, load)), &s); err == nil {
			err = Save(ctx, files, s)
		}
	case strings.Contains(sql, "pg_is_in_recovery"):
		send(b, strconv.FormatBool(s.Standby), strconv.FormatBool(s.Standby && !f.cut), s.end(), s.end(), "1500")
		return nil
	case strings.Contains(sql, "pg_current_wal_lsn"):
		if s.Standby {
			return errors.New("recovery is in progress")
		}
		send(b, s.end())
		return nil
	case strings.Contains(sql, "pg_promote"):
		s.Standby = false
		err = Save(ctx, files, s)
	case roleStatement.MatchString(sql):
		m := roleStatement.FindStringSubmatch(sql)
		if _, has := s.Roles[m[2]]; has == (m[1] == "CREATE") {
			return errors.New("role " + m[2] + ": exists or does not")
		}
		s.Roles[m[2]] = m[3]
		if made := databaseStatement.FindStringSubmatch(sql); made != nil {
			s.Databases = append(s.Databases, made[1])
		}
		err = Save(ctx, files, s)
	case strings.HasPrefix(sql, "INSERT "):
		s.Rows = append(s.Rows, strings.TrimPrefix(sql, "INSERT "))
		err = Save(ctx, files, s)
	case strings.HasPrefix(sql, "ALTER SYSTEM"):
		f.readOnly = strings.Contains(sql, "SET default_transaction_read_only = on")
	case strings.Contains(sql, "pg_ls_waldir"):
		f.sendStorage(b)
		return nil
	case strings.HasPrefix(sql, "SELECT datname"):
		sendList(b, 1, s.Databases...)
		return nil
	case strings.HasPrefix(sql, "SELECT extname"):
		sendList(b, 1, f.extensions...)
		return nil
	case strings.Contains(sql, "pg_prepared_xacts"):
		sendList(b, 2, f.obstacles...)
		return nil
	case strings.HasPrefix(sql, "SELECT rolname, rolpassword"):
		f.sendRoles(b, s, sql)
		return nil
	}
	if err != nil {
		return err
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("OK")})
	return nil
}

const dump, load = "-- dump", "-- load "

// Dump reads what the server of a connection has.
func Dump(ctx context.Context, conn *pgx.Conn) (s State, err error) {
	var text string
	if err := conn.QueryRow(ctx, dump).Scan(&text); err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// Replace replaces what the server of a connection has.
func Replace(ctx context.Context, conn *pgx.Conn, s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, load+string(data))
	return err
}

// end returns the end of a log in which each row takes 256 bytes.
func (s State) end() string { return fmt.Sprintf("0/%X", 256*(1+len(s.Rows))) }

// send sends a row of texts.
func send(b *pgproto3.Backend, values ...string) {
	fields, row := &pgproto3.RowDescription{}, &pgproto3.DataRow{}
	for _, v := range values {
		fields.Fields = append(fields.Fields, pgproto3.FieldDescription{
			Name: []byte("value"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1,
		})
		row.Values = append(row.Values, []byte(v))
	}
	b.Send(fields)
	b.Send(row)
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
}

// sendList sends texts in rows of some columns.
func sendList(b *pgproto3.Backend, columns int, texts ...string) {
	fields := &pgproto3.RowDescription{}
	for range columns {
		fields.Fields = append(fields.Fields, pgproto3.FieldDescription{
			Name: []byte("value"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1,
		})
	}
	b.Send(fields)
	for at := 0; at < len(texts); at += columns {
		row := &pgproto3.DataRow{}
		for _, text := range texts[at : at+columns] {
			row.Values = append(row.Values, []byte(text))
		}
		b.Send(row)
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
}

func (f *Fake) sendRoles(b *pgproto3.Backend, s State, sql string) {
	const text = 25
	b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("rolname"), DataTypeOID: text, DataTypeSize: -1, TypeModifier: -1},
		{Name: []byte("rolpassword"), DataTypeOID: text, DataTypeSize: -1, TypeModifier: -1},
	}})
	only := oneRole.FindStringSubmatch(sql)
	for name, verifier := range s.Roles {
		if only == nil || only[1] == name {
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(name), []byte(verifier)}})
		}
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
}

func (f *Fake) sendStorage(b *pgproto3.Backend) {
	const bigint, boolean = 20, 16
	b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("bytes"), DataTypeOID: bigint, DataTypeSize: 8, TypeModifier: -1},
		{Name: []byte("read_only"), DataTypeOID: boolean, DataTypeSize: 1, TypeModifier: -1},
	}})
	readOnly := "f"
	if f.readOnly {
		readOnly = "t"
	}
	b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(strconv.FormatInt(f.used, 10)), []byte(readOnly)}})
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
}
