package pgedge_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// want checks that a client was refused with an error.
func want(t *testing.T, err error, code, part string) {
	t.Helper()
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Code != code || !strings.Contains(e.Message+" "+e.Hint, part) {
		t.Errorf("got error %v, want SQLSTATE %s with %q", err, code, part)
	}
}

func query(t *testing.T, conn *pgconn.PgConn, sql, tag string) {
	t.Helper()
	got, err := conn.Exec(t.Context(), sql).ReadAll()
	if err != nil || len(got) != 1 || got[0].CommandTag.String() != tag {
		t.Fatalf("Exec(%.20q) = %v, %v, want %s", sql, got, err, tag)
	}
}

func TestSession(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t, func(c *pgconn.Config) { c.RuntimeParams["application_name"] = "tests" })
	if err != nil {
		t.Fatal(err)
	}
	if v := conn.ParameterStatus("server_version"); v != "16.14" {
		t.Errorf("server_version is %q, want that of the database", v)
	}
	query(t, conn, "12345", "SELECT 5")
	a := e.Activity("one")
	if a.Sessions != 1 || a.BytesIn == 0 || a.BytesOut == 0 || time.Since(a.Last) > limit {
		t.Errorf("Activity() = %+v, want a session that moved bytes", a)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the session ends", func() bool { return e.kinds() == "opened closed" })
	got := e.last()
	if got.Role != "owner" || got.Database != "app" || got.Endpoint != "one" || got.BytesIn == 0 ||
		got.Reason != "the client closed the connection" || got.Client != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("the session ended with %+v", got)
	}
	until(t, "the database is not in use", func() bool {
		e.db.mu.Lock()
		defer e.db.mu.Unlock()
		return e.db.uses == 0
	})
	e.db.change(func() {
		if e.db.touches == 0 {
			t.Error("the database was not touched by the session")
		}
		if p := e.db.params[0]; p["application_name"] != "tests" || p["user"] != "owner" || p["database"] != "app" {
			t.Errorf("the database got the parameters %v", p)
		}
	})
	if a := e.Activity("one"); a.Sessions != 0 || a.Last.IsZero() {
		t.Errorf("Activity() = %+v after the session", a)
	}
}

// A client that asks for channel binding gets it, and a certificate of somebody in between is noticed.
func TestChannelBinding(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t, func(c *pgconn.Config) { c.ChannelBinding = "require" })
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")

	other, _ := certificate(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{other}, NextProtos: []string{"postgresql"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends TLS and begins it again
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		to, err := tls.Dial("tcp", e.address, &tls.Config{
			RootCAs: e.roots, ServerName: "one." + suffix, NextProtos: []string{"postgresql"},
		})
		if err != nil {
			return
		}
		defer to.Close()
		go func() { _, _ = io.Copy(to, c) }()
		_, _ = io.Copy(c, to)
	}()
	_, err = e.connect(t, func(c *pgconn.Config) {
		c.ChannelBinding, c.SSLNegotiation = "require", "direct"
		c.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
		c.TLSConfig = &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // what channel binding is for
			ServerName:         "one." + suffix, NextProtos: []string{"postgresql"},
		}
	})
	want(t, err, "08P01", "channel binding")
}

// Names that do not exist, addresses that may not connect and wrong passwords differ in nothing but the password.
func TestNamesCannotBeEnumerated(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.FreeFailures = 100 })
	e.db.change(func() { e.db.settings.Running = false })
	seen := map[string]bool{}
	for _, who := range []struct{ user, host string }{
		{"owner", "one."}, {"owner", "one-pooler."}, {"stranger", "one."}, {"owner", "two."}, {"sql", "one."},
	} {
		_, err := e.connect(t, func(c *pgconn.Config) {
			c.User, c.Password, c.Host = who.user, "wrong", who.host+suffix
			c.TLSConfig.ServerName = c.Host
		})
		want(t, err, "28P01", `password authentication failed for user "`+who.user+`"`)
		salts := transcript(t, e, who.user, who.host+suffix)
		again := transcript(t, e, who.user, who.host+suffix)
		if salts != again {
			t.Errorf("%v is offered %q, and then %q", who, salts, again)
		}
		seen[salts] = true
	}
	// The salts of one-pooler and one are those of one role; all others differ.
	if len(seen) != 4 {
		t.Errorf("%d different exchanges, want one for each name", len(seen))
	}
	e.db.change(func() {
		if e.db.wakes != 0 || len(e.db.params) != 0 {
			t.Errorf("the database was woken %d times by clients without password", e.db.wakes)
		}
	})
}

