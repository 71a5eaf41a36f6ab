package pghttp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Headers of Neon's protocol.
const (
	headerConnection = "Neon-Connection-String"
	headerRaw        = "Neon-Raw-Text-Output"
	headerArray      = "Neon-Array-Mode"
	headerIsolation  = "Neon-Batch-Isolation-Level"
	headerReadOnly   = "Neon-Batch-Read-Only"
	headerDeferrable = "Neon-Batch-Deferrable"
	headerPoolOptIn  = "Neon-Pool-Opt-In"
)

const (
	maxQueries   = 1000  // of a batch
	maxParams    = 65535 // of a query, as in PostgreSQL
	requestCost  = 3     // bytes that are held for each of a request: as it is, decoded, and sent
	maxURLLength = 8 << 10
)

func cors(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", strings.Join([]string{
		headerConnection, headerRaw, headerArray, headerPoolOptIn, headerReadOnly, headerIsolation, headerDeferrable,
		"Authorization", "Content-Type", "Accept",
	}, ", "))
	h.Set("Access-Control-Expose-Headers",
		strings.Join([]string{headerReadOnly, headerIsolation, headerDeferrable}, ", "))
	h.Set("Access-Control-Max-Age", "86400")
}

// connection is what a connection string names.
type connection struct {
	address                  pgedge.Address
	role, password, database string
}

