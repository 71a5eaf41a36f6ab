package template_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
)

func TestTemplates(t *testing.T) {
	h := hosttest.New()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := template.New(h, db, template.BuiltinAliases(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	member := auth.Principal{Workspace: "w", Admin: true}
	operator := auth.Principal{Workspace: "w", Operator: true}
	all, err := s.List(ctx, member)
	if err != nil || len(all) != 2 || all[0].Name != "base" || !all[0].Baked || all[1].Name != "raw" || all[1].Baked ||
		all[1].BakedAt != nil {
		t.Errorf("templates %+v, %v", all, err)
	}
	for _, name := range []string{"base", "ubuntu-24.04", "default"} {
		if got, err := s.Resolve(ctx, member, name); err != nil || got.Name != "base" || got.User != "user" {
			t.Errorf("%s is %+v, %v; want base", name, got, err)
		}
	}
	_, err = s.Get(ctx, member, "nosuch")
	if api.CodeOf(err) != api.NotFound || !strings.Contains(err.Error(), "base") {
		t.Errorf("unknown: %v, want not_found that names what there is", err)
	}
	configured, err := template.New(h, db, map[string]string{"ubuntu-24.04": "raw"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := configured.Resolve(ctx, member, "ubuntu-24.04"); err != nil || got.Name != "raw" {
		t.Errorf("the configuration's alias is %+v, %v; want raw", got, err)
	}
	h.AddTemplate(
		hostapi.Template{Name: "ubuntu-24.04", Disks: []hostapi.DataDisk{{Name: "data", SizeMiB: 64, Mount: "/data"}}},
	)
	got, err := s.Get(ctx, member, "ubuntu-24.04")
	if err != nil || got.Name != "ubuntu-24.04" {
		t.Errorf("a template wins over an alias: got %s, %v", got.Name, err)
	}
	if want := []api.DataDisk{{Name: "data", SizeMB: 64, MountPath: "/data"}}; !slices.Equal(got.DataDisks, want) {
		t.Errorf("its data disks are %v, want %v", got.DataDisks, want)
	}
	if err := s.SetAlias(ctx, member, "mine", "base"); api.CodeOf(err) != api.Forbidden {
		t.Errorf("an admin set an alias: %v", err)
	}
	if err := s.SetAlias(ctx, operator, "mine", "raw"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Bake(ctx, member, "mine", api.BakeRequest{}); err != nil || got.Name != "raw" || !got.Baked ||
		got.Bake == nil ||
		got.Bake.State != "done" {
		t.Errorf("baked %+v, %v", got, err)
	}
	if _, err := s.Bake(ctx, member, "base", api.BakeRequest{Force: true}); api.CodeOf(err) != api.Forbidden {
		t.Errorf("forced bake by an admin = %v, want forbidden", err)
	}
	h.Fail("startbake", hostapi.ErrNoSpace)
	if _, err := s.Bake(ctx, operator, "base", api.BakeRequest{Force: true}); api.CodeOf(err) != api.NoSpace {
		t.Errorf("bake on a full disk: %v", err)
	}
	h.Fail("templates", errors.New("away"))
	if _, err := s.List(ctx, member); api.CodeOf(err) != api.Unavailable {
		t.Errorf("host away: %v, want unavailable", err)
	}
}
