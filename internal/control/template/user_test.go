package template_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
)

type fixture struct {
	t  *testing.T
	h  *hosttest.Host
	db *store.DB
	*template.Service
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w := &fixture{t: t, h: hosttest.New(), db: db}
	if w.Service, err = template.New(w.h, db, template.BuiltinAliases(), nil); err != nil {
		t.Fatal(err)
	}
	return w
}

// version makes a version as a build does.
func (w *fixture) version(row store.Template, n int, tags ...string) string {
	w.t.Helper()
	id := string(api.NewBuildID())
	w.h.AddTemplate(
		hostapi.Template{Name: hostapi.TemplateName(id), VCPUs: 1, MemoryMiB: 64, Published: true, Baked: true},
	)
	var old []store.Version
	err := w.db.Write(w.t.Context(), "test", func(ctx context.Context, tx *store.Tx) (err error) {
		old, err = w.Add(
			ctx,
			tx,
			store.Version{
				ID:        id,
				Template:  row.ID,
				VCPUs:     1,
				MemoryMiB: 64,
				User:      "me",
				Env:       store.Pairs{"A": "1"},
				Created:   int64(n),
			},
			tags,
		)
		return err
	})
	if err := errors.Join(err, w.Drop(w.t.Context(), old)); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *fixture) wantVersion(p auth.Principal, ref, want string) {
	w.t.Helper()
	got, err := w.Resolve(w.t.Context(), p, ref)
	if want == "" && api.CodeOf(err) == api.NotFound {
		return
	}
	if err != nil || got.Host != want {
		w.t.Errorf("%s means %q, %v; want %q", ref, got.Host, err, want)
	}
}

var (
	alice = auth.Principal{Workspace: "a"}
	bob   = auth.Principal{Workspace: "b"}
	root  = auth.Principal{Workspace: "r", Admin: true, Operator: true}
)

func TestVersionsAndTags(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	row, made, err := w.Claim(ctx, alice, "app", false)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if again, made, err := w.Claim(ctx, alice, "app", false); err != nil || made || again.ID != row.ID {
		t.Errorf("claimed again: %+v, %v, %v", again, made, err)
	}
	w.wantVersion(alice, "app", "")
	v1 := w.version(row, 1)
	w.wantVersion(alice, "app", v1)
	w.wantVersion(alice, row.ID, v1)
	w.wantVersion(bob, "app", "")
	w.wantVersion(bob, row.ID, "")
	v2 := w.version(row, 2, "next")
	w.wantVersion(alice, "app", v1)
	w.wantVersion(alice, "app:next", v2)
	w.wantVersion(alice, "app:"+v2, v2)
	w.wantVersion(alice, "app:none", "")
	if _, err := w.Tag(ctx, alice, "app", api.TagRequest{Target: "next", Tags: []string{"default",
		"stable"}}); err != nil {
		t.Fatal(err)
	}
	w.wantVersion(alice, "app", v2)
	w.wantVersion(alice, "app:stable", v2)
	if err := w.Untag(ctx, alice, "app", "stable"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		err  error
		want api.Code
	}{
		"untag-twice":   {w.Untag(ctx, alice, "app", "stable"), api.NotFound},
		"untag-default": {w.Untag(ctx, alice, "app", "default"), api.Invalid},
		"untag-foreign": {w.Untag(ctx, bob, "app", "next"), api.NotFound},
		"delete-recipe": {w.Delete(ctx, root, "base"), api.Forbidden},
		"delete-none":   {w.Delete(ctx, bob, "app"), api.NotFound},
	} {
		if api.CodeOf(tc.err) != tc.want {
			t.Errorf("%s: %v, want %s", name, tc.err, tc.want)
		}
	}
	for _, tags := range [][]string{nil, {"a b"}, {v1}} {
		if _, err := w.Tag(ctx, alice, "app", api.TagRequest{Tags: tags}); api.CodeOf(err) != api.Invalid {
			t.Errorf("tags %q: %v", tags, err)
		}
	}
	list, err := w.Versions(ctx, alice, "app")
	if err != nil || len(list) != 2 || fmt.Sprint(list[0].Tags) != "[default next]" || len(list[1].Tags) != 0 {
		t.Errorf("versions %+v, %v", list, err)
	}
	if _, err := w.Versions(ctx, alice, "base"); api.CodeOf(err) != api.Unsupported {
		t.Errorf("versions of a recipe: %v", err)
	}
	if all, err := w.List(ctx, alice); err != nil || len(all) != 3 || all[0].Name != "app" || all[0].IsGlobal {
		t.Errorf("list %+v, %v", all, err)
	}
	if all, err := w.List(ctx, bob); err != nil || len(all) != 2 {
		t.Errorf("list of another %+v, %v", all, err)
	}
	if err := w.Delete(ctx, alice, "app"); err != nil {
		t.Fatal(err)
	}
	w.wantVersion(alice, "app", "")
	if left, _ := w.h.Templates(ctx); len(left) != 2 {
		t.Errorf("the host has %+v", left)
	}
}