// parseConnection parses the connection string of a request. Its errors do not quote it.
func parseConnection(text, suffix string) (connection, error) {
	if text == "" {
		return connection{}, badRequest("the header " + headerConnection + " is missing")
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURLLength || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.User == nil {
		return connection{}, badRequest("the header " + headerConnection +
			" is not of the form postgresql://user:password@host/database")
	}
	c := connection{role: u.User.Username(), database: strings.TrimPrefix(u.Path, "/")}
	c.password, _ = u.User.Password()
	ok := false
	if c.address, ok = pgedge.ParseHost(u.Hostname(), suffix); !ok {
		return connection{}, badRequest("the host of the connection string is not a database of this server: " +
			"it has the form <id>." + suffix)
	}
	if c.role == "" || c.password == "" {
		return connection{}, badRequest("the connection string has no user or no password")
	}
	c.database = cmp.Or(c.database, c.role)
	if strings.ContainsRune(c.role+c.database+c.password, 0) {
		return connection{}, badRequest("the connection string contains a zero byte")
	}
	return c, nil
}

// batch is the body of a request: one query, or several.
type batch struct {
	queries []query
	single  bool
}

type query struct {
	statement
	arrays bool // rows are arrays, not objects
}

type queryBody struct {
	Query     *string           `json:"query"`
	Params    []json.RawMessage `json:"params"`
	ArrayMode *bool             `json:"arrayMode"`
}

// parseBatch parses the body of a request.
func parseBatch(data []byte, arrays bool) (batch, error) {
	var body struct {
		queryBody
		Queries []queryBody `json:"queries"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return batch{}, badRequest("the body is not JSON of the form {query, params} or {queries: [...]}")
	}
	b := batch{single: body.Query != nil}
	all := body.Queries
	if b.single {
		all = []queryBody{body.queryBody}
	}
	if body.Query != nil && body.Queries != nil || body.Query == nil && body.Queries == nil || len(all) > maxQueries {
		return batch{}, badRequest("the body has either query or queries, of which 1000 at most")
	}
	for _, one := range all {
		if one.Query == nil || len(one.Params) > maxParams {
			return batch{}, badRequest("each query has a text, and 65535 parameters at most")
		}
		q := query{statement: statement{sql: *one.Query}, arrays: arrays}
		if one.ArrayMode != nil {
			q.arrays = *one.ArrayMode
		}
		for i, p := range one.Params {
			text, err := paramText(p)
			if err != nil {
				return batch{}, badRequest("parameter " + strconv.Itoa(i+1) + ": " + err.Error())
			}
			q.params = append(q.params, text)
		}
		b.queries = append(b.queries, q)
	}
	return b, nil
}

// begin returns the statement that begins the transaction of a batch.
func begin(h http.Header) (string, error) {
	sql := "BEGIN"
	switch level := h.Get(headerIsolation); level {
	case "":
	case "ReadUncommitted":
		sql += " ISOLATION LEVEL READ UNCOMMITTED"
	case "ReadCommitted":
		sql += " ISOLATION LEVEL READ COMMITTED"
	case "RepeatableRead":
		sql += " ISOLATION LEVEL REPEATABLE READ"
	case "Serializable":
		sql += " ISOLATION LEVEL SERIALIZABLE"
	default:
		return "", badRequest("the header " + headerIsolation +
			" is not ReadUncommitted, ReadCommitted, RepeatableRead or Serializable")
	}
	if h.Get(headerReadOnly) == "true" {
		sql += " READ ONLY"
	}
	if h.Get(headerDeferrable) == "true" {
		sql += " DEFERRABLE"
	}
	return sql, nil
}

// badRequest is the error of a request that is malformed.
type badRequest string

// Error implements error.
func (b badRequest) Error() string { return string(b) }

// serveSQL handles POST /sql.
func (s *Server) serveSQL(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.QueryTimeout)
	defer cancel()
	c, err := parseConnection(r.Header.Get(headerConnection), s.cfg.Suffix)
	if err != nil {
		writeNeonError(w, err)
		return
	}
	l, err := s.authenticate(ctx, peerOf(r), c.address, c.role, c.password, c.database)
	if err != nil {
		writeNeonError(w, err)
		return
	}
	// Nothing is read, and no memory is held, for a client that has no password.
	account := s.cfg.Buffers.Open(l.id)
	defer account.Close()
	data, err := readBody(w, r, s.limits.RequestBytes, account)
	if err != nil {
		writeNeonError(w, err)
		return
	}
	b, err := parseBatch(data, r.Header.Get(headerArray) == "true")
	if err != nil {
		writeNeonError(w, err)
		return
	}
	first, err := begin(r.Header)
	if err != nil {
		writeNeonError(w, err)
		return
	}
	err = s.use(ctx, l, func(conn *pgconn.PgConn) error {
		results, err := s.runBatch(ctx, conn, b, first, account)
		if err != nil {
			return err
		}
		if !b.single {
			for _, name := range []string{headerIsolation, headerReadOnly, headerDeferrable} {
				if v := r.Header.Get(name); v != "" {
					w.Header().Set(name, v)
				}
			}
		}
		return writeResults(w, b, results, r.Header.Get(headerRaw) == "true", account)
	})
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // what the database says of it is that it was cancelled
	}
	if err != nil {
		writeNeonError(w, err)
	}
}

// readBody reads the body of a request. Its memory is paid by account.
func readBody(w http.ResponseWriter, r *http.Request, most int64, account *budget.Account) ([]byte, error) {
	return io.ReadAll(account.Reader(http.MaxBytesReader(w, r.Body, most), requestCost))
}

// runBatch runs a query by itself, or queries in a transaction.
func (s *Server) runBatch(
	ctx context.Context, conn *pgconn.PgConn, b batch, first string, account *budget.Account,
) ([]*result, error) {
	most := bounds{rows: s.limits.Rows, bytes: s.limits.ResponseBytes}
	if b.single {
		one, err := run(ctx, conn, b.queries[0].statement, most, account)
		return []*result{one}, err
	}
	if _, err := conn.Exec(ctx, first).ReadAll(); err != nil {
		return nil, err
	}
	var results []*result
	for _, q := range b.queries {
		one, err := run(ctx, conn, q.statement, most, account)
		if err != nil {
			if !conn.IsClosed() {
				_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll() // put closes a connection with a transaction
			}
			return nil, err
		}
		for _, row := range one.rows {
			for _, v := range row {
				most.bytes -= int64(len(v))
			}
		}
		results = append(results, one)
	}
	_, err := conn.Exec(ctx, "COMMIT").ReadAll()
	return results, err
}

// writeResults writes the response. The client has it before the connection is reset.
func writeResults(w http.ResponseWriter, b batch, results []*result, raw bool, account *budget.Account) error {
	var out bytes.Buffer
	if !b.single {
		out.WriteString(`{"results":[`)
	}
	for i, r := range results {
		if i > 0 {
			out.WriteByte(',')
		}
		before := out.Len()
		appendResult(&out, r, b.queries[i].arrays, raw)
		if err := account.Take(int64(out.Len() - before)); err != nil {
			return err
		}
	}
	if !b.single {
		out.WriteString(`]}`)
	}
	writeJSON(w, http.StatusOK, out.Bytes())
	return nil
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)                      // a client that went away
	_ = http.NewResponseController(w).Flush() // likewise
}

// neonError is the body of an error of Neon's protocol.
type neonError struct {
	Message          string  `json:"message"`
	Code             *string `json:"code"`
	Severity         *string `json:"severity"`
	Detail           *string `json:"detail"`
	Hint             *string `json:"hint"`
	Position         *string `json:"position"`
	InternalPosition *string `json:"internalPosition"`
	InternalQuery    *string `json:"internalQuery"`
	Where            *string `json:"where"`
	Schema           *string `json:"schema"`
	Table            *string `json:"table"`
	Column           *string `json:"column"`
	DataType         *string `json:"dataType"`
	Constraint       *string `json:"constraint"`
	File             *string `json:"file"`
	Line             *string `json:"line"`
	Routine          *string `json:"routine"`
}

// orNull returns nil for "".
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func positive(n int32) *string {
	if n == 0 {
		return nil
	}
	return orNull(strconv.Itoa(int(n)))
}

// failure is an error as clients of all faces get it.
type failure struct {
	status int // of Neon's protocol
	pgconn.PgError
}

// failureOf classifies an error. What is not meant for clients becomes a general message.
func failureOf(err error) failure {
	f := failure{status: http.StatusBadRequest}
	f.Severity = "ERROR"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.PgError = *pg
		return f
	}
	if own, ok := errors.AsType[*pgedge.Error](err); ok {
		f.Severity, f.Code, f.Message, f.Hint = "FATAL", own.Code, own.Message, own.Hint
		return f
	}
	if theirs, ok := errors.AsType[*pgedge.ServerError](err); ok {
		f.Severity, f.Code, f.Message, f.Hint = "FATAL", theirs.Code, theirs.Message, theirs.Hint
		return f
	}
	if bad, ok := errors.AsType[badRequest](err); ok {
		f.Message = string(bad)
		return f
	}
	if tooMuch, ok := errors.AsType[*http.MaxBytesError](err); ok {
		f.status = http.StatusRequestEntityTooLarge
		f.Message = "the request is too large: " + strconv.FormatInt(tooMuch.Limit, 10) + " bytes are allowed"
		return f
	}
	if refused, ok := errors.AsType[*budget.Error](err); ok {
		f.status, f.Code, f.Message = http.StatusServiceUnavailable, "53200", refused.Error()
		return f
	}
	if _, ok := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); ok {
		err = errTooLarge // a single row
	}
	switch {
	case errors.Is(err, errTooLarge) || errors.Is(err, errTooMany):
		f.status, f.Code, f.Message = http.StatusInsufficientStorage, "54000", err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Message = "57014", "the query was cancelled: it took longer than it may"
	case errors.Is(err, pgedge.ErrNoTarget):
		f.Code, f.Message = "0A000", "the database has no such server"
	default:
		f.status, f.Code = http.StatusInternalServerError, "08006"
		f.Message, f.Hint = "the connection to the database failed", "Try again in a few seconds."
	}
	return f
}

// writeNeonError writes an error as Neon does: errors of databases and logins are 400.
func writeNeonError(w http.ResponseWriter, err error) {
	f := failureOf(err)
	body, _ := json.Marshal(neonError{ // strings can always be encoded
		Message: f.Message, Code: orNull(f.Code), Severity: orNull(f.Severity), Detail: orNull(f.Detail),
		Hint: orNull(f.Hint), Position: positive(f.Position), InternalPosition: positive(f.InternalPosition),
		InternalQuery: orNull(f.InternalQuery), Where: orNull(f.Where), Schema: orNull(f.SchemaName),
		Table: orNull(f.TableName), Column: orNull(f.ColumnName), DataType: orNull(f.DataTypeName),
		Constraint: orNull(f.ConstraintName), File: orNull(f.File), Line: positive(f.Line), Routine: orNull(f.Routine),
	})
	writeJSON(w, f.status, body)
}