// transcript returns what a client is offered, without nonces.
func transcript(t *testing.T, e *edge, user, host string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", e.address, &tls.Config{
		RootCAs: e.roots, ServerName: host, NextProtos: []string{"postgresql"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := pgproto3.NewFrontend(conn, conn)
	f.Send(&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user},
	})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := f.Receive()
	offer, ok := m.(*pgproto3.AuthenticationSASL)
	if err != nil || !ok {
		t.Fatalf("got %#v, %v, want an offer of SASL", m, err)
	}
	mechanisms := strings.Join(offer.AuthMechanisms, " ")
	f.Send(&pgproto3.SASLInitialResponse{AuthMechanism: scram.Mechanism, Data: []byte("n,,n=,r=abc")})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err = f.Receive()
	first, ok := m.(*pgproto3.AuthenticationSASLContinue)
	if err != nil || !ok {
		t.Fatalf("got %#v, %v, want a challenge", m, err)
	}
	_, rest, _ := strings.Cut(string(first.Data), ",")
	return mechanisms + " " + rest
}

func TestWakeAfterAuthentication(t *testing.T) {
	e := start(t)
	e.db.change(func() { e.db.settings.Running = false })
	conn, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")
	e.db.change(func() {
		if e.db.wakes != 1 || e.db.uses != 1 {
			t.Errorf("%d wakes and %d uses, want one of each", e.db.wakes, e.db.uses)
		}
	})
}

// A client that goes away while its database is woken ends the wake.
func TestClientGoneDuringWake(t *testing.T) {
	e := start(t)
	waking, ended := make(chan struct{}), make(chan struct{})
	e.db.change(func() {
		e.db.wake = func(ctx context.Context) error {
			close(waking)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-waking
		cancel()
	}()
	if _, err := pgconn.ConnectConfig(ctx, e.config(t, "owner", password, "one."+suffix)); err == nil {
		t.Error("connected without a database")
	}
	select {
	case <-ended:
	case <-time.After(limit):
		t.Error("the wake goes on without the client")
	}
}

var (
	nameless  = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a client without server name
	elsewhere = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
)

func TestRefusals(t *testing.T) {
	e := start(t)
	for _, test := range []struct {
		name       string
		change     func(*pgconn.Config)
		set        func()
		code, part string
	}{
		{name: "no-endpoint", change: func(c *pgconn.Config) { c.TLSConfig = nameless.Clone() },
			code: "28000", part: "options=endpoint%3D<id>"},
		{name: "other-endpoint", change: func(c *pgconn.Config) { c.RuntimeParams["options"] = "endpoint=two" },
			code: "28000", part: `of database "one" and the option endpoint of "two"`},
		{name: "missing-database", change: func(c *pgconn.Config) { c.Database = "missing" },
			code: "3D000", part: "missing"},
		{name: "no-replica", change: func(c *pgconn.Config) { c.TLSConfig.ServerName = "one-ro." + suffix },
			code: "0A000", part: "no read-only server"},
		{name: "no-replica-pooler",
			change: func(c *pgconn.Config) { c.TLSConfig.ServerName = "one-ro-pooler." + suffix },
			code:   "0A000", part: "no read-only"},
		{name: "network", set: func() { e.db.settings.Networks = elsewhere },
			code: "28000", part: "does not accept connections from 127.0.0.1"},
		{name: "network-wrong-password", change: func(c *pgconn.Config) { c.Password = "wrong" },
			set:  func() { e.db.settings.Networks = elsewhere },
			code: "28P01", part: "password"},
		{name: "wake-fails", set: func() {
			e.db.wake = func(context.Context) error { return errors.New("secret detail") }
		}, code: "57P03", part: "cannot be reached"},
		{name: "wake-says-why", set: func() {
			e.db.wake = func(context.Context) error { return &pgedge.Error{Code: "53100", Message: "the disk is full"} }
		}, code: "53100", part: "the disk is full"},
		{name: "stale-verifier", set: func() { e.db.verifier["owner"] = scram.Mock(nil, "changed by SQL") },
			code: "28P01", part: "the database says no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			settings, verifier := e.db.settings, e.db.verifier["owner"]
			e.db.change(func() {
				if test.set != nil {
					test.set()
				}
			})
			_, err := e.connect(t, func(c *pgconn.Config) {
				if test.change != nil {
					test.change(c)
				}
			})
			want(t, err, test.code, test.part)
			if err != nil && strings.Contains(err.Error(), "secret detail") {
				t.Error("the client sees an internal error")
			}
			e.db.change(func() { e.db.settings, e.db.verifier["owner"], e.db.wake = settings, verifier, nil })
		})
	}
	e.db.change(func() {
		if e.db.uses != 0 {
			t.Errorf("%d uses are left", e.db.uses)
		}
	})
}

// Clients without server name name the endpoint in the options, which the database does not see.
func TestEndpointOption(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t, func(c *pgconn.Config) {
		c.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // no name to verify
		c.RuntimeParams["options"] = "-c search_path=a\\ b endpoint=one-pooler -c work_mem=4MB"
	})
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")
	e.db.change(func() {
		if got := e.db.params[0]["options"]; got != "-c search_path=a\\ b -c work_mem=4MB" {
			t.Errorf("the database got the options %q", got)
		}
	})
}

