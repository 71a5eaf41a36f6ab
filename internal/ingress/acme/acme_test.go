package acme_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/acme"
)

// authority is pebble, an authority of certificates for tests, in this process.
type authority struct {
	*httptest.Server
	issuer *ca.CAImpl
	orders atomic.Int64
	refuse atomic.Bool // orders: too many were made
}

// accountKey binds accounts to an external one.
const accountKey = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"

// newAuthority returns an authority that checks domains at the given ports of this host.
func newAuthority(t *testing.T, httpPort, tlsPort int, needsKey bool) *authority {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet, memory := log.New(io.Discard, "", 0), db.NewMemoryStore()
	if err := memory.AddExternalAccountKeyByID("kid-1", accountKey); err != nil {
		t.Fatal(err)
	}
	profiles := map[string]ca.Profile{"default": {Description: "The default profile", ValidityPeriod: 86400}}
	a := &authority{issuer: ca.New(quiet, memory, "", "ecdsa", 0, 1, profiles)}
	checks := va.New(quiet, httpPort, tlsPort, false, nameServer(t), memory)
	front := wfe.New(quiet, memory, checks, a.issuer, []string{"authority.test"}, false, needsKey, 1, 1)
	handler := front.Handler()
	a.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "order-plz") {
			a.orders.Add(1)
			if a.refuse.Load() {
				w.Header().Set("Content-Type", "application/problem+json")
				w.Header().Set("Replay-Nonce", "unused")
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = io.WriteString(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many orders"}`)
				return
			}
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate())
	return pool
}

// nameServer serves 127.0.0.1 for every name and returns its address.
func nameServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		reply := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			reply.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1},
				A:   net.IPv4(127, 0, 0, 1),
			}}
		}
		_ = w.WriteMsg(reply)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ActivateAndServe()
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// domains implements acme.Domains.
type domains struct {
	mu       sync.Mutex
	allowed  map[string]bool // false: it has no certificate yet
	failures []error
	find     bool // names without a certificate
	issued   chan string
}

func (d *domains) Allowed(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.allowed[name]; !ok {
		return errors.New("not verified")
	}
	return nil
}

func (d *domains) Unissued(context.Context) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, has := range d.allowed {
		if !has && d.find {
			names = append(names, name)
		}
	}
	return names, nil
}

func (d *domains) SetCertificate(_ context.Context, name string, cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cause != nil {
		d.failures = append(d.failures, cause)
		return nil
	}
	d.allowed[name] = true
	select {
	case d.issued <- name:
	default:
	}
	return nil
}

func (d *domains) failed() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failures
}

type fixture struct {
	t        *testing.T
	ca       *authority
	db       *store.DB
	names    *domains
	manager  *acme.Manager
	tls      net.Listener
	plain    net.Listener
	fallback atomic.Int64 // handshakes with the certificate of the server
	own      []string     // names of the server
}

// newFixture returns a server whose certificates an authority issues, over TLS-ALPN-01 unless byHTTP is set.
func newFixture(t *testing.T, byHTTP bool, names ...string) *fixture {
	t.Helper()
	return newOwnFixture(t, byHTTP, nil, false, names...)
}

// newOwnFixture is newFixture of a server with names of its own. refuse makes the authority refuse all orders.
func newOwnFixture(t *testing.T, byHTTP bool, own []string, refuse bool, names ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, names: &domains{allowed: map[string]bool{}, issued: make(chan string, 8)}, own: own}
	for _, name := range names {
		f.names.allowed[name] = false
	}
	var err error
	if f.tls, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if f.plain, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	f.ca = newAuthority(t, port(f.plain), port(f.tls), byHTTP)
	f.ca.refuse.Store(refuse)
	key := make([]byte, store.KeyBytes)
	f.db, err = store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db"), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close() })
	f.manager = f.newManager(byHTTP)
	f.run(f.manager, byHTTP)
	f.serve(f.plain, &http.Server{Handler: f.manager.HTTPChallenge(http.NotFoundHandler())}, false)
	f.serveTLS(f.tls, f.manager)
	return f
}

func (f *fixture) serveTLS(l net.Listener, m *acme.Manager) {
	f.serve(l, &http.Server{
		Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{GetCertificate: m.Certificate, NextProtos: acme.Protocols()},
	}, true)
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port } //nolint:forcetypeassert // of TCP

