package pgedge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/lib/scram"
)

// Codes of startup packets.
const (
	codeSSLRequest    = 80877103
	codeGSSENCRequest = 80877104
	codeCancelRequest = 80877102
)

const (
	alpn         = "postgresql"
	tlsHandshake = 0x16 // first byte of a TLS connection
	maxSASL      = scram.MaxMessage + 64
)

// client is a connection from the network until its session begins.
type client struct {
	server *Server
	conn   net.Conn // the TLS connection, once there is one
	peer   netip.Addr
	tls    *tls.Conn
	host   string            // server name that the client connects to, "" if it is not known
	clear  bool              // the transport is encrypted by others, and the password is sent as it is
	leaf   *x509.Certificate // that the client was shown
	hello  startup
	event  Event // what is known of the client
}

// errClosed ends a connection without another message to the client.
var errClosed = errors.New("the connection is finished")

// receive reads until the client has sent a startup message over TLS. Cancel requests are handled here.
func (c *client) receive(ctx context.Context) error {
	var first [1]byte
	if _, err := io.ReadFull(c.conn, first[:]); err != nil {
		return errClosed
	}
	c.conn = &prefixed{Conn: c.conn, prefix: first[:]}
	if first[0] == tlsHandshake {
		if err := c.startTLS(ctx, c.conn); err != nil {
			return err
		}
		if c.tls.ConnectionState().NegotiatedProtocol != alpn {
			return &Error{
				Code:    codeProtocol,
				Message: "a direct TLS connection was made without the ALPN protocol " + alpn,
				Hint:    "Use a client that supports sslnegotiation=direct, or leave out that parameter.",
			}
		}
	}
	for refusedGSS := false; ; {
		body, err := readStartup(c.conn)
		if err != nil {
			return errClosed // a port scanner, or a client that went away
		}
		switch code := binary.BigEndian.Uint32(body); {
		case code == codeSSLRequest && c.tls == nil && len(body) == 4:
			if _, err := c.conn.Write([]byte{'S'}); err != nil {
				return errClosed
			}
			// Bytes that the client sent before it read the reply are taken for a part of the handshake, and break it.
			if err := c.startTLS(ctx, c.conn); err != nil {
				return err
			}
		case code == codeGSSENCRequest && c.tls == nil && !refusedGSS && len(body) == 4:
			refusedGSS = true
			if _, err := c.conn.Write([]byte{'N'}); err != nil {
				return errClosed
			}
		case code == codeCancelRequest:
			c.cancel(ctx, body)
			return errClosed
		case code == codeSSLRequest || code == codeGSSENCRequest:
			return &Error{Code: codeProtocol, Message: "encryption was requested twice"}
		default:
			return c.begin(body)
		}
	}
}

// begin parses the startup message and replies to what it asks of the protocol.
func (c *client) begin(body []byte) error {
	hello, err := parseStartup(body)
	if err != nil {
		if c.tls == nil && !c.clear && binary.BigEndian.Uint32(body)>>16 == majorVersion {
			err = errNoTLS
		}
		if own, ok := errors.AsType[*Error](err); ok {
			return own
		}
		return &Error{Code: codeProtocol, Message: errMalformed.Error()}
	}
	if c.tls == nil && !c.clear {
		return errNoTLS
	}
	c.hello = hello
	c.event.Role, c.event.Database = hello.params["user"], hello.params["database"]
	if !hello.negotiate {
		return nil
	}
	if _, err := c.conn.Write(hello.negotiation()); err != nil {
		return errClosed
	}
	return nil
}

var errNoTLS = &Error{
	Code: codeAuthorization, Message: "the connection is not encrypted, and this server requires TLS",
	Hint: "Connect with sslmode=require, or with sslmode=verify-full and the server's certificate authority.",
}

// startTLS performs the handshake of a TLS server on conn.
func (c *client) startTLS(ctx context.Context, conn net.Conn) error {
	cfg := c.server.tls.Clone()
	cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := c.server.certificate(hello)
		if err != nil {
			return nil, err
		}
		if c.leaf = cert.Leaf; c.leaf == nil {
			c.leaf, err = x509.ParseCertificate(cert.Certificate[0])
		}
		return cert, err
	}
	secure := tls.Server(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return errClosed // TLS has sent its own alert
	}
	c.tls, c.conn, c.host = secure, secure, secure.ConnectionState().ServerName
	return nil
}

