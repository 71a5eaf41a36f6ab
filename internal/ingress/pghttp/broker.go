package pghttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// Limits of the query broker.
const (
	brokerRows       = 10_000
	brokerSQL        = 1 << 20 // bytes of the statements of a request
	brokerParams     = 1000    // of a statement
	brokerStatements = 100     // of a transaction
	queryLimit       = 30 * time.Second
	transactionLimit = 60 * time.Second
	administration   = 60 * time.Second // of creating and deleting databases
)

// ErrBadToken is the error of a broker token that is not the endpoint's.
var ErrBadToken = errors.New("the broker token is wrong")

// BrokerEndpoint is an endpoint whose databases the holder of its broker token can query.
type BrokerEndpoint interface {
	pgedge.Endpoint

	// BrokerLogin returns what a token stands for, or ErrBadToken. It does not wake the database.
	BrokerLogin(ctx context.Context, token string) (BrokerLogin, error)
}

// BrokerLogin is how the broker logs into a database.
type BrokerLogin struct {
	Role     string
	Keys     scram.Keys // of the role
	Database string     // of requests that name none
}

// brokerError is the body of an error.
type brokerError struct {
	Error  string `json:"error"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	Where  string `json:"where"`
}

type queryRequest struct {
	Database  string            `json:"database"`
	SQL       string            `json:"sql"`
	Params    []json.RawMessage `json:"params"`
	TimeoutMS int64             `json:"timeout_ms"`
	MaxRows   int               `json:"max_rows"`
}

type transactionRequest struct {
	Database   string         `json:"database"`
	Statements []queryRequest `json:"statements"`
	TimeoutMS  int64          `json:"timeout_ms"`
}

// request is a request to the broker that has been authorized.
type request struct {
	*Server
	w       http.ResponseWriter
	r       *http.Request
	login   login
	account *budget.Account
}

// ServeDatabase is ServeBroker for the endpoint that the resolver finds. One that does not exist, or has no broker
// token, looks like a wrong token.
func (s *Server) ServeDatabase(w http.ResponseWriter, r *http.Request, id, path string) {
	found, err := s.cfg.Resolver.Endpoint(r.Context(), id)
	if e, ok := found.(BrokerEndpoint); ok && err == nil {
		s.ServeBroker(w, r, id, e, path)
		return
	}
	if err == nil || errors.Is(err, pgedge.ErrNoEndpoint) {
		peer := peerOf(r)
		if err = s.cfg.Limiter.Check(peer, id); err == nil {
			s.cfg.Limiter.Failed(peer, id)
			err = ErrBadToken
		}
	}
	writeBrokerError(w, err)
}

// ServeBroker handles a request to the query broker of an endpoint.
//
// path is below the broker's root, such as "/v1/query".
func (s *Server) ServeBroker(w http.ResponseWriter, r *http.Request, id string, e BrokerEndpoint, path string) {
	if path == "/v1/health" && r.Method == http.MethodGet {
		serveHealth(w, e)
		return
	}
	peer := peerOf(r)
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	found, err := BrokerLogin{}, s.cfg.Limiter.Check(peer, id)
	switch {
	case err != nil:
	case !ok || token == "":
		err = ErrBadToken
	default:
		if found, err = e.BrokerLogin(r.Context(), token); errors.Is(err, ErrBadToken) {
			s.cfg.Limiter.Failed(peer, id)
		}
	}
	if err == nil && !e.Settings().Allows(peer) {
		err = pgedge.NotAllowed(peer)
	}
	if err != nil {
		writeBrokerError(w, err)
		return
	}
	s.cfg.Limiter.Succeeded(peer, id)
	q := &request{Server: s, w: w, r: r, account: s.cfg.Buffers.Open(id), login: login{
		id: id, endpoint: e, role: found.Role, keys: found.Keys, database: found.Database,
	}}
	defer q.account.Close()
	if err := q.serve(path); err != nil {
		writeBrokerError(w, err)
	}
}

// errNoRoute is the error of a method and path that the broker does not have.
var errNoRoute = errors.New("the query broker has no such path: it has /v1/health, /v1/info, /v1/query, /v1/exec, " +
	"/v1/transaction and /v1/databases")

func (q *request) serve(path string) error {
	name, one := strings.CutPrefix(path, "/v1/databases/")
	switch method := q.r.Method; {
	case method == http.MethodGet && path == "/v1/info":
		return q.info()
	case method == http.MethodPost && path == "/v1/query":
		return q.query(false)
	case method == http.MethodPost && path == "/v1/exec":
		return q.query(true)
	case method == http.MethodPost && path == "/v1/transaction":
		return q.transaction()
	case method == http.MethodGet && path == "/v1/databases":
		return q.databases()
	case method == http.MethodPost && path == "/v1/databases":
		return q.createDatabase()
	case method == http.MethodDelete && one:
		return q.deleteDatabase(name)
	default:
		return errNoRoute
	}
}

// serveHealth says whether the database runs, and wakes nothing: it needs no token.
func serveHealth(w http.ResponseWriter, e BrokerEndpoint) {
	state := "down"
	if e.Settings().Running {
		state = "up"
	}
	writeValue(w, http.StatusOK, map[string]any{
		"status": "ok", "postgres": state, "ts": time.Now().UTC().Format(time.RFC3339),
	})
}

// decode reads the body of the request.
func (q *request) decode(to any) error {
	data, err := readBody(q.w, q.r, min(2*brokerSQL, q.limits.RequestBytes), q.account)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return badRequest("the body is not the JSON that this path takes: " + err.Error())
	}
	return nil
}

// timeout returns the time that a request gets.
func timeout(ms int64, most time.Duration) (time.Duration, error) {
	if ms < 0 || ms > most.Milliseconds() {
		return 0, badRequest(fmt.Sprintf("timeout_ms is %d: it is 1 to %d", ms, most.Milliseconds()))
	}
	if ms == 0 {
		return most, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// statement checks one statement of a request.
func (one queryRequest) statement() (statement, error) {
	switch {
	case one.SQL == "":
		return statement{}, badRequest("sql is empty: it is the text of a statement")
	case len(one.SQL) > brokerSQL:
		return statement{}, badRequest(fmt.Sprintf("sql has %d bytes, %d at most", len(one.SQL), brokerSQL))
	case len(one.Params) > brokerParams:
		return statement{}, badRequest(fmt.Sprintf("params has %d values, %d at most", len(one.Params), brokerParams))
	case one.MaxRows < 0 || one.MaxRows > brokerRows:
		return statement{}, badRequest(fmt.Sprintf("max_rows is %d: it is 1 to %d", one.MaxRows, brokerRows))
	}
	st := statement{sql: one.SQL}
	for i, p := range one.Params {
		text, err := paramText(p)
		if err != nil {
			return statement{}, badRequest(fmt.Sprintf("params[%d]: %v", i, err))
		}
		st.params = append(st.params, text)
	}
	return st, nil
}

// bounds returns those of the result.
func (q *request) bounds(one queryRequest) bounds {
	b := bounds{rows: brokerRows, bytes: q.limits.ResponseBytes, cut: true}
	if one.MaxRows > 0 {
		b.rows = one.MaxRows
	}
	return b
}

// with calls f with a connection to a database, in the time that there is.
func (q *request) with(database string, limit time.Duration, f func(context.Context, *pgconn.PgConn) error) error {
	ctx, cancel := context.WithTimeout(q.r.Context(), limit)
	defer cancel()
	l := q.login
	if database != "" {
		l.database = database
	}
	if strings.ContainsRune(l.database, 0) {
		return badRequest("database contains a zero byte")
	}
	err := q.use(ctx, &l, func(conn *pgconn.PgConn) error { return f(ctx, conn) })
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // what the database says of it is that it was cancelled
	}
	return err
}

// query handles /v1/query and, with only, /v1/exec, whose response has no rows.
func (q *request) query(only bool) error {
	var in queryRequest
	if err := q.decode(&in); err != nil {
		return err
	}
	st, err := in.statement()
	if err != nil {
		return err
	}
	limit, err := timeout(in.TimeoutMS, queryLimit)
	if err != nil {
		return err
	}
	return q.with(in.Database, limit, func(ctx context.Context, conn *pgconn.PgConn) error {
		began := time.Now()
		r, err := run(ctx, conn, st, q.bounds(in), q.account)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		out.WriteByte('{')
		if only {
			fmt.Fprintf(&out, `"rows_affected":%d`, r.tag.RowsAffected())
		} else {
			appendBrokerRows(&out, r)
		}
		fmt.Fprintf(&out, `,"duration_ms":%d}`, time.Since(began).Milliseconds())
		return q.reply(out.Bytes())
	})
}

// reply writes a response, whose memory is paid.
func (q *request) reply(body []byte) error {
	if err := q.account.Take(int64(len(body))); err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, body)
	return nil
}

// transaction handles /v1/transaction.
func (q *request) transaction() error {
	var in transactionRequest
	if err := q.decode(&in); err != nil {
		return err
	}
	if n := len(in.Statements); n == 0 || n > brokerStatements {
		return badRequest(fmt.Sprintf("statements has %d elements: it has 1 to %d", n, brokerStatements))
	}
	var all []statement
	for i, one := range in.Statements {
		st, err := one.statement()
		if err != nil {
			return badRequest(fmt.Sprintf("statements[%d]: %v", i, err))
		}
		all = append(all, st)
	}
	limit, err := timeout(in.TimeoutMS, transactionLimit)
	if err != nil {
		return err
	}
	return q.with(in.Database, limit, func(ctx context.Context, conn *pgconn.PgConn) error {
		began := time.Now()
		if _, err := conn.Exec(ctx, "BEGIN").ReadAll(); err != nil {
			return err
		}
		var out bytes.Buffer
		out.WriteString(`{"results":[`)
		for i, st := range all {
			r, err := run(ctx, conn, st, q.bounds(in.Statements[i]), q.account)
			if err != nil {
				return err // the connection is closed, which rolls back
			}
			if i > 0 {
				out.WriteByte(',')
			}
			fmt.Fprintf(&out, `{"index":%d,"rows_affected":%d,`, i, r.tag.RowsAffected())
			appendBrokerRows(&out, r)
			out.WriteByte('}')
			if int64(out.Len()) > 2*q.limits.ResponseBytes {
				return errTooLarge
			}
		}
		if _, err := conn.Exec(ctx, "COMMIT").ReadAll(); err != nil {
			return err
		}
		fmt.Fprintf(&out, `],"duration_ms":%d}`, time.Since(began).Milliseconds())
		return q.reply(out.Bytes())
	})
}

// appendBrokerRows appends the columns and rows of a result.
func appendBrokerRows(out *bytes.Buffer, r *result) {
	out.WriteString(`"columns":[`)
	for i, f := range r.fields {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(`{"name":`)
		appendString(out, f.Name)
		out.WriteString(`,"type":`)
		appendString(out, typeName(f.DataTypeOID))
		out.WriteByte('}')
	}
	out.WriteString(`],"rows":[`)
	for i, row := range r.rows {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('[')
		for j, v := range row {
			if j > 0 {
				out.WriteByte(',')
			}
			appendValue(out, v, r.fields[j].DataTypeOID, true)
		}
		out.WriteByte(']')
	}
	fmt.Fprintf(out, `],"count":%d`, len(r.rows))
	if r.cut {
		out.WriteString(`,"truncated":true`)
	}
}

func typeName(oid uint32) string {
	if t, ok := types.TypeForOID(oid); ok {
		return t.Name
	}
	return fmt.Sprint(oid)
}

// rows runs a query of the broker's own.
func (q *request) rows(sql string) (*result, error) {
	var r *result
	err := q.with("", queryLimit, func(ctx context.Context, conn *pgconn.PgConn) error {
		var err error
		r, err = run(ctx, conn, statement{sql: sql}, q.bounds(queryRequest{}), q.account)
		return err
	})
	return r, err
}

func (q *request) info() error {
	r, err := q.rows(`SELECT json_build_object('version', version(), 'database', current_database(),
		'user', current_user, 'size_bytes', pg_database_size(current_database()),
		'max_connections', current_setting('max_connections')::int,
		'extensions', (SELECT coalesce(json_agg(json_build_object('name', extname, 'version', extversion)
			ORDER BY extname), '[]') FROM pg_extension))`)
	if err != nil {
		return err
	}
	return q.reply(r.rows[0][0])
}

func (q *request) databases() error {
	r, err := q.rows(`SELECT json_build_object('databases', coalesce(json_agg(json_build_object('name', datname,
		'owner', pg_get_userbyid(datdba)) ORDER BY datname), '[]')) FROM pg_database WHERE NOT datistemplate`)
	if err != nil {
		return err
	}
	return q.reply(r.rows[0][0])
}

// databaseName is what the broker creates and deletes.
var databaseName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,62}$`)

func checkDatabase(name string) error {
	if !databaseName.MatchString(name) {
		return badRequest("the name of a database begins with a letter or _ and has up to 63 letters, digits, _ and -")
	}
	return nil
}

func (q *request) createDatabase() error {
	var in struct {
		Name string `json:"name"`
	}
	if err := q.decode(&in); err != nil {
		return err
	}
	if err := checkDatabase(in.Name); err != nil {
		return err
	}
	err := q.with("", administration, func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, `CREATE DATABASE "`+in.Name+`"`).ReadAll()
		return err
	})
	if err == nil {
		writeValue(q.w, http.StatusCreated, in)
	}
	return err
}

