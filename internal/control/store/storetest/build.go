package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func templates(t *testing.T, db *store.DB) {
	ctx := t.Context()
	mine := &store.Template{ID: "tpl1", Workspace: "w1", Name: "app", Created: 1}
	shared := &store.Template{ID: "tpl2", Workspace: "w2", Name: "app", Everyone: true, Created: 2}
	version := &store.Version{
		ID:       "v1",
		Template: "tpl1",
		Hash:     "h",
		VCPUs:    2,
		Env:      store.Pairs{"A": "1"},
		User:     "me",
		Created:  5,
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.InsertTemplate(ctx, mine), tx.InsertTemplate(ctx, shared), tx.InsertVersion(ctx, version),
			tx.InsertVersion(ctx, &store.Version{ID: "v2", Template: "tpl1", Created: 6}),
			tx.PutTag(ctx, &store.Tag{Template: "tpl1", Tag: "default", Version: "v1"}),
			tx.PutTag(ctx, &store.Tag{Template: "tpl1", Tag: "default", Version: "v2"}),
			tx.PutTag(ctx, &store.Tag{Template: "tpl1", Tag: "old", Version: "v1"}))
	})
	for name, row := range map[string]*store.Template{"same-workspace": {ID: "x", Workspace: "w1", Name: "app"},
		"everyone": {ID: "y", Workspace: "w3", Name: "app", Everyone: true}} {
		err := db.Write(
			ctx,
			"test",
			func(ctx context.Context, tx *store.Tx) error { return tx.InsertTemplate(ctx, row) },
		)
		if !errors.Is(err, store.ErrExists) {
			t.Errorf("%s: the name is taken twice: %v", name, err)
		}
	}
	for workspace, want := range map[string]string{"w1": "tpl1", "w2": "tpl2", "w3": ""} {
		got, err := db.Read().TemplateNamed(ctx, workspace, "app")
		if got.ID != want || err != nil != (want == "") {
			t.Errorf("app means %s to %s, %v; want %s", got.ID, workspace, err, want)
		}
	}
	if list, err := db.Read().Templates(ctx, "w3"); err != nil || len(list) != 1 {
		t.Errorf("templates of w3: %v, %v", list, err)
	}
	if got, err := db.Read().Version(ctx, "v1"); err != nil || fmt.Sprint(got) != fmt.Sprint(*version) {
		t.Errorf("version %+v, %v", got, err)
	}
	if list, err := db.Read().Versions(ctx, "tpl1"); err != nil || len(list) != 2 || list[0].ID != "v2" {
		t.Errorf("versions %+v, %v", list, err)
	}
	if tags, err := db.Read().Tags(ctx, "tpl1"); err != nil || len(tags) != 2 || tags[0].Version != "v2" {
		t.Errorf("tags %+v, %v", tags, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteVersion(ctx, "v1") })
	if tags, err := db.Read().Tags(ctx, "tpl1"); err != nil || len(tags) != 1 {
		t.Errorf("tags after the end of a version: %+v, %v", tags, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteTag(ctx, "tpl1", "default") })
	mine.Description = "changed"
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.UpdateTemplate(ctx, mine, "description") })
	for range 2 {
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteTemplate(ctx, "tpl1") })
	}
	if _, err := db.Read().Version(ctx, "v2"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a version outlives its template: %v", err)
	}
	if _, err := db.Read().Template(ctx, "tpl1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted template: %v", err)
	}
}