// prefixed is a connection whose first bytes were read already.
type prefixed struct {
	net.Conn
	prefix []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.prefix) > 0 {
		n := copy(b, p.prefix)
		p.prefix = p.prefix[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// access is what a client got by authenticating.
type access struct {
	endpoint Endpoint
	target   Target
	login    Login
	backend  *Backend // of a role that authenticated to the database itself
}

// authenticate finds the endpoint that the client wants and checks the client's password.
func (c *client) authenticate(ctx context.Context) (*access, error) {
	address, options, err := findEndpoint(c.host, c.server.cfg.Suffix, c.hello.params["options"])
	if err != nil {
		return nil, &Error{Code: codeAuthorization, Message: err.Error()}
	}
	if delete(c.hello.params, "options"); options != "" {
		c.hello.params["options"] = options
	}
	c.event.Endpoint, c.event.Target = address.Endpoint, address.Target
	if err := c.server.limiter.Check(c.peer, address.Endpoint); err != nil {
		return nil, err
	}
	name := c.hello.params["user"]
	endpoint, role, err := Find(ctx, c.server.cfg.Resolver, address.Endpoint, name)
	if err != nil {
		return nil, err
	}
	got := &access{endpoint: endpoint, target: address.Target, login: Login{Parameters: c.hello.params}}
	allowed := endpoint != nil && endpoint.Settings().Allows(c.peer)
	if role.Verifier == "" && role.PassThrough && !c.clear && allowed && endpoint.Settings().Running {
		got.backend, err = c.passThrough(ctx, got)
		return got, err
	}
	verifier := scram.Mock(c.server.cfg.MockSecret, address.Endpoint, name)
	if role.Verifier != "" {
		if verifier, err = scram.ParseVerifier(role.Verifier); err != nil {
			return nil, &Error{Code: codeInternal, Message: "the stored verifier of the role is malformed"}
		}
	}
	prove := c.exchange
	if c.clear {
		prove = c.cleartext
	}
	if got.login.Keys, err = prove(verifier); err != nil {
		return nil, c.rejected(err)
	}
	if !allowed {
		return nil, NotAllowed(c.peer)
	}
	return got, nil
}

// NotAllowed returns the error of a client with the right password whose address may not connect.
func NotAllowed(client netip.Addr) error {
	return &Error{
		Code: codeAuthorization, Message: "this database does not accept connections from " + client.String(),
		Hint: "Add the address to the networks that are allowed for the database.",
	}
}

// Find returns an endpoint and one of its roles. The zero values stand for an endpoint or role that does not exist.
func Find(ctx context.Context, r Resolver, id, role string) (Endpoint, Role, error) {
	e, err := r.Endpoint(ctx, id)
	if errors.Is(err, ErrNoEndpoint) {
		return nil, Role{}, nil
	}
	if err == nil {
		var found Role
		if found, err = e.Role(ctx, role); err == nil {
			return e, found, nil
		}
		if errors.Is(err, ErrNoRole) {
			return e, Role{}, nil
		}
	}
	return nil, Role{}, &Error{
		Code: codeNotNow, Message: "the database cannot be looked up at the moment",
		Hint: "Try again in a few seconds.",
	}
}

// rejected records a login that failed and returns the error for the client.
func (c *client) rejected(err error) error {
	if !errors.Is(err, scram.ErrRejected) {
		return err
	}
	c.server.limiter.Failed(c.peer, c.event.Endpoint)
	return WrongPassword(c.hello.params["user"])
}

// WrongPassword returns the error of a login whose endpoint, role or password is wrong.
func WrongPassword(role string) error {
	return &Error{
		Code:    codePassword,
		Message: `password authentication failed for user "` + role + `"`,
		Hint: "Check the database's host name, the user and the password. A database that sleeps is not woken by a " +
			"user that was made with SQL and that the platform does not know.",
	}
}

// exchange authenticates the client with a verifier.
func (c *client) exchange(v scram.Verifier) (scram.Keys, error) {
	binding := []byte(nil)
	if c.leaf != nil {
		binding = scram.EndpointBinding(c.leaf)
	}
	x, err := scram.NewExchange(v, binding)
	if err != nil {
		return scram.Keys{}, err
	}
	if _, err := c.conn.Write(encode(&pgproto3.AuthenticationSASL{AuthMechanisms: x.Mechanisms()})); err != nil {
		return scram.Keys{}, errClosed
	}
	body, err := c.password()
	if err != nil {
		return scram.Keys{}, err
	}
	var initial pgproto3.SASLInitialResponse
	if err := initial.Decode(body); err != nil {
		return scram.Keys{}, badSASL(err)
	}
	challenge, err := x.First(initial.AuthMechanism, initial.Data)
	if err != nil {
		return scram.Keys{}, badSASL(err)
	}
	if _, err := c.conn.Write(encode(&pgproto3.AuthenticationSASLContinue{Data: challenge})); err != nil {
		return scram.Keys{}, errClosed
	}
	if body, err = c.password(); err != nil {
		return scram.Keys{}, err
	}
	final, keys, err := x.Final(body)
	if errors.Is(err, scram.ErrRejected) {
		return scram.Keys{}, err
	}
	if err != nil {
		return scram.Keys{}, badSASL(err)
	}
	if _, err := c.conn.Write(encode(&pgproto3.AuthenticationSASLFinal{Data: final})); err != nil {
		return scram.Keys{}, errClosed
	}
	return keys, nil
}

func badSASL(err error) error {
	return &Error{Code: codeProtocol, Message: "SCRAM authentication: " + err.Error()}
}

// password reads a message of an authentication.
func (c *client) password() ([]byte, error) {
	kind, body, err := readMessage(c.conn, maxSASL)
	if err != nil {
		return nil, errClosed
	}
	if kind != 'p' {
		return nil, &Error{Code: codeProtocol, Message: "expected a SASL response"}
	}
	return body, nil
}

// passThrough logs into the database with what the client and the database say to each other.
func (c *client) passThrough(ctx context.Context, a *access) (*Backend, error) {
	proved := false
	backend, err := open(ctx, a.endpoint, a.target, a.login.Parameters, func(b *Backend, body []byte) error {
		offer := body
		switch authType(body) {
		case pgproto3.AuthTypeOk:
			if !proved {
				return &Error{Code: codeAuthorization, Message: "the database does not ask this role for a password",
					Hint: "Use scram-sha-256 in pg_hba.conf."}
			}
			return nil
		case pgproto3.AuthTypeSASL:
			var m pgproto3.AuthenticationSASL
			if err := m.Decode(body); err != nil || !slices.Contains(m.AuthMechanisms, scram.Mechanism) {
				return errNotSCRAM
			}
			offer = encode(&pgproto3.AuthenticationSASL{AuthMechanisms: []string{scram.Mechanism}})[5:]
		case pgproto3.AuthTypeSASLContinue:
		case pgproto3.AuthTypeSASLFinal:
			proved = true
		default:
			return errNotSCRAM
		}
		if _, err := c.conn.Write(frame('R', offer)); err != nil || proved {
			return err
		}
		reply, err := c.password()
		if err != nil {
			return err
		}
		_, err = b.Conn.Write(frame('p', reply))
		return err
	})
	if own, ok := errors.AsType[*ServerError](err); ok && own.Code == codePassword {
		return nil, c.rejected(scram.ErrRejected)
	}
	return backend, err
}

var errNotSCRAM = &Error{
	Code: codeAuthorization, Message: "the database does not authenticate this role with SCRAM-SHA-256",
	Hint: "Set password_encryption to scram-sha-256, and set the role's password again.",
}

// cancel handles a cancel request. The client gets no reply, whatever becomes of it.
func (c *client) cancel(ctx context.Context, body []byte) {
	var m pgproto3.CancelRequest
	if m.Decode(body) != nil || c.server.limiter.Check(c.peer, "") != nil {
		return
	}
	one := c.server.registry.find(m.ProcessID, m.SecretKey)
	if one == nil {
		c.server.limiter.Failed(c.peer, "")
		return
	}
	if c.host != "" {
		if a, ok := ParseHost(c.host, c.server.cfg.Suffix); ok && a.Endpoint != one.event.Endpoint {
			return // a key of another database
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.server.limiter.limits.StartupTimeout)
	defer cancel()
	if err := Cancel(ctx, one.endpoint, one.event.Target, one.backend.PID, one.backend.Secret); err == nil {
		event := one.event
		event.Kind, event.Client = EventCanceled, c.peer
		c.server.observe(event)
	}
}

// watch reads from a client that has nothing to say until its session begins, so that gone is called when it goes away.
// stop ends that and returns what the client did say.
func watch(conn net.Conn, gone func()) (stop func() []byte) {
	early := make([]byte, startBuffer)
	n, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		var err error
		if n, err = conn.Read(early); err != nil && !isTimeout(err) {
			gone()
		}
	}()
	return func() []byte {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the read
		<-done
		_ = conn.SetReadDeadline(time.Time{})
		return early[:n]
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
