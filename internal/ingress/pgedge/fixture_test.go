package pgedge_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

const (
	suffix   = "db.test"
	password = "correct horse"
)

// limit is how long a test waits for what has to happen.
const limit = 30 * time.Second

// certificate returns a certificate for every endpoint, and the pool that trusts it.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"*." + suffix}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pool
}

// database is a fake database: an endpoint, and a server of the protocol behind it.
type database struct {
	listener net.Listener

	mu       sync.Mutex
	settings pgedge.Settings
	roles    map[string]pgedge.Role
	verifier map[string]scram.Verifier // by role, of the server itself; none: the server trusts
	wakes    int
	uses     int
	touches  int
	wake     func(ctx context.Context) error // if it is set
	cancels  []pgproto3.CancelRequest
	params   []map[string]string // of the sessions that began
	hang     chan struct{}       // ends the query "hang"
	hanging  chan struct{}       // receives when "hang" began
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := scram.NewVerifier(password, []byte("saltsaltsaltsalt"), scram.DefaultIterations)
	if err != nil {
		t.Fatal(err)
	}
	d := &database{
		listener: l, settings: pgedge.Settings{Running: true},
		roles:    map[string]pgedge.Role{"owner": {Verifier: v.String()}, "sql": {PassThrough: true}},
		verifier: map[string]scram.Verifier{"owner": v, "sql": v},
		hang:     make(chan struct{}), hanging: make(chan struct{}, 100),
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				d.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return d
}

func (d *database) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *database) Settings() pgedge.Settings {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings
}

func (d *database) Role(_ context.Context, name string) (pgedge.Role, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.roles[name]
	if !ok {
		return r, pgedge.ErrNoRole
	}
	return r, nil
}

func (d *database) Acquire(ctx context.Context) (func(), error) {
	d.mu.Lock()
	wake := d.wake
	if !d.settings.Running {
		d.wakes++
	}
	d.mu.Unlock()
	if wake != nil {
		if err := wake(ctx); err != nil {
			return nil, err
		}
	}
	d.change(func() { d.uses++ })
	return func() { d.change(func() { d.uses-- }) }, nil
}

func (d *database) Dial(ctx context.Context, target pgedge.Target) (net.Conn, error) {
	if target == pgedge.ReadOnly || target == pgedge.ReadOnlyPooler {
		return nil, pgedge.ErrNoTarget
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", d.listener.Addr().String())
}

func (d *database) Touch() { d.change(func() { d.touches++ }) }

// serve is the server of the protocol.
func (d *database) serve(c net.Conn) {
	b := pgproto3.NewBackend(c, c)
	first, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if cancel, ok := first.(*pgproto3.CancelRequest); ok {
		d.change(func() { d.cancels = append(d.cancels, *cancel) })
		return
	}
	hello, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	d.mu.Lock()
	v, scrambled := d.verifier[hello.Parameters["user"]]
	d.mu.Unlock()
	if scrambled && !d.authenticate(b, v) {
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "the database says no"})
		_ = b.Flush()
		return
	}
	d.change(func() { d.params = append(d.params, hello.Parameters) })
	if hello.Parameters["database"] == "missing" {
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "3D000", Message: `database "missing" does not exist`})
		_ = b.Flush()
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "16.14"})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 7, SecretKey: []byte{1, 2, 3, 4}})
	d.queries(c, b)
}

func (d *database) authenticate(b *pgproto3.Backend, v scram.Verifier) bool {
	x, err := scram.NewExchange(v, nil)
	if err != nil {
		return false
	}
	b.Send(&pgproto3.AuthenticationSASL{AuthMechanisms: []string{scram.Mechanism}})
	_ = b.Flush()
	_ = b.SetAuthType(pgproto3.AuthTypeSASL)
	m, err := b.Receive()
	initial, ok := m.(*pgproto3.SASLInitialResponse)
	if err != nil || !ok {
		return false
	}
	challenge, err := x.First(initial.AuthMechanism, bytes.Clone(initial.Data))
	if err != nil {
		return false
	}
	b.Send(&pgproto3.AuthenticationSASLContinue{Data: challenge})
	_ = b.Flush()
	_ = b.SetAuthType(pgproto3.AuthTypeSASLContinue)
	m, err = b.Receive()
	proof, ok := m.(*pgproto3.SASLResponse)
	if err != nil || !ok {
		return false
	}
	final, _, err := x.Final(bytes.Clone(proof.Data))
	if err != nil {
		return false
	}
	b.Send(&pgproto3.AuthenticationSASLFinal{Data: final})
	return true
}

