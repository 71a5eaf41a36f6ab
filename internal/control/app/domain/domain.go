// Package domain is the service for the custom domains of apps.
//
// A domain takes requests once a DNS record shows that it belongs to the workspace of the app: a TXT record with the
// token of the domain, or a CNAME record of the domain itself to the host name of the app. The records are looked up
// when the domain is added and read, and again and again by Run. A domain whose records are gone keeps working for
// some days, since name servers fail.
//
// A domain belongs to one app. A claim that is not verified holds it for a day.
//
// All methods may be called concurrently.
package domain

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Resolver looks up records; *net.Resolver does.
type Resolver interface {
	LookupTXT(ctx context.Context, name string) ([]string, error)
	LookupCNAME(ctx context.Context, name string) (string, error)
}

// Apps finds the app that a caller names; *app.Service does.
type Apps interface {
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
}

// Config configures a Service.
type Config struct {
	Suffix string // of the host names of apps
	// Reserved are domains of the server, which with all names below them cannot be custom domains.
	Reserved []string
	// Certificates says that certificates are issued for domains. Without, a domain is active when it is verified.
	Certificates bool
	Interval     time.Duration    // between looks at all domains; 0: a minute
	Now          func() time.Time // nil: time.Now
}

// Service implements the verbs on domains. Make it with New.
type Service struct {
	cfg      Config
	db       *store.DB
	apps     Apps
	resolver Resolver
	log      *slog.Logger
}

// New returns a service. It starts nothing.
func New(cfg Config, db *store.DB, apps Apps, resolver Resolver, log *slog.Logger) *Service {
	if cfg.Interval <= 0 {
		cfg.Interval = time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg, db: db, apps: apps, resolver: resolver, log: log}
}

// The states of a certificate.
const (
	CertificateNone    = "none"
	CertificatePending = "pending"
	CertificateIssued  = "issued"
	CertificateError   = "error"
)

const (
	// holdUnverified is for how long a claim that is not verified keeps others from claiming the domain.
	holdUnverified = 24 * time.Hour
	// keepUnproven is for how long a domain works whose records are gone.
	keepUnproven = 72 * time.Hour
	// lookupTimeout bounds one check of the records.
	lookupTimeout = 10 * time.Second
	// checkDelay is the least time between checks that callers cause.
	checkDelay = 5 * time.Second
)

// Domains returns the domains of an app.
func (s *Service) Domains(ctx context.Context, p auth.Principal, app string) (api.AppDomains, error) {
	a, err := s.apps.Get(ctx, p, app)
	if err != nil {
		return api.AppDomains{}, err
	}
	rows, err := s.db.Read().AppDomains(ctx, string(a.ID))
	if err != nil {
		return api.AppDomains{}, api.AsError(err)
	}
	out := api.AppDomains{Domains: []api.AppDomain{}}
	for _, d := range rows {
		out.Domains = append(out.Domains, s.view(d, a.Name))
	}
	return out, nil
}

// AddDomain claims a domain for an app and looks its records up.
func (s *Service) AddDomain(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.AddDomainRequest,
) (api.AppDomain, error) {
	if err := req.Validate(); err != nil {
		return api.AppDomain{}, err
	}
	if err := s.checkName(req.Domain); err != nil {
		return api.AppDomain{}, err
	}
	a, err := s.apps.Get(ctx, p, app)
	if err != nil {
		return api.AppDomain{}, err
	}
	now := store.Micros(s.cfg.Now())
	d := store.AppDomain{
		Domain: req.Domain, App: string(a.ID), Workspace: string(a.Workspace), State: string(api.DomainPending),
		Token: "pandastack-verify=" + strings.ToLower(rand.Text()), Certificate: CertificateNone,
		Created: now, Changed: now,
	}
	err = s.db.Write(ctx, "add domain", func(ctx context.Context, tx *store.Tx) error { return s.claim(ctx, tx, &d) })
	if err != nil {
		return api.AppDomain{}, api.AsError(err)
	}
	return s.view(s.check(ctx, d, a.Name), a.Name), nil
}

// checkName refuses domains of the server.
func (s *Service) checkName(name string) error {
	for _, own := range append([]string{s.cfg.Suffix}, s.cfg.Reserved...) {
		if own = hostOf(own); own != "" && (name == own || strings.HasSuffix(name, "."+own)) {
			return api.Errorf(api.Invalid, "domain: %s belongs to this server: use a domain of your own", name).
				With("field", "domain")
		}
	}
	return nil
}

func hostOf(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		hostport = h
	}
	return strings.ToLower(strings.Trim(hostport, ".[]"))
}

