package pghttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// Limits bound requests. Zero fields have the value of DefaultLimits.
type Limits struct {
	RequestBytes  int64         // of a body
	ResponseBytes int64         // of the values of a result
	Rows          int           // of a result
	QueryTimeout  time.Duration // of a request to /sql, with the time that a sleeping database needs
	Connections   int           // to one endpoint
	Idle          int           // connections that are kept for one login
	IdleTimeout   time.Duration // how long one is kept
}

// DefaultLimits are the limits of a node.
func DefaultLimits() Limits {
	return Limits{
		RequestBytes: 10 << 20, ResponseBytes: 10 << 20, Rows: 100_000, QueryTimeout: time.Minute,
		Connections: 50, Idle: 4, IdleTimeout: 30 * time.Second,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	set := func(v *int64, def int64) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.RequestBytes, d.RequestBytes)
	set(&l.ResponseBytes, d.ResponseBytes)
	for _, n := range []struct{ v, d *int }{{&l.Rows, &d.Rows}, {&l.Connections, &d.Connections}, {&l.Idle, &d.Idle}} {
		if *n.v <= 0 {
			*n.v = *n.d
		}
	}
	set((*int64)(&l.QueryTimeout), int64(d.QueryTimeout))
	set((*int64)(&l.IdleTimeout), int64(d.IdleTimeout))
	return l
}

// Config configures a Server.
type Config struct {
	Suffix   string // the domain of the endpoints
	Resolver pgedge.Resolver
	Edge     *pgedge.Server // serves WebSockets
	Limiter  *pgedge.Limiter
	// MockSecret makes the verifiers of roles that do not exist, see pgedge.Config.
	MockSecret []byte
	// Buffers pays for requests and results; its level is the endpoint. Nil: they are not bounded together.
	Buffers *budget.Pool
	Limits  Limits
	// Observe, if it is set, is called with rejected logins. It must not wait for anything.
	Observe func(pgedge.Event)
	Log     *slog.Logger
}

// Server is the edge of databases for HTTP. Make one with New.
type Server struct {
	cfg    Config
	limits Limits
	pool   *pool
	logins *logins
}

// New returns a server. Run keeps its pool.
func New(cfg Config) (*Server, error) {
	if cfg.Suffix == "" || cfg.Resolver == nil || cfg.Edge == nil || cfg.Limiter == nil || cfg.Log == nil {
		return nil, errors.New("pghttp: Suffix, Resolver, Edge, Limiter and Log are required")
	}
	limits := cfg.Limits.withDefaults()
	pool, err := newPool(limits)
	if err != nil {
		return nil, err
	}
	logins, err := newLogins()
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, limits: limits, pool: pool, logins: logins}, nil
}

// Run closes connections that were idle for too long, and all idle ones when ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.limits.IdleTimeout / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.pool.closeIdle(func(string, time.Time) bool { return true })
			return nil
		case now := <-ticker.C:
			s.pool.closeIdle(func(_ string, since time.Time) bool { return now.Sub(since) > s.limits.IdleTimeout })
		}
	}
}

// CloseIdle closes the idle connections to an endpoint, as before its database is suspended.
func (s *Server) CloseIdle(endpoint string) {
	s.pool.closeIdle(func(id string, _ time.Time) bool { return id == endpoint })
}

// Serves reports whether a host name is one that the server handles: api, apiauth, or an endpoint.
func (s *Server) Serves(host string) bool {
	_, ok := pgedge.ParseHost(hostOnly(host), s.cfg.Suffix)
	return ok
}

// ServeHTTP handles Neon's protocol on the hosts of the endpoints, and on api and apiauth beside them.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v2":
		s.serveWebSocket(w, r)
	case r.URL.Path != "/sql":
		http.Error(w, "not found: this host has POST /sql and the WebSocket /v2", http.StatusNotFound)
	case r.Method == http.MethodOptions:
		cors(w.Header())
		w.WriteHeader(http.StatusOK)
	case r.Method != http.MethodPost:
		cors(w.Header())
		w.Header().Set("Allow", "OPTIONS, POST")
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
	default:
		cors(w.Header())
		s.serveSQL(w, r)
	}
}

func hostOnly(host string) string {
	name, _, ok := strings.Cut(host, ":")
	if ok {
		return name
	}
	return host
}

