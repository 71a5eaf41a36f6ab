package build_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
)

// TestCredentialsHaveOneServer builds from images with credentials that name no server.
func TestCredentialsHaveOneServer(t *testing.T) {
	who := &api.RegistryAuth{Username: "u", Password: "p"}
	named := &api.RegistryAuth{Server: "two.test", Username: "u", Password: "p"}
	const (
		oneRegistry   = "FROM one.test/a:1 AS x\nFROM one.test/b:1\nCOPY --from=x /etc/os /os\n"
		twoRegistries = "FROM one.test/a:1 AS x\nFROM two.test/b:1\nCOPY --from=x /etc/os /os\n"
	)
	for _, row := range []struct {
		name  string
		spec  build.Spec
		auth  *api.RegistryAuth
		shown []string // nil: the build is refused
	}{
		{"image", build.Spec{BuildRequest: api.BuildRequest{Name: "app", ImageRef: "one.test/a:1"}}, who,
			[]string{"one.test/a:1 u@one.test"}},
		{"dockerfile on a template", dockerfileOf("app", "FROM base\nRUN echo 1\n"), who, []string{}},
		{"images of one registry", dockerfileOf("app", oneRegistry), who,
			[]string{"one.test/a:1 u@one.test", "one.test/b:1 u@one.test"}},
		{"images of two", dockerfileOf("app", twoRegistries), who, nil},
		{"images of two, with a server", dockerfileOf("app", twoRegistries), named,
			[]string{"one.test/a:1 u@two.test", "two.test/b:1 u@two.test"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFixture(t, nil)
			for _, ref := range []string{"one.test/a:1", "one.test/b:1", "two.test/b:1"} {
				w.images[ref] = image{digest: "sha256:" + ref, files: map[string]string{"etc/os": "img"}}
			}
			row.spec.Registry = row.auth
			b, log := w.wait(w.enqueue(row.spec, nil).ID)
			w.mu.Lock()
			defer w.mu.Unlock()
			slices.Sort(w.shown)
			switch {
			case row.shown == nil:
				if b.Code != api.Invalid || !strings.Contains(b.Error, "registry.server") || len(w.shown) > 0 {
					t.Errorf("got %s %q, credentials %v; want it refused before any are used", b.Code, b.Error, w.shown)
				}
			case b.Status != api.BuildDone || !slices.Equal(slices.Compact(w.shown), row.shown):
				t.Errorf("got %s %q, credentials %v; want %v\n%s", b.Status, b.Error, w.shown, row.shown, log)
			}
		})
	}
}