func (f *fixture) newManager(byHTTP bool) *acme.Manager {
	f.t.Helper()
	cfg := acme.Config{
		Directory: f.ca.URL + wfe.DirectoryPath, Email: "a@example.com", Roots: f.ca.roots(), Host: "127.0.0.1",
		TLSPort: port(f.tls), Delay: time.Hour, Names: f.own,
		Fallback: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			f.fallback.Add(1)
			return nil, errors.New("the certificate of the server")
		},
	}
	if byHTTP {
		cfg.TLSPort, cfg.HTTPPort = 0, port(f.plain)
		cfg.KeyID, cfg.MACKey = "kid-1", accountKey
	}
	m, err := acme.New(f.t.Context(), cfg, acme.NewStorage(f.db, 0), f.names, slog.New(slog.DiscardHandler))
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

// run runs a manager until the test ends. It sees domains without a certificate only if they are to be found.
func (f *fixture) run(m *acme.Manager, find bool) {
	f.names.find = find
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

func (f *fixture) serve(l net.Listener, s *http.Server, secure bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if secure {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	f.t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

// handshake connects to a name and verifies its certificate.
func (f *fixture) handshake(name string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.ca.issuer.GetRootCert(0).PEM())
	d := tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: roots, NextProtos: []string{"h2"}}}
	c, err := d.DialContext(f.t.Context(), "tcp", f.tls.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if got := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "h2" {
		f.t.Errorf("protocol %q", got)
	}
	return nil
}

// The first handshake has a certificate issued; later ones, also after a restart, find it.
func TestOnDemand(t *testing.T) {
	f := newFixture(t, false, "www.example.com")
	for range 2 {
		if err := f.handshake("www.example.com"); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.ca.orders.Load(); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
	if !f.names.allowed["www.example.com"] {
		t.Error("the certificate was not recorded")
	}
	again := f.newManager(false)
	f.run(again, false)
	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.serveTLS(second, again)
	f.tls = second
	if err := f.handshake("www.example.com"); err != nil {
		t.Error(err)
	}
	if n := f.ca.orders.Load(); n != 1 {
		t.Errorf("%d orders after a restart, want 1", n)
	}
}

// Nothing is asked for names that are not allowed: the server's own certificate serves them.
func TestNotAllowed(t *testing.T) {
	f := newFixture(t, false, "www.example.com")
	for _, name := range []string{"other.example.com", "example.com", "localhost"} {
		if err := f.handshake(name); err == nil {
			t.Errorf("%s has a certificate", name)
		}
	}
	if n := f.ca.orders.Load(); n != 0 {
		t.Errorf("%d orders, want 0", n)
	}
	if n := f.fallback.Load(); n != 3 {
		t.Errorf("%d handshakes with the server's certificate, want 3", n)
	}
}

// Domains that are verified get their certificate before the first handshake. The account is bound to an external one.
func TestIssuedByHTTP(t *testing.T) {
	f := newFixture(t, true, "shop.example.com")
	if name := <-f.names.issued; name != "shop.example.com" {
		t.Errorf("certificate of %s", name)
	}
	if err := f.handshake("shop.example.com"); err != nil {
		t.Error(err)
	}
	if n := f.ca.orders.Load(); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

// An authority that refuses is not asked again at once, and the reason is recorded.
func TestRateLimited(t *testing.T) {
	f := newFixture(t, false, "www.example.com")
	f.ca.refuse.Store(true)
	for range 3 {
		if err := f.handshake("www.example.com"); err == nil {
			t.Fatal("a certificate was issued")
		}
	}
	if n := f.ca.orders.Load(); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
	failed := f.names.failed()
	if len(failed) != 1 || !strings.Contains(failed[0].Error(), "too many orders") {
		t.Errorf("failures %v", failed)
	}
}

// A handshake fails while the authority is down, and the reason is recorded.
func TestAuthorityDown(t *testing.T) {
	f := newFixture(t, false, "www.example.com")
	f.ca.Close()
	if err := f.handshake("www.example.com"); err == nil {
		t.Fatal("a certificate was issued")
	}
	if failed := f.names.failed(); len(failed) != 1 {
		t.Errorf("failures %v", failed)
	}
}
