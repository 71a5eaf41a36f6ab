package preview_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/preview"
	"github.com/pandastack/pandastack/internal/control/store"
)

const (
	box   api.SandboxID = "sbxaaaaaaaaaaaaaaaaaaaa"
	other api.SandboxID = "sbxbbbbbbbbbbbbbbbbbbbb"
)

var caller = auth.Principal{Workspace: "ours", KeyPrefix: "pds_12345678"}

type fixture struct {
	*preview.Previews
	db *store.DB
	t  *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // a test closes it earlier
	s, err := preview.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{s, db, t}
}

func (f *fixture) record(sandbox api.SandboxID, id string, expires time.Duration) {
	f.t.Helper()
	now := time.Now()
	info := api.PreviewInfo{ID: id, Port: 80, Paths: []string{"/a"}, CreatedAt: now, ExpiresAt: now.Add(expires)}
	if err := f.Record(f.t.Context(), caller, sandbox, info); err != nil {
		f.t.Fatal(err)
	}
}

// use opens a request by a preview and returns its context.
func (f *fixture) use(id string) context.Context {
	f.t.Helper()
	ctx, ok := f.Use(f.t.Context(), id, time.Now().Add(time.Hour))
	if !ok || ctx.Err() != nil {
		f.t.Fatalf("preview %s: got %v, %v; want an open request", id, ok, ctx.Err())
	}
	return ctx
}

func TestRevoke(t *testing.T) {
	f := newFixture(t)
	f.record(box, "pvw1", time.Hour)
	f.record(box, "pvw2", time.Hour)
	f.record(other, "pvw3", time.Hour)
	one, two := f.use("pvw1"), f.use("pvw2")
	for _, id := range []string{"pvw3", "pvw9", ""} {
		if err := f.Revoke(t.Context(), box, id); api.CodeOf(err) != api.NotFound {
			t.Errorf("revoking %q of the wrong sandbox: %v, want not_found", id, err)
		}
	}
	for range 2 {
		if err := f.Revoke(t.Context(), box, "pvw1"); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(context.Cause(one), preview.ErrRevoked) || two.Err() != nil {
		t.Errorf("then the open requests end by %v and %v, want the first alone", context.Cause(one), two.Err())
	}
	if _, ok := f.Use(t.Context(), "pvw1", time.Now().Add(time.Hour)); ok || !f.IsRevoked(t.Context(), "pvw1") ||
		f.IsRevoked(t.Context(), "pvw2") {
		t.Error("the revoked preview still opens, or the other one does not")
	}
	list, err := f.List(t.Context(), box)
	if err != nil || len(list) != 2 || list[0].ID != "pvw2" || list[0].RevokedAt != nil || list[1].RevokedAt == nil ||
		list[0].CreatedBy != caller.KeyPrefix || len(list[0].Paths) != 1 {
		t.Errorf("list is %+v, %v", list, err)
	}
}

// TestRevokeAll checks that previews without rows, which an earlier release made, end with the others.
func TestRevokeAll(t *testing.T) {
	f := newFixture(t)
	f.record(box, "pvw1", time.Hour)
	f.record(other, "pvw3", time.Hour)
	one, earlier, foreign := f.use("pvw1"), f.use("pvwaaa"), f.use("pvw3")
	for range 2 {
		if err := f.RevokeAll(t.Context(), caller, box, "pvwaaa"); err != nil {
			t.Fatal(err)
		}
	}
	if one.Err() == nil || earlier.Err() == nil || foreign.Err() != nil {
		t.Errorf("open requests: %v, %v, %v; want the last alone to go on", one.Err(), earlier.Err(), foreign.Err())
	}
	f.record(box, "pvw4", time.Hour)
	for id, want := range map[string]bool{"pvw1": true, "pvwaaa": true, "pvw3": false, "pvw4": false} {
		if got := f.IsRevoked(t.Context(), id); got != want {
			t.Errorf("%s: revoked is %v, want %v", id, got, want)
		}
	}
	if list, err := f.List(t.Context(), box); err != nil || len(list) != 2 {
		t.Errorf("list is %+v, %v; want the two that were recorded", list, err)
	}
}

func TestExpiry(t *testing.T) {
	f := newFixture(t)
	f.record(box, "pvw1", -time.Second)
	f.record(box, "pvw2", time.Hour)
	if list, err := f.List(t.Context(), box); err != nil || len(list) != 1 {
		t.Errorf("list is %+v, %v; want the one that is valid", list, err)
	}
	if _, err := f.db.Read().Preview(t.Context(), "pvw1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the expired preview is still stored: %v", err)
	}
	ctx, _ := f.Use(t.Context(), "pvw2", time.Now().Add(-time.Second))
	if !errors.Is(context.Cause(ctx), preview.ErrExpired) {
		t.Errorf("a request by an expired preview ends by %v", context.Cause(ctx))
	}
}

// TestFailClosed checks that no preview opens while revocations cannot be read.
func TestFailClosed(t *testing.T) {
	f := newFixture(t)
	f.record(box, "pvw1", time.Hour)
	if err := f.db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Use(t.Context(), "pvw1", time.Now().Add(time.Hour)); ok || !f.IsRevoked(t.Context(), "pvw1") {
		t.Error("the preview opens without the store")
	}
}
