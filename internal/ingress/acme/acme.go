// Package acme has certificates issued for the custom domains of apps, and for names of this server, by an authority
// that speaks ACME (RFC 8555).
//
// A certificate is issued when a domain is verified, or with the first handshake that asks for it, and renewed while it
// is used. The authority checks the domain over the listeners of this server, by TLS-ALPN-01 or HTTP-01. Certificates,
// keys and accounts are kept in the store, encrypted; locks in the store keep several processes from asking for the
// same certificate.
//
// Invariants. No certificate is asked for unless its name is in Config.Names or Domains allows it. After a failure the
// name waits, longer with every further one, so that a domain that is set up wrongly does not use up the limits of the
// authority.
//
// All methods may be called concurrently.
package acme

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// Domains knows the names that may have certificates; *domain.Service does.
type Domains interface {
	// Allowed returns nil if a certificate may be asked for.
	Allowed(ctx context.Context, name string) error
	// Unissued returns names that may have certificates and have none.
	Unissued(ctx context.Context) ([]string, error)
	// SetCertificate records that a certificate was issued, or why it was not.
	SetCertificate(ctx context.Context, name string, cause error) error
}

// Config configures a Manager. Directory is required.
type Config struct {
	Directory string // URL of the authority
	Email     string // of the account; "": none
	// KeyID and MACKey bind the account to one that its user has with the authority; "": it needs none.
	KeyID, MACKey string
	Roots         *x509.CertPool // that vouch for the authority's own server; nil: those of the system
	// HTTPPort and TLSPort are the ports on which this server serves HTTPChallenge and Certificate; 0: it does not. The
	// authority reaches them by the ports 80 and 443 of the domain.
	HTTPPort, TLSPort int
	Host              string // address of these listeners
	// Names are host names of this server itself, which may have certificates beside those of Domains. They have that
	// of Fallback until theirs is issued.
	Names []string
	// Fallback returns the certificate for all names that are not allowed.
	Fallback func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Interval time.Duration // between looks for domains without a certificate; 0: 30 s
	Delay    time.Duration // after the first failure of a name; 0: a minute
}

// Manager has certificates issued. Make one with New, and run Run while it is used.
type Manager struct {
	cfg     Config
	domains Domains
	log     *slog.Logger
	cache   *certmagic.Cache
	magic   *certmagic.Config
	issuer  *certmagic.ACMEIssuer

	background sync.WaitGroup // orders under way
	ctx        context.Context
	stop       context.CancelCauseFunc

	mu      sync.Mutex
	failed  map[string]failure // by name; guarded by mu
	orders  map[string]*order  // under way, by name; guarded by mu
	ready   map[string]bool    // names that have a certificate; guarded by mu
	stopped bool               // guarded by mu
}

// order is an order for a certificate that is under way.
type order struct {
	done chan struct{} // closed when it has ended
	err  error         // set before done is closed
}

// failure is what is known of a name whose certificate was not issued.
type failure struct {
	times int
	until time.Time // when it is asked for again
}

// Bounds of the delay after failures, of how many names are remembered, and of how long an order and a handshake that
// waits for one take.
const (
	maxDelay      = 12 * time.Hour
	maxNames      = 10_000
	orderTimeout  = 2 * time.Minute
	handshakeWait = 15 * time.Second
)

// New returns a manager that keeps certificates in storage. The end of ctx does not end orders; that of Run does.
func New(
	ctx context.Context,
	cfg Config,
	storage certmagic.Storage,
	domains Domains,
	log *slog.Logger,
) (*Manager, error) {
	if cfg.Directory == "" || cfg.HTTPPort == 0 && cfg.TLSPort == 0 {
		return nil, errors.New("acme: a directory and a port are required")
	}
	cfg.Interval = cmp.Or(cfg.Interval, 30*time.Second)
	cfg.Delay = cmp.Or(cfg.Delay, time.Minute)
	m := &Manager{
		cfg: cfg, domains: domains, log: log, failed: map[string]failure{}, orders: map[string]*order{},
		ready: map[string]bool{},
	}
	m.ctx, m.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic, nil },
		Logger:           zap.NewNop(),
	})
	m.magic = certmagic.New(m.cache, certmagic.Config{
		Storage: storage, OnDemand: &certmagic.OnDemandConfig{DecisionFunc: m.decide}, OnEvent: m.event,
		Logger: zap.NewNop(),
	})
	issuer := certmagic.ACMEIssuer{
		CA: cfg.Directory, TestCA: cfg.Directory, Email: cfg.Email, Agreed: true, TrustedRoots: cfg.Roots,
		DisableHTTPChallenge: cfg.HTTPPort == 0, DisableTLSALPNChallenge: cfg.TLSPort == 0,
		AltHTTPPort: cfg.HTTPPort, AltTLSALPNPort: cfg.TLSPort, ListenHost: cfg.Host,
		CertObtainTimeout: orderTimeout, Logger: zap.NewNop(),
	}
	if cfg.KeyID != "" {
		issuer.ExternalAccount = &acme.EAB{KeyID: cfg.KeyID, MACKey: cfg.MACKey}
	}
	m.issuer = certmagic.NewACMEIssuer(m.magic, issuer)
	m.magic.Issuers = []certmagic.Issuer{m.issuer}
	return m, nil
}