func (q *request) deleteDatabase(name string) error {
	if err := checkDatabase(name); err != nil {
		return err
	}
	if name == q.login.database || name == "postgres" || strings.HasPrefix(name, "template") {
		return badRequest(`the database "` + name + `" cannot be deleted: delete databases that were created here`)
	}
	q.CloseIdle(q.login.id) // connections of this server to it
	err := q.with("", administration, func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, `DROP DATABASE "`+name+`"`).ReadAll()
		return err
	})
	if err == nil {
		q.w.WriteHeader(http.StatusNoContent)
	}
	return err
}

func writeValue(w http.ResponseWriter, status int, v any) {
	body, _ := json.Marshal(v) // maps and structs of strings
	writeJSON(w, status, body)
}

// brokerStatus returns the HTTP status of an error.
func brokerStatus(err error, f failure) int {
	switch {
	case errors.Is(err, ErrBadToken):
		return http.StatusUnauthorized
	case errors.Is(err, errNoRoute) || f.Code == "3D000":
		return http.StatusNotFound
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case f.Code == "42P04": // duplicate_database
		return http.StatusConflict
	case f.Code == "57P03" || f.Code == "53300":
		return http.StatusServiceUnavailable
	case f.Code == "28000":
		return http.StatusForbidden
	case f.status == http.StatusInsufficientStorage:
		return http.StatusRequestEntityTooLarge
	}
	return f.status
}

func writeBrokerError(w http.ResponseWriter, err error) {
	f := failureOf(err)
	if errors.Is(err, ErrBadToken) || errors.Is(err, errNoRoute) {
		f.Message, f.Code, f.Hint = err.Error(), "", ""
	}
	if errors.Is(err, ErrBadToken) {
		f.Hint = "Send Authorization: Bearer <broker_token>, from the database's connection."
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	status := brokerStatus(err, f)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	writeValue(w, status, brokerError{Error: f.Message, Code: f.Code, Detail: f.Detail, Hint: f.Hint, Where: f.Where})
}
