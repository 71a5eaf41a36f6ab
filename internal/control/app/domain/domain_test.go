package domain_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/domain"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// records implements domain.Resolver.
type records struct {
	txt   map[string][]string
	cname map[string]string
	err   error
}

func missing(name string) error {
	return &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (r *records) LookupTXT(_ context.Context, name string) ([]string, error) {
	if r.err != nil {
		return nil, r.err
	}
	if found := r.txt[name]; found != nil {
		return found, nil
	}
	return nil, missing(name)
}

func (r *records) LookupCNAME(_ context.Context, name string) (string, error) {
	if r.err != nil {
		return "", r.err
	}
	if found := r.cname[name]; found != "" {
		return found, nil
	}
	return "", missing(name)
}

type fixture struct {
	*domain.Service
	t    *testing.T
	db   *store.DB
	dns  *records
	now  time.Time
	ours auth.Principal
}

// Get implements domain.Apps over the store.
func (f *fixture) Get(ctx context.Context, p auth.Principal, name string) (api.App, error) {
	a, err := f.db.Read().AppByName(ctx, name)
	if err != nil || a.Workspace != string(p.Workspace) {
		return api.App{}, api.Errorf(api.NotFound, "app %s not found", name)
	}
	return api.App{ID: api.AppID(a.ID), Name: a.Name, Workspace: p.Workspace}, nil
}

func newFixture(t *testing.T, tune func(*domain.Config)) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f := &fixture{
		t: t, db: db, dns: &records{txt: map[string][]string{}, cname: map[string]string{}},
		now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), ours: auth.Principal{Workspace: "ours"},
	}
	for name, workspace := range map[string]string{"shop": "ours", "blog": "ours", "thief": "theirs"} {
		row := store.App{ID: "app" + name, Name: name, Workspace: workspace, State: store.AppActive}
		err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.InsertApp(ctx, &row)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := domain.Config{
		Suffix: "apps.test:8443", Reserved: []string{"panda.example"}, Certificates: true,
		Now: func() time.Time { return f.now },
	}
	if tune != nil {
		tune(&cfg)
	}
	f.Service = domain.New(cfg, db, f, f.dns, slog.New(slog.DiscardHandler))
	return f
}

func (f *fixture) add(app, name string) api.AppDomain {
	f.t.Helper()
	d, err := f.AddDomain(f.t.Context(), f.ours, app, api.AddDomainRequest{Domain: name})
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *fixture) get(name string) api.AppDomain {
	f.t.Helper()
	d, err := f.Domain(f.t.Context(), f.ours, "shop", name)
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *fixture) prove(d api.AppDomain) {
	f.dns.txt[d.Records[1].Name] = []string{"v=spf1", d.Records[1].Value}
}