// What a connection without TLS gets, byte by byte.
func TestRawConnections(t *testing.T) {
	e := start(t)
	ssl := []byte{0, 0, 0, 8, 4, 210, 22, 47}
	gss := []byte{0, 0, 0, 8, 4, 210, 22, 48}
	hello, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "owner"},
	}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		send  []byte
		reply string // that the reply begins with
		code  string // of the error that follows; "": the connection is closed
	}{
		{name: "startup", send: hello, code: "28000"},
		{name: "http", send: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{name: "nothing"},
		{name: "huge", send: []byte{0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0}},
		{name: "tiny", send: []byte{0, 0, 0, 4}},
		{name: "gss-then-startup", send: append(bytes.Clone(gss), hello...), reply: "N", code: "28000"},
		{name: "gss-twice", send: append(bytes.Clone(gss), gss...), reply: "N", code: "08P01"},
		{name: "ssl-and-injected", send: append(bytes.Clone(ssl), hello...), reply: "S"},
		{name: "version-2", send: []byte{0, 0, 0, 9, 0, 2, 0, 0, 0}, code: "0A000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", e.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(test.send); err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite() // fails if the edge has closed it
			got, err := io.ReadAll(conn)
			rest, ok := strings.CutPrefix(string(got), test.reply)
			if !ok {
				t.Fatalf("got %q, want it to begin with %q", got, test.reply)
			}
			if test.code == "" {
				if strings.Contains(rest, "FATAL") {
					t.Errorf("got %q (%v), want the connection to be closed", rest, err)
				}
				return
			}
			if !strings.HasPrefix(rest, "E") || !strings.Contains(rest, "C"+test.code+"\x00") {
				t.Errorf("got %q, want an error %s", rest, test.code)
			}
		})
	}
}

func TestDirectTLS(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t, func(c *pgconn.Config) {
		c.SSLNegotiation = "direct"
		c.TLSConfig.NextProtos = []string{"postgresql"}
	})
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")

	raw, err := tls.Dial("tcp", e.address, &tls.Config{RootCAs: e.roots, ServerName: "one." + suffix})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	got, err := io.ReadAll(raw)
	if err != nil || !bytes.Contains(got, []byte("C08P01\x00")) || !bytes.Contains(got, []byte("ALPN")) {
		t.Errorf("direct TLS without ALPN: %q, %v", got, err)
	}
	if _, err := tls.Dial("tcp", e.address, &tls.Config{
		RootCAs: e.roots, ServerName: "one." + suffix, NextProtos: []string{"h2"},
	}); err == nil {
		t.Error("a client of another protocol was accepted")
	}
}