// TestSizes: what a version takes is what its host says now, wherever it is looked at.
func TestSizes(t *testing.T) {
	w := newFixture(t)
	row, _, err := w.Claim(t.Context(), alice, "app", false)
	if err != nil {
		t.Fatal(err)
	}
	id := w.version(row, 1)
	w.h.AddTemplate(
		hostapi.Template{Name: hostapi.TemplateName(id), Published: true, Baked: true, Bytes: 7, ApparentBytes: 70},
	)
	got, err := w.Get(t.Context(), alice, "app")
	if err != nil || got.SizeBytes != 7 || got.ApparentBytes != 70 {
		t.Errorf("get: %d of %d, %v", got.SizeBytes, got.ApparentBytes, err)
	}
	list, err := w.List(t.Context(), alice)
	n := slices.IndexFunc(list, func(a api.Template) bool { return a.Name == "app" })
	if err != nil || n < 0 || list[n].SizeBytes != 7 || list[n].ApparentBytes != 70 {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestOldVersionsArePruned(t *testing.T) {
	w := newFixture(t)
	row, _, err := w.Claim(t.Context(), alice, "app", false)
	if err != nil {
		t.Fatal(err)
	}
	first := w.version(row, 1, "keep")
	for n := range 13 {
		w.version(row, n+2)
	}
	list, err := w.Versions(t.Context(), alice, "app")
	if err != nil || len(list) != 12 || list[11].ID != api.BuildID(first) {
		t.Errorf("%d versions, %v", len(list), err)
	}
	if left, _ := w.h.Templates(t.Context()); len(left) != 2+12 {
		t.Errorf("the host has %d", len(left))
	}
}

func TestTemplatesForEveryone(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	for name, who := range map[string]auth.Principal{"member": alice, "admin": {Workspace: "a", Admin: true}} {
		if _, _, err := w.Claim(ctx, who, "tool", true); api.CodeOf(err) != api.Forbidden {
			t.Errorf("%s claims for all workspaces: %v", name, err)
		}
	}
	row, _, err := w.Claim(ctx, root, "tool", true)
	if err != nil {
		t.Fatal(err)
	}
	v := w.version(row, 1)
	w.wantVersion(alice, "r/tool", v)
	w.wantVersion(alice, row.ID, v)
	w.wantVersion(root, "tool", v)
	w.wantVersion(root, "r/tool", v)
	w.wantVersion(alice, "tool", "")
	w.wantVersion(alice, "a/tool", "")
	if list, err := w.List(ctx, alice); err != nil || !slices.ContainsFunc(list, func(t api.Template) bool {
		return t.Name == "r/tool" && t.IsGlobal
	}) {
		t.Errorf("alice sees %+v, %v; want r/tool among them", list, err)
	}
	member := auth.Principal{Workspace: "r", Admin: true}
	for name, who := range map[string]auth.Principal{"other": alice, "admin-of-owner": member} {
		if err := w.Delete(ctx, who, "r/tool"); api.CodeOf(err) != api.Forbidden {
			t.Errorf("%s deletes: %v", name, err)
		}
	}
	if _, _, err := w.Claim(ctx, member, "tool", false); api.CodeOf(err) != api.Forbidden {
		t.Errorf("an admin makes a version for all workspaces: %v", err)
	}
	mine, made, err := w.Claim(ctx, alice, "tool", false)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	w.wantVersion(bob, "r/tool", v)
	w.wantVersion(bob, "a/tool", "") // it is private
	w.wantVersion(alice, "tool", w.version(mine, 2))
	for _, name := range []string{"base", "a b", "", "r/x", string(api.NewTemplateID())} {
		if _, _, err := w.Claim(ctx, alice, name, false); err == nil {
			t.Errorf("claimed %q", name)
		}
	}
	other := auth.Principal{Workspace: "o", Admin: true, Operator: true}
	if _, _, err := w.Claim(ctx, other, "tool", true); api.CodeOf(err) != api.Conflict {
		t.Errorf("claimed for everyone twice: %v", err)
	}
}

// TestTrustedNamesAreReserved checks that no workspace can put a template of its own in the place of a built-in one,
// for itself or for others.
func TestTrustedNamesAreReserved(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	for alias := range template.BuiltinAliases() {
		for name, who := range map[string]auth.Principal{"member": alice, "operator": root} {
			if _, _, err := w.Claim(ctx, who, alias, who.Operator); api.CodeOf(err) != api.Conflict {
				t.Errorf("%s claims %s: %v, want conflict", name, alias, err)
			}
		}
	}
	if err := w.SetAlias(ctx, root, "trusted", "base"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Claim(ctx, alice, "trusted", false); api.CodeOf(err) != api.Conflict {
		t.Errorf("claimed the name of an alias: %v, want conflict", err)
	}
	// A store of an earlier release may have a shared template under such a name.
	old := store.Template{ID: string(api.NewTemplateID()),
		Workspace: "evil", Name: "code-interpreter-v1", Everyone: true}
	node := store.Template{ID: string(api.NewTemplateID()), Workspace: "evil", Name: "node", Everyone: true}
	for _, row := range []store.Template{old, node} {
		err := w.db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.InsertTemplate(ctx, &row)
		})
		if err != nil {
			t.Fatal(err)
		}
		w.version(row, 1)
	}
	if got, err := w.Resolve(ctx, alice, "code-interpreter-v1"); err != nil || got.Host != "base" {
		t.Errorf("code-interpreter-v1 means %q, %v; want base", got.Host, err)
	}
	w.wantVersion(alice, "node", "") // an image of a registry, for builds
}

func TestDeleteWaitsForBuilds(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	row, _, err := w.Claim(ctx, alice, "app", false)
	if err != nil {
		t.Fatal(err)
	}
	v := w.version(row, 1)
	build := &store.Build{ID: "bld1", Workspace: "a", Template: row.ID, State: "running", Spec: "{}"}
	set := func(state string, f func(ctx context.Context, tx *store.Tx) error) {
		t.Helper()
		build.State = state
		if err := w.db.Write(ctx, "test", f); err != nil {
			t.Fatal(err)
		}
	}
	set("running", func(ctx context.Context, tx *store.Tx) error { return tx.InsertBuild(ctx, build) })
	if err := w.Delete(ctx, alice, "app"); api.CodeOf(err) != api.Conflict {
		t.Errorf("deleted under a build: %v", err)
	}
	w.wantVersion(alice, "app", v)
	set(
		"done",
		func(ctx context.Context, tx *store.Tx) error { return tx.UpdateBuild(ctx, build, []string{"running"}) },
	)
	w.h.Fail("deletetemplate", errors.New("away"))
	if err := w.Delete(ctx, alice, "app"); api.CodeOf(err) != api.Unavailable {
		t.Errorf("deleted while the host is away: %v", err)
	}
	w.wantVersion(alice, "app", "")
}

func TestForget(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	row, _, err := w.Claim(ctx, alice, "app", false)
	if err != nil {
		t.Fatal(err)
	}
	w.version(row, 1)
	if err := w.Forget(ctx, row.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Get(ctx, alice, "app"); err != nil {
		t.Errorf("a template with a version was forgotten: %v", err)
	}
	empty, _, err := w.Claim(ctx, alice, "empty", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Forget(ctx, empty.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Read().Template(ctx, empty.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a template without versions is left: %v", err)
	}
}