func builds(t *testing.T, db *store.DB) {
	ctx := t.Context()
	want := &store.Build{
		ID:        "bld1",
		Workspace: "w1",
		Template:  "tpl1",
		Name:      "app",
		State:     "queued",
		Hash:      "h",
		Spec:      "{}",
		Steps:     3,
		Created:   10,
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertBuild(ctx, want),
			tx.InsertBuild(
				ctx,
				&store.Build{ID: "bld2", Workspace: "w2", State: "done", Spec: "{}", Created: 11, Ended: 20},
			),
			tx.AppendBuildLines(
				ctx,
				[]store.BuildLine{
					{Build: "bld1", Seq: 1, Line: "one", Level: "info"},
					{Build: "bld1", Seq: 2, Line: "two"},
				},
			),
			tx.AppendBuildLines(ctx, nil),
		)
	})
	if got, err := db.Read().Build(ctx, "bld1"); err != nil || fmt.Sprint(got) != fmt.Sprint(*want) {
		t.Errorf("build %+v, %v", got, err)
	}
	for name, tc := range map[string]struct {
		q    store.BuildQuery
		want int
	}{"all": {store.BuildQuery{}, 2}, "workspace": {store.BuildQuery{Workspace: "w1"}, 1},
		"states": {store.BuildQuery{States: []string{"done", "failed"}}, 1},
		"hash":   {store.BuildQuery{Hash: "h", Template: "tpl1"}, 1}, "ended": {store.BuildQuery{EndedBefore: 20},
			0}, "limit": {store.BuildQuery{Limit: 1}, 1}} {
		if rows, err := db.Read().Builds(ctx, tc.q); err != nil || len(rows) != tc.want {
			t.Errorf("%s: %d rows, %v; want %d", name, len(rows), err, tc.want)
		}
	}
	want.State, want.Done = "running", 2
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateBuild(ctx, want, []string{"queued", "x"}, "state")
	})
	err := db.Write(
		ctx,
		"test",
		func(ctx context.Context, tx *store.Tx) error { return tx.UpdateBuild(ctx, want, []string{"queued"}) },
	)
	if got, _ := db.Read().Build(ctx, "bld1"); !errors.Is(err, store.ErrNotFound) || got.State != "running" ||
		got.Done != 0 {
		t.Errorf("after updates: %+v, %v", got, err)
	}
	if rows, err := db.Read().BuildLines(ctx, "bld1", 1, 10); err != nil || len(rows) != 1 || rows[0].Line != "two" {
		t.Errorf("lines %+v, %v", rows, err)
	}
	for id, want := range map[string]int64{"bld1": 2, "bld2": 0} {
		if last, err := db.Read().LastBuildLine(ctx, id); err != nil || last != want {
			t.Errorf("last line of %s is %d, %v; want %d", id, last, err, want)
		}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteBuild(ctx, "bld1") })
	if rows, err := db.Read().BuildLines(ctx, "bld1", 0, 10); err != nil || len(rows) != 0 {
		t.Errorf("lines of a deleted build: %+v, %v", rows, err)
	}
}

func layers(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertLayer(ctx, &store.Layer{Workspace: "w1", Name: "k1", Snapshot: "s1", Bytes: 5, Used: 1}),
			tx.InsertLayer(ctx, &store.Layer{Workspace: "w1", Name: "k2", Snapshot: "s2", Used: 2}),
			tx.InsertLayer(ctx, &store.Layer{Workspace: "w2", Name: "k1", Snapshot: "s3", Used: 3}),
			tx.TouchLayer(ctx, "w1", "k1", 9),
		)
	})
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertLayer(ctx, &store.Layer{Workspace: "w1", Name: "k1"})
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("a layer twice: %v", err)
	}
	if rows, err := db.Read().Layers(ctx, "w1"); err != nil || len(rows) != 2 || rows[0].Name != "k2" ||
		rows[1].Used != 9 {
		t.Errorf("layers %+v, %v", rows, err)
	}
	if rows, err := db.Read().Layers(ctx, "w1", "k1", "k9"); err != nil || len(rows) != 1 || rows[0].Snapshot != "s1" {
		t.Errorf("layers by name %+v, %v", rows, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteLayer(ctx, "w1", "k1") })
	if rows, err := db.Read().Layers(ctx, ""); err != nil || len(rows) != 2 {
		t.Errorf("all layers %+v, %v", rows, err)
	}
}