// queries handles simple queries: the size of the text is the tag of the reply.
func (d *database) queries(c net.Conn, b *pgproto3.Backend) {
	status := byte('I')
	for {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: status})
		if b.Flush() != nil {
			return
		}
		m, err := b.Receive()
		q, ok := m.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		switch q.String {
		case "begin":
			status = 'T'
		case "commit":
			status = 'I'
		case "hang":
			d.hanging <- struct{}{}
			<-d.hang
		case "die":
			return
		case "die in a message":
			_, _ = c.Write([]byte{'D', 0, 0, 1, 0, 0, 1})
			return
		}
		b.Send(&pgproto3.CommandComplete{CommandTag: fmt.Appendf(nil, "SELECT %d", len(q.String))})
	}
}

// edge is a running edge with one database, "one".
type edge struct {
	*pgedge.Server
	db      *database
	address string
	roots   *x509.CertPool
	stop    context.CancelFunc // ends Serve
	stopped chan error         // receives what Serve returned

	mu     sync.Mutex
	events []pgedge.Event
}

func (e *edge) Endpoint(_ context.Context, id string) (pgedge.Endpoint, error) {
	if id != "one" {
		return nil, pgedge.ErrNoEndpoint
	}
	return e.db, nil
}

func start(t testing.TB, change ...func(*pgedge.Config, *pgedge.Limits)) *edge {
	t.Helper()
	cert, roots := certificate(t)
	e := &edge{db: newDatabase(t), roots: roots, stopped: make(chan error, 1)}
	limits := pgedge.Limits{}
	cfg := pgedge.Config{
		Suffix: suffix, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, Resolver: e,
		MockSecret: []byte("0123456789abcdef"), Log: quiet,
		Observe: func(event pgedge.Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, event)
		},
	}
	for _, f := range change {
		f(&cfg, &limits)
	}
	cfg.Limiter = pgedge.NewLimiter(limits)
	var err error
	if e.Server, err = pgedge.New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	e.stop = cancel
	go func() { e.stopped <- e.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		e.db.mu.Lock()
		select {
		case <-e.db.hang:
		default:
			close(e.db.hang)
		}
		e.db.mu.Unlock()
		select {
		case err := <-e.stopped:
			if err != nil {
				t.Errorf("Serve() = %v", err)
			}
		case <-time.After(limit):
			t.Error("Serve does not return")
		}
	})
	return e
}

// kinds returns the kinds of the events so far.
func (e *edge) kinds() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	for _, one := range e.events {
		all = append(all, string(one.Kind))
	}
	return strings.Join(all, " ")
}

func (e *edge) last() pgedge.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events[len(e.events)-1]
}

// config returns the configuration of a client.
func (e *edge) config(t testing.TB, user, pass, host string) *pgconn.Config {
	t.Helper()
	cfg, err := pgconn.ParseConfig("postgres://x@127.0.0.1/app?sslmode=require&min_protocol_version=3.0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password, cfg.Host = user, pass, host
	cfg.TLSConfig = &tls.Config{RootCAs: e.roots, ServerName: host}
	if host == "" {
		cfg.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a client without server name
		cfg.Host = "127.0.0.1"
	}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	addr := netip.MustParseAddrPort(e.address)
	cfg.Port = addr.Port()
	cfg.Fallbacks = nil
	return cfg
}

// connect opens a session.
func (e *edge) connect(t testing.TB, change ...func(*pgconn.Config)) (*pgconn.PgConn, error) {
	t.Helper()
	cfg := e.config(t, "owner", password, "one."+suffix)
	for _, f := range change {
		f(cfg)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	}
	return conn, err
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)
