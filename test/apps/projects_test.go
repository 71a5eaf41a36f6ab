//go:build apps

package apps

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/os/clientconfig"
	"github.com/pandastack/pandastack/test/nodelab"
)

// lab is a node with apps.
type lab struct {
	*nodelab.Node
	c *client.Client
}

// registries returns the addresses of the registries that this host uses, for machines that may reach no private ones.
func registries(t *testing.T) string {
	t.Helper()
	found, err := clientconfig.Here().Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, text := range append(strings.Split(found.Go, ","), found.NPM, found.PyPI) {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", u.Hostname())
		if err != nil {
			t.Skipf("probe %s: %v", u.Hostname(), err)
		}
		for _, ip := range ips {
			all = append(all, netip.PrefixFrom(ip, 32).String())
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// TestProjects takes every project through a push, a change and a rollback.
func TestProjects(t *testing.T) {
	tool(t, "git")
	n := nodelab.Start(t, nodelab.DataDir(t), "--apps-mirrors-from-host=true", "--network-allow", registries(t))
	n.Bake("base")
	n.JSON(nil, "template", "bake", "postgres-16")
	c, err := client.New(n.URL, n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	for i := range projects {
		p := &projects[i]
		t.Run(p.name, func(t *testing.T) { (&site{t: t, l: &lab{n, c}, p: p}).all() })
	}
}

// site is a deployed project.
type site struct {
	t *testing.T
	l *lab
	p *project
	g *generator
}

func (s *site) all() {
	ctx := s.t.Context()
	s.g = &generator{t: s.t, dir: filepath.Join(s.t.TempDir(), "site")}
	if err := os.Mkdir(s.g.dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.p.generate(s.g)
	s.g.commit("the first version")
	req := s.p.app
	req.Name = s.p.name
	req.Health = &api.AppHealth{TimeoutSeconds: 240}
	if s.p.database {
		req.Databases = []api.DatabaseID{s.database()}
	}
	if err := s.l.c.Apps.Delete(ctx, req.Name); err != nil && api.CodeOf(err) != api.NotFound { // of a killed test
		s.t.Fatal(err)
	}
	if _, err := s.l.c.Apps.Create(ctx, req); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := s.l.c.Apps.Delete(context.WithoutCancel(ctx), s.p.name); err != nil {
			s.t.Errorf("delete: %v", err)
		}
	}()
	first := s.push()
	s.wants(s.p.old)
	s.p.change(s.g)
	s.g.commit("the second version")
	second := s.push()
	s.wants(s.p.new)
	began := time.Now()
	if _, err := s.l.c.Apps.Rollback(ctx, s.p.name, ""); err != nil {
		s.t.Fatal(err)
	}
	s.wants(s.p.old)
	s.t.Logf("first %s, second %s, rollback %s", first.Round(time.Second), second.Round(time.Second),
		time.Since(began).Round(time.Millisecond))
}

// database returns a new database, which is deleted after the app.
func (s *site) database() api.DatabaseID {
	s.t.Helper()
	d, err := s.l.c.Databases.Create(s.t.Context(), api.CreateDatabaseRequest{Label: s.p.name})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := s.l.c.Databases.Delete(context.WithoutCancel(s.t.Context()), d.ID); err != nil {
			s.t.Errorf("delete the database: %v", err)
		}
	})
	if _, err := s.l.c.Databases.WaitUntilRunning(s.t.Context(), d.ID); err != nil {
		s.t.Fatal(err)
	}
	return d.ID
}

// push pushes the project and returns how long it took until it was live.
func (s *site) push() time.Duration {
	s.t.Helper()
	remote, err := url.Parse(s.l.URL + "/git/" + s.p.name + ".git")
	if err != nil {
		s.t.Fatal(err)
	}
	remote.User = url.UserPassword("x", s.l.AccessKey())
	began := time.Now()
	c := exec.CommandContext(s.t.Context(), "git", "-C", s.g.dir, "push", remote.String(), "main")
	c.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("remote: Live at ")) {
		s.t.Fatalf("git push: %v\n%s", err, out)
	}
	return time.Since(began)
}

// wants requests the app and checks the response.
func (s *site) wants(text string) {
	s.t.Helper()
	at := s.l.URL + "/" + strings.TrimPrefix(s.p.path, "/")
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, at, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Host = s.p.name + ".app.localhost"
	response, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(text)) ||
		!bytes.Contains(body, []byte(s.p.also)) {
		s.t.Fatalf("status %d, %v, %s; want %q and %q", response.StatusCode, err, body, text, s.p.also)
	}
}
