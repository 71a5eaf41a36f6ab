package pgedge

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/lib/accept"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// sessionBytes is what a session holds: a buffer for each direction and that of the TLS connection.
const sessionBytes = 3 * bufferSize

const minMockSecret = 16

// Config configures a Server.
type Config struct {
	// Suffix is the domain below which endpoints have their names, "db.example.com".
	Suffix string
	// TLS has the certificate for *.Suffix, in Certificates or GetCertificate. Session tickets are not used, since a
	// resumed connection has no certificate to bind authentication to.
	TLS      *tls.Config
	Resolver Resolver
	// MockSecret makes the salts of roles that do not exist; at least 16 random bytes that stay the same.
	MockSecret []byte
	Limiter    *Limiter
	// Buffers pays for the buffers of sessions; its level is the endpoint. Nil: they are not bounded together.
	Buffers *budget.Pool
	// Observe, if it is set, is called with each event. It must not wait for anything.
	Observe func(Event)
	Log     *slog.Logger
}

// Server is the edge of the PostgreSQL protocol. Make one with New.
type Server struct {
	cfg      Config
	tls      *tls.Config
	limiter  *Limiter
	registry *registry
}

// New returns a server. It does not listen: see Serve.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Suffix == "":
		return nil, errors.New("pgedge: Suffix is empty: set the domain of the endpoints")
	case cfg.TLS == nil || len(cfg.TLS.Certificates) == 0 && cfg.TLS.GetCertificate == nil:
		return nil, errors.New("pgedge: TLS has no certificate")
	case cfg.TLS.GetConfigForClient != nil:
		return nil, errors.New("pgedge: TLS.GetConfigForClient is not supported: set GetCertificate")
	case cfg.Resolver == nil || cfg.Limiter == nil || cfg.Log == nil:
		return nil, errors.New("pgedge: Resolver, Limiter and Log are required")
	case len(cfg.MockSecret) < minMockSecret:
		return nil, fmt.Errorf("pgedge: MockSecret has %d bytes, at least %d are needed",
			len(cfg.MockSecret), minMockSecret)
	}
	t := cfg.TLS.Clone()
	t.NextProtos = []string{alpn}
	t.MinVersion = max(t.MinVersion, tls.VersionTLS12)
	t.SessionTicketsDisabled = true
	return &Server{
		cfg: cfg, tls: t, limiter: cfg.Limiter,
		registry: &registry{keys: map[uint32]*session{}, endpoints: map[string]*sessions{}},
	}, nil
}

// certificate returns the certificate for a handshake.
func (s *Server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s.cfg.TLS.GetCertificate != nil {
		return s.cfg.TLS.GetCertificate(hello)
	}
	all := s.cfg.TLS.Certificates
	for i := range all {
		if hello.SupportsCertificate(&all[i]) == nil {
			return &all[i], nil
		}
	}
	return &all[0], nil
}

// Serve accepts connections until ctx ends, and closes the listener.
//
// Then sessions get Limits.DrainTimeout to end their transactions, and the error 57P01. Serve returns when all
// connections are closed; the error is nil if ctx ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := accept.Server{
		Handle: s.handle,
		Drain: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, s.limiter.limits.DrainTimeout)
			defer cancel()
			s.Disconnect(ctx, "", "the server is shutting down")
		},
		Log: s.cfg.Log.With("server", "databases"),
	}
	return server.Serve(ctx, listener)
}

// observe reports an event.
func (s *Server) observe(e Event) {
	if s.cfg.Observe != nil {
		s.cfg.Observe(e)
	}
}

// handle serves one connection.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	s.start(ctx, &client{server: s, conn: conn, peer: accept.Address(conn.RemoteAddr().String())}, (*client).receive)
}