// Run has certificates issued for the domains that have none, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.cache.Stop()
	defer m.background.Wait()
	defer m.end()
	tick := time.NewTicker(m.cfg.Interval)
	defer tick.Stop()
	for {
		names, err := m.unissued(ctx)
		if err != nil && ctx.Err() == nil {
			m.log.Warn("domains without a certificate are not known", "err", err)
		}
		for _, name := range names {
			if err := m.await(ctx, name, orderTimeout); err != nil {
				m.log.Debug("no certificate was issued", "domain", name, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// unissued returns the names that may have certificates and have none, those of this server first.
func (m *Manager) unissued(ctx context.Context) ([]string, error) {
	var names []string
	for _, name := range m.cfg.Names {
		if !m.isReady(name) {
			names = append(names, name)
		}
	}
	others, err := m.domains.Unissued(ctx)
	return append(names, others...), err
}

func (m *Manager) isReady(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready[name]
}

// allowed returns nil if a name may have a certificate.
func (m *Manager) allowed(ctx context.Context, name string) error {
	if slices.Contains(m.cfg.Names, name) {
		return nil
	}
	return m.domains.Allowed(ctx, name)
}

// end lets no further order begin and cancels those under way.
func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	m.stop(errors.New("the node is stopping"))
}

// await returns when there is a certificate, which it has issued if need be. One order serves all that wait.
func (m *Manager) await(ctx context.Context, name string, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the authority has not issued the certificate yet"))
	defer cancel()
	if err := m.decide(ctx, name); err != nil {
		return err
	}
	o := m.order(name)
	if o == nil {
		return nil
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// order returns the order for a name, which it begins if need be; nil if there is a certificate.
func (m *Manager) order(name string) *order {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready[name] {
		return nil
	}
	if o := m.orders[name]; o != nil {
		return o
	}
	o := &order{done: make(chan struct{})}
	if m.stopped {
		o.err = context.Cause(m.ctx)
		close(o.done)
		return o
	}
	m.orders[name] = o
	m.background.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, orderTimeout)
		defer cancel()
		err := m.magic.ObtainCertSync(ctx, name) // does nothing if there is a certificate
		if err == nil {
			if err := m.domains.SetCertificate(ctx, name, nil); err != nil {
				m.log.Warn("a certificate could not be recorded", "domain", name, "err", err)
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.orders, name)
		if len(m.ready) >= maxNames {
			clear(m.ready)
		}
		m.ready[name], o.err = err == nil, err
		close(o.done)
	})
	return o
}

// decide returns nil if a certificate may be asked for now.
func (m *Manager) decide(ctx context.Context, name string) error {
	if err := m.allowed(ctx, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.failed[name]; !m.ready[name] && time.Now().Before(f.until) {
		return fmt.Errorf("the certificate of %s failed %d times: it is asked for again at %s", name, f.times, f.until)
	}
	return nil
}

// event follows what certmagic does.
func (m *Manager) event(ctx context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	if event != "cert_obtained" && event != "cert_failed" || name == "" {
		return nil
	}
	cause, _ := data["error"].(error)
	if event == "cert_obtained" {
		cause = nil
		m.log.Info("a certificate was issued", "domain", name)
	}
	m.note(name, cause)
	if cause == nil {
		return nil
	}
	renewal, _ := data["renewal"].(bool)
	if renewal { // the certificate that is there still works
		m.log.Warn("a certificate could not be renewed", "domain", name, "err", cause)
		return nil
	}
	if err := m.domains.SetCertificate(context.WithoutCancel(ctx), name, cause); err != nil {
		m.log.Warn("a certificate could not be recorded", "domain", name, "err", err)
	}
	return nil
}

// note remembers failures.
func (m *Manager) note(name string, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cause == nil {
		delete(m.failed, name)
		return
	}
	if len(m.failed) >= maxNames {
		clear(m.failed)
	}
	f := m.failed[name]
	f.until = time.Now().Add(min(m.cfg.Delay<<min(f.times, 16), maxDelay))
	f.times++
	m.failed[name] = f
	m.log.Warn("a certificate was not issued", "domain", name, "err", cause, "again", f.until)
}

// Certificate implements tls.Config.GetCertificate.
func (m *Manager) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if slices.Equal(hello.SupportedProtos, []string{acmez.ACMETLS1Protocol}) {
		return m.magic.GetCertificate(hello)
	}
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if !strings.Contains(name, ".") || m.allowed(hello.Context(), name) != nil {
		return m.cfg.Fallback(hello)
	}
	if slices.Contains(m.cfg.Names, name) && !m.isReady(name) {
		return m.cfg.Fallback(hello) // Run asks for it
	}
	if err := m.await(hello.Context(), name, handshakeWait); err != nil {
		return nil, err
	}
	return m.magic.GetCertificate(hello)
}

// Protocols are what a listener that uses Certificate offers.
func Protocols() []string { return []string{"h2", "http/1.1", acmez.ACMETLS1Protocol} }

// HTTPChallenge serves the checks of the authority and passes all other requests to next.
func (m *Manager) HTTPChallenge(next http.Handler) http.Handler {
	return m.issuer.HTTPChallengeHandler(next)
}