func TestCancel(t *testing.T) {
	for _, version := range []string{"3.0", "3.2"} {
		t.Run(version, func(t *testing.T) {
			e := start(t)
			conn, err := e.connect(t, func(c *pgconn.Config) { c.MaxProtocolVersion = version })
			if err != nil {
				t.Fatal(err)
			}
			if n, want := len(conn.SecretKey()), map[string]int{"3.0": 4, "3.2": 32}[version]; n != want {
				t.Errorf("the client's secret has %d bytes, want %d", n, want)
			}
			result := make(chan error, 1)
			go func() {
				_, err := conn.Exec(t.Context(), "hang").ReadAll()
				result <- err
			}()
			<-e.db.hanging
			if a := e.Activity("one"); a.Busy != 1 {
				t.Errorf("Activity() = %+v while a query runs", a)
			}
			other, err := e.connect(t)
			if err != nil {
				t.Fatal(err)
			}
			wrong := bytes.Clone(conn.SecretKey())
			wrong[0] ^= 1
			for _, key := range []pgproto3.CancelRequest{
				{ProcessID: conn.PID(), SecretKey: wrong}, {ProcessID: 7, SecretKey: []byte{1, 2, 3, 4}},
				{ProcessID: conn.PID(), SecretKey: other.SecretKey()},
			} {
				sendCancel(t, e, key)
			}
			if err := conn.CancelRequest(t.Context()); err != nil {
				t.Fatal(err)
			}
			until(t, "the request reaches the database", func() bool {
				e.db.mu.Lock()
				defer e.db.mu.Unlock()
				return len(e.db.cancels) > 0
			})
			e.db.change(func() {
				if len(e.db.cancels) != 1 || e.db.cancels[0].ProcessID != 7 ||
					!bytes.Equal(e.db.cancels[0].SecretKey, []byte{1, 2, 3, 4}) {
					t.Errorf("the database got %+v, want its own key once", e.db.cancels)
				}
				close(e.db.hang)
			})
			if err := <-result; err != nil {
				t.Error(err)
			}
		})
	}
}

// sendCancel sends a cancel request without TLS, as old clients do, and waits until the edge has closed it.
func sendCancel(t *testing.T, e *edge, key pgproto3.CancelRequest) {
	t.Helper()
	raw, err := net.Dial("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	request, err := key.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write(request); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(raw); len(got) != 0 {
		t.Errorf("a cancel request got %q", got)
	}
}

// A role that the edge knows nothing of proves its password to the database, if that runs.
func TestPassThrough(t *testing.T) {
	e := start(t)
	as := func(pass string) func(*pgconn.Config) {
		return func(c *pgconn.Config) { c.User, c.Password = "sql", pass }
	}
	conn, err := e.connect(t, as(password))
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")
	_, err = e.connect(t, as("wrong"))
	want(t, err, "28P01", `password authentication failed for user "sql"`)
	e.db.change(func() { delete(e.db.verifier, "sql") }) // pg_hba.conf says trust
	_, err = e.connect(t, as("wrong"))
	want(t, err, "28000", "does not ask this role for a password")
	e.db.change(func() {
		if e.db.uses != 1 {
			t.Errorf("%d uses, want that of the one session", e.db.uses)
		}
	})
}

// A client may ask for more than the edge speaks, and hears what it gets.
func TestNegotiation(t *testing.T) {
	e := start(t)
	conn, err := tls.Dial("tcp", e.address, &tls.Config{
		RootCAs: e.roots, ServerName: "one." + suffix, NextProtos: []string{"postgresql"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := append(binary.BigEndian.AppendUint32(nil, 3<<16|9999), "user\x00owner\x00_pq_.grease\x001\x00\x00"...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)); err != nil {
		t.Fatal(err)
	}
	m, err := pgproto3.NewFrontend(conn, conn).Receive()
	got, ok := m.(*pgproto3.NegotiateProtocolVersion)
	if err != nil || !ok || got.NewestMinorProtocol != pgproto3.ProtocolVersion32 ||
		len(got.UnrecognizedOptions) != 1 || got.UnrecognizedOptions[0] != "_pq_.grease" {
		t.Errorf("got %#v, %v, want version 3.2 without the option", m, err)
	}
}

// Failed logins of an address at an endpoint are followed by a pause; other endpoints are not concerned.
func TestPauseAfterFailures(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.FreeFailures = 2 })
	for range 2 {
		_, err := e.connect(t, func(c *pgconn.Config) { c.Password = "wrong" })
		want(t, err, "28P01", "")
	}
	_, err := e.connect(t)
	want(t, err, "57P03", "try again in")
	_, err = e.connect(t, func(c *pgconn.Config) { c.TLSConfig.ServerName = "two." + suffix })
	want(t, err, "28P01", "")
}

func TestLimiterPauses(t *testing.T) {
	a := netip.MustParseAddr("2001:db8::1")
	same := netip.MustParseAddr("2001:db8::ffff") // of the same client
	l := pgedge.NewLimiter(pgedge.Limits{FreeFailures: 3})
	for range 3 {
		if err := l.Check(a, "one"); err != nil {
			t.Fatal(err)
		}
		l.Failed(a, "one")
	}
	if l.Check(same, "one") == nil {
		t.Error("a client may go on with another address of its network")
	}
	if err := l.Check(netip.MustParseAddr("2001:db8:1::1"), "one"); err != nil {
		t.Errorf("another client has to wait: %v", err)
	}
	l.Succeeded(a, "one")
	if err := l.Check(a, "one"); err != nil {
		t.Errorf("after a login: %v", err)
	}
	for i := range 30 {
		l.Failed(a, strings.Repeat("x", i+1))
	}
	if l.Check(a, "fresh") == nil {
		t.Error("an address may try all endpoints")
	}
}

