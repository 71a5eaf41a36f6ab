package domain

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Run looks the records of domains up again and again until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		if err := s.CheckAll(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("domains of apps could not be checked", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// CheckAll looks up the records of the domains for which it is time.
func (s *Service) CheckAll(ctx context.Context) error {
	rows, err := s.db.Read().AppDomains(ctx, "")
	if err != nil {
		return err
	}
	for _, d := range rows {
		if ctx.Err() != nil || !s.isDue(d) {
			continue
		}
		a, err := s.db.Read().App(ctx, d.App)
		if errors.Is(err, store.ErrNotFound) {
			continue // deleted with its domains
		}
		if err != nil {
			return err
		}
		s.check(ctx, d, a.Name)
	}
	return nil
}

// isWaiting reports whether a domain is not verified.
func (s *Service) isWaiting(d store.AppDomain) bool {
	return d.State == string(api.DomainPending) || d.State == string(api.DomainError)
}

// isDue reports whether it is time to look records up: often for new domains, less often later.
func (s *Service) isDue(d store.AppDomain) bool {
	now := s.cfg.Now()
	age, since := now.Sub(store.Time(d.Created)), now.Sub(store.Time(d.Checked))
	switch {
	case d.State != string(api.DomainPending):
		return since >= 12*time.Hour
	case age < time.Hour:
		return since >= s.cfg.Interval
	case age < 7*24*time.Hour:
		return since >= 30*time.Minute
	default:
		return since >= 24*time.Hour
	}
}

// check looks the records of a domain up and writes what that shows. It returns the row as it is then.
func (s *Service) check(ctx context.Context, d store.AppDomain, app string) store.AppDomain {
	err := s.lookUp(ctx, d, app)
	if ctx.Err() != nil {
		return d
	}
	was, next := d.State, d
	now := store.Micros(s.cfg.Now())
	next.Checked = now
	switch {
	case err == nil:
		if s.isWaiting(d) {
			next.State, next.Changed, next.Certificate = string(api.DomainVerified), now, CertificatePending
			if !s.cfg.Certificates {
				next.State, next.Certificate = string(api.DomainActive), CertificateNone
			}
		}
		if next.Certificate != CertificateError {
			next.Error = ""
		}
	case !errors.Is(err, errUnproven) && !s.isWaiting(d): // name servers fail; that says nothing
	case s.isWaiting(d):
		next.Error = err.Error()
	case d.Error == "" || d.Certificate == CertificateError:
		next.Error, next.Changed = err.Error(), now
		if next.Certificate == CertificateError {
			next.Certificate = CertificatePending
		}
	case s.cfg.Now().Sub(store.Time(d.Changed)) >= keepUnproven:
		next.State, next.Error, next.Changed = string(api.DomainError), err.Error(), now
	}
	err = s.db.Write(ctx, "check domain", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateAppDomain(ctx, &next, was)
	})
	if err != nil {
		if !errors.Is(err, store.ErrNotFound) { // changed or deleted meanwhile
			s.log.Warn("the state of a domain could not be written", "domain", d.Domain, "err", err)
		}
		return d
	}
	return next
}

// Allowed returns nil if a name is a verified domain, or one whose requests are redirected to one.
//
// Otherwise the error has the code not_found. RedirectOf has the rule for the others.
func (s *Service) Allowed(ctx context.Context, name string) error {
	if _, err := s.verified(ctx, name); err == nil || api.CodeOf(err) != api.NotFound {
		return err
	}
	if other := Sibling(name); other != "" {
		_, err := s.verified(ctx, other)
		return err
	}
	return api.Errorf(api.NotFound, "%.100s is not a verified domain", name)
}

// RedirectOf returns the verified domain to which requests for a name are redirected: www.example.com for example.com
// and the other way around. The name itself is no domain of an app.
func (s *Service) RedirectOf(ctx context.Context, name string) (string, error) {
	other := Sibling(name)
	if other == "" {
		return "", api.Errorf(api.NotFound, "%.100s is not a verified domain", name)
	}
	d, err := s.verified(ctx, other)
	return d.Domain, err
}

// Sibling returns the www name of a registered domain and the other way around; "" for other names.
func Sibling(name string) string {
	parent, isWWW := strings.CutPrefix(name, "www.")
	top, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil || top != name && !(isWWW && top == parent) {
		return ""
	}
	if isWWW && top == parent {
		return parent
	}
	return "www." + name
}

func (s *Service) verified(ctx context.Context, name string) (store.AppDomain, error) {
	d, err := s.db.Read().AppDomain(ctx, name)
	if err == nil && s.isWaiting(d) || errors.Is(err, store.ErrNotFound) {
		return d, api.Errorf(api.NotFound, "%.100s is not a verified domain", name)
	}
	if err != nil {
		return d, api.AsError(err)
	}
	return d, nil
}

// Unissued returns the verified domains that have no certificate.
func (s *Service) Unissued(ctx context.Context) ([]string, error) {
	rows, err := s.db.Read().AppDomains(ctx, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range rows {
		if !s.isWaiting(d) && d.Certificate != CertificateIssued {
			names = append(names, d.Domain)
		}
	}
	return names, nil
}

// SetCertificate records that a certificate was issued for a domain, or why it was not.
func (s *Service) SetCertificate(ctx context.Context, name string, cause error) error {
	d, err := s.verified(ctx, name)
	if api.CodeOf(err) == api.NotFound {
		return nil // deleted meanwhile, or the www name of a domain
	}
	if err != nil {
		return err
	}
	was := d.State
	d.State, d.Certificate, d.Error = string(api.DomainActive), CertificateIssued, ""
	if cause != nil {
		d.State, d.Certificate, d.Error = was, CertificateError, "certificate: "+cause.Error()
	}
	d.Changed = store.Micros(s.cfg.Now())
	err = s.db.Write(ctx, "certificate of domain", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateAppDomain(ctx, &d, was)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
