package node

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// TestHostNamesOfTheServerAreNoApps asks for the server's own names: they are looked up in no store.
func TestHostNamesOfTheServerAreNoApps(t *testing.T) {
	n := &node{}
	n.Config = new(config.Node)
	n.Config.PublicURL, n.Config.Preview.Domain = "https://API.example.com", "preview.example.com"
	e := &edgeApps{own: n.ownHosts(), unknown: map[string]time.Time{}}
	for _, host := range []string{"api.example.com", "preview.example.com", "db.api.example.com"} {
		if _, err := e.Route(t.Context(), host); !errors.Is(err, appedge.ErrNoApp) {
			t.Errorf("Route(%s) = %v", host, err)
		}
	}
}

// pageBuilder builds apps whose program serves a page with the reference that they were built from. The reference
// "files" is an app without a program.
type pageBuilder struct {
	boxes *sandbox.Service
	apps  *apps
}

func (b *pageBuilder) Build(ctx context.Context, req app.Build) (app.Built, error) {
	if req.Source.Ref == "files" {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "index.html", Size: 4}); err != nil {
			return app.Built{}, err
		}
		if _, err := io.WriteString(w, "home"); err != nil {
			return app.Built{}, err
		}
		static := appspec.Static{Dir: "/site", Files: req.Deployment.ID}
		return app.Built{Result: appspec.Result{Static: &static}}, b.apps.files.Store(ctx, static.Files, &archive)
	}
	box, err := b.boxes.Create(ctx, req.Principal, api.CreateRequest{Template: "base"})
	if err != nil {
		return app.Built{}, err
	}
	g, err := b.boxes.Guest(ctx, req.Principal, box.ID)
	if err != nil {
		return app.Built{}, err
	}
	page := strings.NewReader("version " + req.Source.Ref)
	if _, err := g.Write(ctx, "/srv/", guestapi.WriteOptions{Size: -1}, page); err != nil {
		return app.Built{}, err
	}
	snap, err := b.boxes.TakeSnapshot(ctx, req.Principal, box.ID, api.SnapshotRequest{})
	return app.Built{Snapshot: snap.ID, Result: appspec.Result{Start: "httpd $PORT"}}, err
}

func (*pageBuilder) Forget(context.Context, api.AppID) error { return nil }

// noVolumes implements app.Volumes.
type noVolumes struct{}

func (noVolumes) Delete(context.Context, auth.Principal, string, bool) error { return nil }

// appServer serves apps over a simulated host.
type appServer struct {
	*apps
	t       *testing.T
	p       auth.Principal
	db      *store.DB
	handler http.Handler
}

func newAppServer(t *testing.T) *appServer {
	t.Helper()
	n := newNode(t)
	s := &appServer{apps: &apps{suffix: "app.localhost"}, t: t, p: auth.Principal{Workspace: "ours", Admin: true}}
	host := hosttest.New()
	t.Cleanup(host.Close)
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.db, err = store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	must(err)
	t.Cleanup(func() { _ = s.db.Close() })
	quotas := quota.New(quota.Config{}, s.db)
	templates, err := template.New(host, s.db, template.BuiltinAliases(), quotas)
	must(err)
	boxes, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{
		Store: s.db, Host: host, Templates: templates, Quotas: quotas, Log: n.Log,
	})
	must(err)
	s.files, err = n.staticFiles(t.Context())
	must(err)
	t.Cleanup(func() { _ = n.undo.Unwind(context.WithoutCancel(t.Context())) })
	s.service, err = app.New(app.Config{Suffix: s.suffix, URL: "http://127.0.0.1:1", Interval: time.Hour}, app.Deps{
		Store: s.db, Sandboxes: boxes, Volumes: noVolumes{}, Templates: templates,
		Builder: &pageBuilder{boxes, s.apps}, Quotas: quotas, Log: n.Log,
	})
	must(err)
	must(n.customDomains(t.Context(), s.apps, s.db))
	ports := proxy.New(proxy.Config{Log: n.Log})
	t.Cleanup(ports.Close)
	must(n.appEdge(t.Context(), s.apps, ports, prometheus.NewRegistry()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.edge.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(<-done)
	})
	s.handler = s.middleware(n, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "the API")
	}))
	return s
}

// deploy deploys a reference of the app site, which it makes if need be.
func (s *appServer) deploy(ref string) api.App {
	s.t.Helper()
	ctx := s.t.Context()
	a, err := s.service.Get(ctx, s.p, "site")
	if api.CodeOf(err) == api.NotFound {
		req := api.CreateAppRequest{Name: "site", GitURL: "https://git.test/site.git", Port: 80}
		a, err = s.service.Create(ctx, s.p, req)
	}
	if err == nil {
		_, err = s.service.Deploy(ctx, s.p, string(a.ID), api.DeployRequest{GitRef: ref})
	}
	if err == nil {
		err = s.service.Reconcile(ctx)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *appServer) get(host string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+host+"/", nil)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func (s *appServer) want(host string, status int, text string) {
	s.t.Helper()
	if w := s.get(host); w.Code != status || !strings.Contains(w.Body.String(), text) {
		s.t.Errorf("%s: %d %q, want %d with %q", host, w.Code, w.Body, status, text)
	}
}

// TestAppIsServed deploys an app, replaces it by another version and by files, and asks for it by all its names.
func TestAppIsServed(t *testing.T) {
	s := newAppServer(t)
	const own = "site.app.localhost"
	s.want(own, http.StatusOK, "the API")
	a := s.deploy("one")
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { s.want(own, http.StatusOK, "version one") })
	}
	group.Wait()
	for _, host := range []string{"other.app.localhost", "localhost", "127.0.0.1", "3000-sbxabc.app.localhost"} {
		s.want(host, http.StatusOK, "the API")
	}
	s.deploy("two")
	s.want(own, http.StatusOK, "version two")
	row := store.AppDomain{
		Domain: "www.example.com", App: string(a.ID), Workspace: "ours", State: string(api.DomainVerified),
	}
	err := s.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertAppDomain(ctx, &row)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.want("www.example.com", http.StatusOK, "version two")
	if w := s.get("example.com"); w.Header().Get("Location") != "http://www.example.com/" {
		t.Errorf("example.com: %d %v", w.Code, w.Header())
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.test/", nil)
	s.edge.ForwardApp(w, r, a, "/v1/apps/site/proxy", func(_ http.ResponseWriter, _ *http.Request, err *api.Error) {
		t.Error(err)
	})
	if w.Body.String() != "version two" {
		t.Errorf("through the API: %d %s", w.Code, w.Body)
	}
	s.deploy("files")
	s.want(own, http.StatusOK, "home")
	if got := s.edge.Stats(a.ID); got.Requests != 24 || got.Statuses["2xx"] != 24 {
		t.Errorf("stats %+v", got)
	}
}