// A thousand connections that say nothing leave room for a client with another address.
func TestHalfOpenConnections(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.HalfOpen, l.HalfOpenPerAddress = 64, 16 })
	var refused, kept int
	conns := make([]net.Conn, 0, 1000)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	results := make(chan string, 1000)
	for range 1000 {
		c, err := net.Dial("tcp", e.address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		go func() {
			got, _ := io.ReadAll(c)
			results <- string(got)
		}()
	}
	for refused < 1000-16 {
		got := <-results
		if !strings.Contains(got, "C53300\x00") {
			t.Fatalf("a connection too many got %q, want the error 53300", got)
		}
		refused++
	}
	conn, err := e.connect(t, func(c *pgconn.Config) {
		c.DialFunc = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	})
	if err != nil {
		t.Fatalf("a client with another address: %v", err)
	}
	query(t, conn, "x", "SELECT 1")
	for _, c := range conns {
		_ = c.Close()
	}
	for range 16 {
		if <-results == "" {
			kept++
		}
	}
	if kept != 16 {
		t.Errorf("%d connections were kept, want 16", kept)
	}
	if _, err := e.connect(t); err != nil {
		t.Errorf("after they went away: %v", err)
	}
}

// TestPortScan connects and closes, at once and after a handshake. Nothing of that wakes the database, is held against
// the address or is left.
func TestPortScan(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.HalfOpen, l.HalfOpenPerAddress = 4, 4 })
	e.db.change(func() { e.db.settings.Running = false })
	scan := func(handshake bool) error {
		c, err := net.Dial("tcp", e.address)
		if err != nil {
			return err
		}
		if handshake {
			conn := tls.Client(c, &tls.Config{
				RootCAs: e.roots, ServerName: "one." + suffix, NextProtos: []string{"postgresql"},
			})
			err = conn.HandshakeContext(t.Context())
		}
		_ = c.Close()
		return err
	}
	for n := range 50 {
		// A connection gets an error while those before it have not ended yet, since all have one address.
		if err := scan(n%2 == 1); err != nil && n%2 == 0 {
			t.Fatal(err)
		}
	}
	deadline := time.After(limit)
	for { // until the edge has seen the last ends
		conn, err := e.connect(t)
		if err == nil {
			query(t, conn, "x", "SELECT 1")
			break
		}
		if fault, ok := errors.AsType[*pgconn.PgError](err); !ok || fault.Code != "53300" {
			t.Fatalf("connect after a scan: got %v, want success, or 53300 while ends are not seen", err)
		}
		select {
		case <-deadline:
			t.Fatalf("connections of a scan are left: %v", err)
		default:
		}
	}
	e.db.change(func() {
		if e.db.wakes != 1 || len(e.db.params) != 1 {
			t.Errorf("%d wakes and %d logins, want those of the client alone", e.db.wakes, len(e.db.params))
		}
	})
}

// A connection that says nothing is closed at the deadline.
func TestStartupTimeout(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.StartupTimeout = time.Millisecond })
	c, err := net.Dial("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("got %q, %v, want a closed connection", got, err)
	}
}

func TestWakeTimeout(t *testing.T) {
	e := start(t, func(_ *pgedge.Config, l *pgedge.Limits) { l.WakeTimeout = time.Millisecond })
	e.db.change(func() {
		e.db.wake = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
	})
	_, err := e.connect(t)
	want(t, err, "57P03", "did not accept connections within 1ms")
}

func TestSessionLimits(t *testing.T) {
	pool := budget.New(budget.Config{Name: "buffers", Total: 8 * 96 << 10, Levels: []budget.Level{{Name: "endpoint"}}})
	e := start(t, func(c *pgedge.Config, _ *pgedge.Limits) { c.Buffers = pool })
	e.db.change(func() { e.db.settings.MaxSessions = 2 })
	first, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.connect(t); err != nil {
		t.Fatal(err)
	}
	_, err = e.connect(t)
	want(t, err, "53300", "2 connections")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the session ends", func() bool { return e.Activity("one").Sessions == 1 })
	if _, err := e.connect(t); err != nil {
		t.Fatal(err)
	}
	e.db.change(func() { e.db.settings.MaxSessions = 100 })
	for range 2 {
		if _, err := e.connect(t); err != nil {
			t.Fatal(err)
		}
	}
	_, err = e.connect(t)
	want(t, err, "53300", "endpoint holds")
}