// ServeCleartext serves a connection that others have encrypted, such as a WebSocket, and closes it.
//
// host is the name that the client connects to. The client sends its password as it is, so that it can send it, and
// its first query, without waiting for the server. Disconnect ends sessions of such connections, too.
func (s *Server) ServeCleartext(ctx context.Context, conn net.Conn, peer netip.Addr, host string) {
	defer conn.Close()
	c := &client{server: s, conn: conn, peer: peer, host: host, clear: true}
	s.start(ctx, c, func(c *client, ctx context.Context) error {
		body, err := readStartup(c.conn)
		if err != nil {
			return errClosed
		}
		if binary.BigEndian.Uint32(body) == codeCancelRequest {
			c.cancel(ctx, body)
			return errClosed
		}
		return c.begin(body)
	})
}

// start serves a client whose startup message receive reads.
func (s *Server) start(ctx context.Context, c *client, receive func(*client, context.Context) error) {
	conn := c.conn
	c.event.Client = c.peer
	half, err := s.limiter.Enter(c.peer)
	if err != nil {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		c.refuse(EventRefused, err)
		return
	}
	defer half.Close()
	starting, cancel := context.WithTimeout(ctx, s.limiter.limits.StartupTimeout)
	defer cancel()
	stop := context.AfterFunc(starting, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends reads and writes
	defer stop()
	if err := receive(c, starting); err != nil {
		c.refuse(EventRefused, err)
		return
	}
	got, err := c.authenticate(starting)
	if err != nil {
		kind := EventRefused
		if own, ok := errors.AsType[*Error](err); ok && own.Code == codePassword {
			kind = EventRejected
		}
		c.refuse(kind, err)
		return
	}
	if got.backend != nil {
		defer got.backend.Conn.Close()
	}
	s.limiter.Succeeded(c.peer, c.event.Endpoint)
	half.Close()
	if !stop() {
		return // the time was up, or the server ends
	}
	if err := s.session(ctx, c, got); err != nil {
		c.refuse(EventFailed, err)
	}
}

// refuse sends a client the error that ends its connection.
func (c *client) refuse(kind EventKind, err error) {
	if errors.Is(err, errClosed) {
		return
	}
	c.event.Kind, c.event.Reason = kind, err.Error()
	c.server.observe(c.event)
	var message []byte
	if own, ok := errors.AsType[*Error](err); ok {
		message = own.encode()
	} else if theirs, ok := errors.AsType[*ServerError](err); ok && theirs.raw != nil {
		message = theirs.raw
	} else {
		c.server.cfg.Log.Warn("a database connection failed", "endpoint", c.event.Endpoint, "err", err)
		message = (&Error{
			Code: codeNotNow, Message: "the database cannot be reached at the moment",
			Hint: "Try again in a few seconds.",
		}).encode()
	}
	_, _ = c.conn.Write(message) // the connection ends in any case
	if c.tls != nil {
		_ = c.tls.Close() // says that nothing was cut off
	}
}

var errServerEnds = &Error{Code: codeShutdown, Message: "the server is shutting down"}

// session gives an authenticated client its session, and returns when that has ended. An error is for the client.
func (s *Server) session(ctx context.Context, c *client, got *access) error {
	most := got.endpoint.Settings().MaxSessions
	if most <= 0 {
		most = s.limiter.limits.SessionsPerEndpoint
	}
	id := c.event.Endpoint
	if !s.registry.take(id, most) {
		return &Error{
			Code: codeTooMany, Message: fmt.Sprintf("the database has %d connections, as many as it may have", most),
			Hint: "Close connections, or connect to the pooler, <id>-pooler.",
		}
	}
	defer s.registry.give(id)
	account := s.cfg.Buffers.Open(id)
	defer account.Close()
	if err := account.Take(sessionBytes); err != nil {
		return &Error{Code: codeTooMany, Message: err.Error(), Hint: "Close connections, or try again later."}
	}
	backend, early, release, err := s.backend(ctx, c, got)
	if err != nil {
		return err
	}
	defer release()
	defer backend.Conn.Close()
	one := &session{
		endpoint: got.endpoint, event: c.event, client: c.conn, early: early, backend: backend,
		began: time.Now(), tx: backend.Tx, done: make(chan struct{}),
	}
	s.registry.add(one, c.hello.minor >= minorVersion)
	defer s.registry.remove(one)
	if ctx.Err() != nil {
		return errServerEnds // Serve may have looked for sessions already
	}
	greeting := append(encode(&pgproto3.AuthenticationOk{}), backend.greeting...)
	greeting = append(greeting, encode(&pgproto3.BackendKeyData{ProcessID: one.pid, SecretKey: one.secret})...)
	greeting = append(greeting, encode(&pgproto3.ReadyForQuery{TxStatus: backend.Tx})...)
	if _, err := c.conn.Write(greeting); err != nil {
		return errClosed
	}
	backend.greeting = nil
	one.touch()
	one.event.Kind = EventOpened
	s.observe(one.event)
	one.run()
	one.event.Kind, one.event.Reason, one.event.Duration = EventClosed, one.reason, time.Since(one.began)
	one.event.BytesIn, one.event.BytesOut = one.bytesIn.Load(), one.bytesOut.Load()
	s.observe(one.event)
	return nil
}

var errClientGone = errors.New("the client closed the connection while its database was woken")

// backend returns the database's side of a session, and what the client said meanwhile. A client that goes away ends
// it. The caller calls release when the session has ended.
func (s *Server) backend(
	ctx context.Context, c *client, got *access,
) (backend *Backend, early []byte, release func(), err error) {
	limit := s.limiter.limits.WakeTimeout
	waking, cancel := context.WithTimeoutCause(ctx, limit, &Error{
		Code: codeNotNow, Message: fmt.Sprintf("the database did not accept connections within %s", limit),
		Hint: "Try again in a few seconds.",
	})
	defer cancel()
	watched, gone := context.WithCancelCause(waking)
	defer gone(nil)
	stop := watch(c.conn, func() { gone(errClientGone) })
	defer func() {
		if early = stop(); err == nil {
			return
		}
		switch cause := context.Cause(watched); {
		case errors.Is(cause, errClientGone):
			err = errClosed
		case ctx.Err() != nil:
			err = errServerEnds
		case cause != nil:
			err = cause
		case errors.Is(err, ErrNoTarget):
			err = &Error{Code: codeNotSupported, Message: fmt.Sprintf("the database has no %s server", got.target)}
		}
	}()
	if release, err = got.endpoint.Acquire(watched); err != nil {
		return nil, nil, nil, err
	}
	if got.backend != nil {
		return got.backend, nil, release, nil
	}
	if backend, err = Connect(watched, got.endpoint, got.target, got.login); err != nil {
		release()
		return nil, nil, nil, err
	}
	return backend, nil, release, nil
}

// Disconnect ends the sessions of an endpoint, or of all with "", and returns when they have ended.
//
// Idle sessions end at once and others when they become idle, or when ctx ends. Clients see reason as the message of
// an error 57P01. The caller sees to it that no new sessions begin, if that matters.
func (s *Server) Disconnect(ctx context.Context, endpoint, reason string) {
	why := &Error{Code: codeShutdown, Message: "terminating connection: " + reason, Hint: "Connect again."}
	var ended sync.WaitGroup
	for _, one := range s.registry.of(endpoint) {
		ended.Go(func() {
			one.end(why, false)
			select {
			case <-one.done:
			case <-ctx.Done():
				one.end(why, true)
				<-one.done
			}
		})
	}
	ended.Wait()
}

// Activity returns what the clients of an endpoint do.
func (s *Server) Activity(endpoint string) Activity {
	s.registry.mu.Lock()
	last := int64(0)
	if e := s.registry.endpoints[endpoint]; e != nil {
		last = e.last
	}
	s.registry.mu.Unlock()
	a := Activity{}
	for _, one := range s.registry.of(endpoint) {
		a.Sessions++
		one.mu.Lock()
		if one.busy() {
			a.Busy++
		}
		one.mu.Unlock()
		a.BytesIn += one.bytesIn.Load()
		a.BytesOut += one.bytesOut.Load()
		last = max(last, one.last.Load())
	}
	if last > 0 {
		a.Last = time.Unix(0, last)
	}
	return a
}