func peerOf(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// login is who uses which database.
type login struct {
	id       string // of the endpoint
	endpoint pgedge.Endpoint
	target   pgedge.Target
	role     string
	database string
	keys     scram.Keys
}

// authenticate checks a password, without the database.
func (s *Server) authenticate(
	ctx context.Context, peer netip.Addr, address pgedge.Address, role, password, database string,
) (*login, error) {
	if err := s.cfg.Limiter.Check(peer, address.Endpoint); err != nil {
		return nil, err
	}
	endpoint, found, err := pgedge.Find(ctx, s.cfg.Resolver, address.Endpoint, role)
	if err != nil {
		return nil, err
	}
	verifier := scram.Mock(s.cfg.MockSecret, address.Endpoint, role)
	if found.Verifier != "" {
		if verifier, err = scram.ParseVerifier(found.Verifier); err != nil {
			return nil, err
		}
	}
	keys, ok, err := s.logins.check(verifier, password)
	if err != nil {
		return nil, err
	}
	if !ok || endpoint == nil {
		s.cfg.Limiter.Failed(peer, address.Endpoint)
		if s.cfg.Observe != nil {
			s.cfg.Observe(pgedge.Event{
				Kind: pgedge.EventRejected, Client: peer, Endpoint: address.Endpoint, Target: address.Target,
				Role: role, Database: database, Reason: "wrong password over HTTP",
			})
		}
		return nil, pgedge.WrongPassword(role)
	}
	s.cfg.Limiter.Succeeded(peer, address.Endpoint)
	if !endpoint.Settings().Allows(peer) {
		return nil, pgedge.NotAllowed(peer)
	}
	return &login{
		id: address.Endpoint, endpoint: endpoint, target: address.Target, role: role, database: database, keys: keys,
	}, nil
}

// use wakes the database, and calls f with a connection that no other request uses. The connection is reset after it.
func (s *Server) use(ctx context.Context, l *login, f func(conn *pgconn.PgConn) error) error {
	release, err := l.endpoint.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	l.endpoint.Touch()
	c, err := s.pool.get(ctx, l)
	if err != nil {
		return err
	}
	defer s.pool.put(ctx, c)
	return f(c.conn)
}

// statement is one query with the text of its parameters; nil is NULL.
type statement struct {
	sql    string
	params [][]byte
}

// result is what a statement returned.
type result struct {
	fields []pgconn.FieldDescription
	rows   [][][]byte // text; nil is NULL
	tag    pgconn.CommandTag
	cut    bool // there were more rows
}

// bounds are those of one result.
type bounds struct {
	rows  int
	bytes int64
	cut   bool // rows over the bound are left out; otherwise they are an error
}

// Errors of results that are too large.
var (
	errTooLarge = errors.New("the result is too large: select fewer columns or rows, or use LIMIT")
	errTooMany  = errors.New("the result has too many rows: use LIMIT")
)

// run runs one statement. The memory of the result is paid by account.
func run(
	ctx context.Context, conn *pgconn.PgConn, st statement, most bounds, account *budget.Account,
) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader := conn.ExecParams(ctx, st.sql, st.params, nil, nil, nil)
	r := &result{rows: [][][]byte{}}
	var refused error
	for reader.NextRow() {
		if r.fields == nil {
			r.fields = append(r.fields, reader.FieldDescriptions()...)
		}
		if most.cut && len(r.rows) >= most.rows {
			r.cut = true
			continue // to its end, so that the statement takes effect
		}
		row := make([][]byte, len(reader.Values()))
		held := int64(len(row)) * cellOverhead
		for i, v := range reader.Values() {
			if v != nil {
				row[i] = append(make([]byte, 0, len(v)), v...)
				held += int64(len(v))
				most.bytes -= int64(len(v))
			}
		}
		switch {
		case most.bytes < 0:
			refused = errTooLarge
		case len(r.rows) >= most.rows:
			refused = errTooMany
		default:
			refused = account.Take(held)
		}
		if refused != nil {
			cancel() // the rest is not read: the connection is given up
			break
		}
		r.rows = append(r.rows, row)
	}
	if r.fields == nil {
		r.fields = append(r.fields, reader.FieldDescriptions()...)
	}
	tag, err := reader.Close()
	r.tag = tag
	if refused != nil {
		return nil, refused
	}
	return r, err
}

// cellOverhead is what a value takes besides its bytes.
const cellOverhead = 32