// Disconnect ends idle sessions at once and others after their transaction.
func TestDisconnect(t *testing.T) {
	e := start(t)
	idle, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	working, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	query(t, working, "begin", "SELECT 5")
	query(t, idle, "x", "SELECT 1")
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Disconnect(t.Context(), "one", "the database is being suspended")
	}()
	until(t, "the idle session ends", func() bool { return e.Activity("one").Sessions == 1 })
	_, err = idle.Exec(t.Context(), "x").ReadAll()
	want(t, err, "57P01", "the database is being suspended")
	query(t, working, "in the transaction", "SELECT 18")
	select {
	case <-done:
		t.Error("Disconnect returned while a session is open")
	default:
	}
	query(t, working, "commit", "SELECT 6")
	<-done
	_, err = working.Exec(t.Context(), "x").ReadAll()
	want(t, err, "57P01", "the database is being suspended")
}

// When time is up, sessions end in the middle of a transaction or a query.
func TestDisconnectByForce(t *testing.T) {
	e := start(t)
	working, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := working.Exec(t.Context(), "hang").ReadAll()
		result <- err
	}()
	<-e.db.hanging
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.Disconnect(ctx, "one", "time is up")
	want(t, <-result, "57P01", "time is up")
}

// The end of Serve ends sessions, and returns.
func TestShutdown(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	half, err := net.Dial("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	e.stop()
	err = <-e.stopped
	e.stopped <- err
	if err != nil {
		t.Errorf("Serve() = %v", err)
	}
	_, err = conn.Exec(t.Context(), "x").ReadAll()
	want(t, err, "57P01", "shutting down")
	if a := e.Activity("one"); a.Sessions != 0 {
		t.Errorf("Activity() = %+v after the end of Serve", a)
	}
}

func TestDatabaseDies(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "die").ReadAll()
	want(t, err, "08006", "connection to the database was lost")
	if conn, err = e.connect(t); err != nil {
		t.Fatal(err)
	}
	// In the middle of a message nothing can be said.
	_, err = conn.Exec(t.Context(), "die in a message").ReadAll()
	if _, ok := errors.AsType[*pgconn.PgError](err); err == nil || ok {
		t.Errorf("got %v, want the connection to be cut", err)
	}
	until(t, "the sessions end", func() bool { return e.Activity("one").Sessions == 0 })
	if got := e.last(); got.Kind != pgedge.EventClosed || got.Reason != "the database closed the connection" {
		t.Errorf("the session ended with %+v", got)
	}
}

// A query of 100 MB passes, in the buffers that every session has.
func TestLargeQuery(t *testing.T) {
	e := start(t)
	conn, err := e.connect(t)
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, strings.Repeat("x", 100<<20), "SELECT 104857600")
}

func TestNewChecksItsConfiguration(t *testing.T) {
	cert, _ := certificate(t)
	good := func() pgedge.Config {
		return pgedge.Config{
			Suffix: suffix, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, Resolver: &edge{},
			MockSecret: make([]byte, 16), Limiter: pgedge.NewLimiter(pgedge.Limits{}), Log: quiet,
		}
	}
	if _, err := pgedge.New(good()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*pgedge.Config){
		"Suffix":             func(c *pgedge.Config) { c.Suffix = "" },
		"certificate":        func(c *pgedge.Config) { c.TLS = &tls.Config{} },
		"GetConfigForClient": func(c *pgedge.Config) { c.TLS.GetConfigForClient = noConfig },
		"Limiter":            func(c *pgedge.Config) { c.Limiter = nil },
		"MockSecret":         func(c *pgedge.Config) { c.MockSecret = make([]byte, 15) },
	} {
		cfg := good()
		change(&cfg)
		if _, err := pgedge.New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New() = %v, want an error that names %s", err, name)
		}
	}
}

func noConfig(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }

func BenchmarkQuery(b *testing.B) {
	e := start(b)
	conn, err := e.connect(b)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := conn.Exec(b.Context(), "x").ReadAll(); err != nil {
			b.Fatal(err)
		}
	}
}