// A domain is verified by the record that it asks for, and takes requests then.
func TestVerifyByTXT(t *testing.T) {
	f := newFixture(t, nil)
	d := f.add("shop", "www.example.com")
	if d.Status != api.DomainPending || d.CertStatus != "none" || d.Error == "" || d.DNSNote == "" {
		t.Errorf("new domain %+v", d)
	}
	if r := d.Records[0]; r.Type != "CNAME" || r.Name != "www.example.com" || r.Value != "shop.apps.test" ||
		r.Purpose != "routing" {
		t.Errorf("record %+v", r)
	}
	if r := d.Records[1]; r.Type != "TXT" || r.Name != "_pandastack.www.example.com" || r.Purpose != "verification" {
		t.Errorf("record %+v", r)
	}
	if err := f.Allowed(t.Context(), "www.example.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("allowed before it is verified: %v", err)
	}
	f.dns.txt[d.Records[1].Name] = []string{"other"}
	f.now = f.now.Add(time.Minute)
	if d := f.get("www.example.com"); d.Status != api.DomainPending || !strings.Contains(d.Error, "another value") {
		t.Errorf("domain with another record %+v", d)
	}
	f.prove(d)
	if d := f.get("www.example.com"); d.Status != api.DomainPending {
		t.Error("the records were looked up again at once")
	}
	f.now = f.now.Add(time.Minute)
	if d = f.get("www.example.com"); d.Status != api.DomainVerified || d.CertStatus != "pending" || d.Error != "" {
		t.Errorf("domain with its record %+v", d)
	}
	for _, name := range []string{"www.example.com", "example.com"} {
		if err := f.Allowed(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if to, err := f.RedirectOf(t.Context(), "example.com"); err != nil || to != "www.example.com" {
		t.Errorf("redirect to %q %v", to, err)
	}
	if err := f.Allowed(t.Context(), "x.example.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("another name of the domain: %v", err)
	}
	if names, err := f.Unissued(t.Context()); err != nil || !slices.Equal(names, []string{"www.example.com"}) {
		t.Errorf("unissued %v %v", names, err)
	}
	if err := f.SetCertificate(t.Context(), "www.example.com", errors.New("rate limited")); err != nil {
		t.Fatal(err)
	}
	if d := f.get("www.example.com"); d.CertStatus != "error" || !strings.Contains(d.Error, "rate limited") {
		t.Errorf("domain without a certificate %+v", d)
	}
	if err := f.SetCertificate(t.Context(), "www.example.com", nil); err != nil {
		t.Fatal(err)
	}
	if d := f.get("www.example.com"); d.Status != api.DomainActive || d.CertStatus != "issued" || d.Error != "" {
		t.Errorf("domain with a certificate %+v", d)
	}
}

// A domain is verified by a CNAME record to the host name of its app, and to no other.
func TestVerifyByCNAME(t *testing.T) {
	f := newFixture(t, func(c *domain.Config) { c.Certificates = false })
	f.dns.cname["a.example.com"] = "shop.apps.test."
	f.dns.cname["b.example.com"] = "thief.apps.test."
	if d := f.add("shop", "a.example.com"); d.Status != api.DomainActive || d.CertStatus != "none" {
		t.Errorf("domain %+v", d)
	}
	if d := f.add("shop", "b.example.com"); d.Status != api.DomainPending {
		t.Errorf("domain of another app's name %+v", d)
	}
	if d := f.add("shop", "example.co.uk"); d.Records[0].Type != "ALIAS" {
		t.Errorf("records of a registered domain %+v", d.Records)
	}
}

// A domain belongs to one app. Claims that are not verified end.
func TestTaken(t *testing.T) {
	f := newFixture(t, nil)
	theirs := auth.Principal{Workspace: "theirs"}
	steal := func(name string) error {
		_, err := f.AddDomain(t.Context(), theirs, "thief", api.AddDomainRequest{Domain: name})
		return err
	}
	first := f.add("shop", "example.com")
	if again := f.add("shop", "example.com"); again.Records[1].Value != first.Records[1].Value {
		t.Error("a repeated request changed the token")
	}
	if err := steal("example.com"); api.CodeOf(err) != api.Conflict {
		t.Errorf("claimed domain: %v", err)
	}
	if _, err := f.Domain(t.Context(), theirs, "thief", "example.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("domain of another workspace: %v", err)
	}
	if err := f.DeleteDomain(t.Context(), theirs, "thief", "example.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("delete a domain of another workspace: %v", err)
	}
	f.now = f.now.Add(25 * time.Hour)
	if err := steal("example.com"); err != nil {
		t.Errorf("claim that was not verified for a day: %v", err)
	}
	f.prove(f.add("shop", "mine.com"))
	f.now = f.now.Add(time.Hour)
	if err := f.CheckAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(1000 * time.Hour)
	if err := steal("mine.com"); api.CodeOf(err) != api.Conflict {
		t.Errorf("verified domain: %v", err)
	}
	for _, name := range []string{"apps.test", "x.apps.test", "panda.example", "a.b.panda.example", "UP.com", "x:1"} {
		_, err := f.AddDomain(t.Context(), f.ours, "shop", api.AddDomainRequest{Domain: name})
		if api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.DeleteDomain(t.Context(), f.ours, "shop", "mine.com"); err != nil {
		t.Fatal(err)
	}
	if err := f.Allowed(t.Context(), "mine.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("deleted domain: %v", err)
	}
}

// A domain whose records are gone works for three more days; one whose name servers fail keeps working.
func TestRecordsGone(t *testing.T) {
	f := newFixture(t, nil)
	f.prove(f.add("shop", "example.com"))
	later := func(by time.Duration) api.DomainStatus {
		f.now = f.now.Add(by)
		if err := f.CheckAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := f.Domains(t.Context(), f.ours, "shop")
		if err != nil {
			t.Fatal(err)
		}
		return all.Domains[0].Status
	}
	if got := later(time.Minute); got != api.DomainVerified {
		t.Fatalf("state %s", got)
	}
	f.dns.err = errors.New("server failure")
	for range 10 {
		if got := later(24 * time.Hour); got != api.DomainVerified {
			t.Fatalf("state %s although name servers fail", got)
		}
	}
	f.dns.err = nil
	clear(f.dns.txt)
	for range 3 {
		if got := later(24 * time.Hour); got != api.DomainVerified {
			t.Fatalf("state %s", got)
		}
	}
	if got := later(24 * time.Hour); got != api.DomainError {
		t.Errorf("state %s, want error", got)
	}
	if err := f.Allowed(t.Context(), "example.com"); api.CodeOf(err) != api.NotFound {
		t.Errorf("domain whose records are gone: %v", err)
	}
}

func TestSibling(t *testing.T) {
	for name, want := range map[string]string{
		"example.com": "www.example.com", "www.example.com": "example.com", "a.example.com": "",
		"www.a.example.com": "", "example.co.uk": "www.example.co.uk", "com": "", "www.com": "www.www.com",
	} {
		if got := domain.Sibling(name); got != want {
			t.Errorf("Sibling(%s) = %q, want %q", name, got, want)
		}
	}
}