// claim adds the row of a domain unless it is another app's.
func (s *Service) claim(ctx context.Context, tx *store.Tx, d *store.AppDomain) error {
	found, err := tx.AppDomain(ctx, d.Domain)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return err
	case found.App == d.App:
		*d = found // a repeated request finds what it added
		return nil
	case found.State != string(api.DomainPending) || s.cfg.Now().Sub(store.Time(found.Created)) < holdUnverified:
		return api.Errorf(api.Conflict, "the domain %s is in use by another app", d.Domain)
	default:
		if err := tx.DeleteAppDomain(ctx, found.App, found.Domain); err != nil {
			return err
		}
	}
	rows, err := tx.AppDomains(ctx, d.App)
	if err != nil {
		return err
	}
	if len(rows) >= api.MaxAppDomains {
		return api.Errorf(api.QuotaExceeded, "the app has %d domains: delete one first", len(rows))
	}
	return tx.InsertAppDomain(ctx, d)
}

// Domain returns a domain of an app. Records that were not found before are looked up.
func (s *Service) Domain(ctx context.Context, p auth.Principal, app, name string) (api.AppDomain, error) {
	a, d, err := s.find(ctx, p, app, name)
	if err != nil {
		return api.AppDomain{}, err
	}
	if s.isWaiting(d) && s.cfg.Now().Sub(store.Time(d.Checked)) >= checkDelay {
		d = s.check(ctx, d, a.Name)
	}
	return s.view(d, a.Name), nil
}

// DeleteDomain removes a domain from an app.
func (s *Service) DeleteDomain(ctx context.Context, p auth.Principal, app, name string) error {
	a, _, err := s.find(ctx, p, app, name)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, "delete domain", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteAppDomain(ctx, string(a.ID), strings.ToLower(name))
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

func (s *Service) find(ctx context.Context, p auth.Principal, app, name string) (api.App, store.AppDomain, error) {
	a, err := s.apps.Get(ctx, p, app)
	if err != nil {
		return a, store.AppDomain{}, err
	}
	d, err := s.db.Read().AppDomain(ctx, strings.ToLower(name))
	if errors.Is(err, store.ErrNotFound) || err == nil && d.App != string(a.ID) {
		return a, d, api.Errorf(api.NotFound, "the app %s has no domain %.100s", a.Name, name)
	}
	if err != nil {
		return a, d, api.AsError(err)
	}
	return a, d, nil
}

// target is the host name that routes to an app.
func (s *Service) target(app string) string { return app + "." + hostOf(s.cfg.Suffix) }

// view returns a domain as the API shows it.
func (s *Service) view(d store.AppDomain, app string) api.AppDomain {
	routing := api.DomainRecord{
		Type: "CNAME", Name: d.Domain, Value: s.target(app), Purpose: "routing",
		Note: "Also verifies the domain.",
	}
	if top, err := publicsuffix.EffectiveTLDPlusOne(d.Domain); err == nil && top == d.Domain {
		routing.Type = "ALIAS"
		routing.Note = "Named ALIAS or ANAME; where there is neither: A and AAAA records with this server's addresses."
	}
	out := api.AppDomain{
		Domain: d.Domain, AppID: api.AppID(d.App), Status: api.DomainStatus(d.State), CertStatus: d.Certificate,
		Error: d.Error, CreatedAt: store.Time(d.Created), UpdatedAt: store.Time(d.Changed),
		Records: []api.DomainRecord{routing, {
			Type: "TXT", Name: verificationName(d.Domain), Value: d.Token, Purpose: "verification",
		}},
	}
	if d.State == string(api.DomainPending) {
		out.DNSNote = "Set the records at the DNS provider of the domain. They are looked up every minute."
	}
	return out
}

func verificationName(domain string) string { return "_pandastack." + domain }

// errUnproven is the error of a domain without the records.
var errUnproven = errors.New("no record verifies the domain")

// lookUp returns nil if a record verifies the domain, an error that wraps errUnproven if none does, and any other error
// if that cannot be known now.
func (s *Service) lookUp(ctx context.Context, d store.AppDomain, app string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lookupTimeout, errors.New("the name servers took too long"))
	defer cancel()
	found, err := s.resolver.LookupTXT(ctx, verificationName(d.Domain))
	if err == nil && slices.Contains(found, d.Token) {
		return nil
	}
	if unknown(err) {
		return fmt.Errorf("look up the TXT record %s: %w", verificationName(d.Domain), err)
	}
	to, err := s.resolver.LookupCNAME(ctx, d.Domain)
	to = strings.ToLower(strings.TrimSuffix(to, "."))
	switch {
	case err == nil && to == s.target(app):
		return nil
	case unknown(err):
		return fmt.Errorf("look up the CNAME record of %s: %w", d.Domain, err)
	case len(found) > 0:
		return fmt.Errorf("%w: the TXT record %s has another value", errUnproven, verificationName(d.Domain))
	default:
		return fmt.Errorf("%w: set the TXT record %s, or a CNAME record of %s to %s", errUnproven,
			verificationName(d.Domain), d.Domain, s.target(app))
	}
}

// unknown reports whether a lookup failed, in contrast to one that found no record.
func unknown(err error) bool {
	if err == nil {
		return false
	}
	dns, ok := errors.AsType[*net.DNSError](err)
	return !ok || !dns.IsNotFound
}
