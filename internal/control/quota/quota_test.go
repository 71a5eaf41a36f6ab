package quota_test

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/lib/config"
)

func open(t *testing.T, dsn string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// TestEveryKindHasASetting: the default of each kind is the setting of its name below "quota", and there is no other.
func TestEveryKindHasASetting(t *testing.T) {
	var set config.Quota
	settings := map[string]bool{}
	v := reflect.ValueOf(&set).Elem()
	for i := range v.NumField() {
		settings[v.Type().Field(i).Tag.Get("yaml")] = true
		v.Field(i).SetInt(int64(i + 1))
	}
	defaults := quota.Defaults(set)
	seen := map[int64]bool{}
	for _, kind := range quota.Kinds() {
		if !settings[string(kind)] || defaults[kind] == 0 || seen[defaults[kind]] {
			t.Errorf("kind %s: setting %v, default %d", kind, settings[string(kind)], defaults[kind])
		}
		seen[defaults[kind]] = true
	}
	if len(settings) != len(quota.Kinds()) {
		t.Errorf("%d settings for %d kinds", len(settings), len(quota.Kinds()))
	}
}

func TestParse(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for name, c := range map[string]struct {
		asked map[string]*int64
		field string // of the error; "": none
	}{
		"nothing":   {nil, ""},
		"valid":     {map[string]*int64{"vcpus": n(8), "disk_mib": n(0), "snapshots": nil}, ""},
		"largest":   {map[string]*int64{"disk_mib": n(1 << 40)}, ""},
		"unknown":   {map[string]*int64{"cpus": n(8)}, "quotas"},
		"negative":  {map[string]*int64{"vcpus": n(-1)}, "quotas.vcpus"},
		"too-large": {map[string]*int64{"vcpus": n(1<<40 + 1)}, "quotas.vcpus"},
	} {
		_, err := quota.Parse(c.asked)
		if c.field == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if e := api.AsError(err); e == nil || e.Code != api.Invalid || e.Details["field"] != c.field {
			t.Errorf("%s: got %v, want invalid of field %s", name, err, c.field)
		}
	}
}

// TestOwnQuotas: a quota of its own takes the place of the default, 0 is unlimited, and nil is the default again.
func TestOwnQuotas(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "c.db"))
	var refusals []quota.Kind
	q := quota.New(quota.Config{
		Defaults: map[quota.Kind]int64{quota.Templates: 2},
		Refused:  func(kind quota.Kind) { refusals = append(refusals, kind) },
	}, db)
	admit := func(n int64) error {
		return db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return q.Admit(ctx, tx, "w", quota.Amount{Kind: quota.Templates, N: n})
		})
	}
	set := func(n *int64) {
		t.Helper()
		err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return quota.Change{quota.Templates: n}.Apply(ctx, tx, "w")
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	n := func(v int64) *int64 { return &v }
	for _, c := range []struct {
		name string
		own  *int64
		most int64 // that may be asked for; 0: any number
	}{
		{"default", nil, 2}, {"smaller", n(1), 1}, {"larger", n(5), 5}, {"unlimited", n(0), 0},
		{"default-again", nil, 2},
	} {
		set(c.own)
		most := c.most
		if most == 0 {
			most = 1 << 30
		}
		if err := admit(most); err != nil {
			t.Errorf("%s: %d: %v", c.name, most, err)
		}
		if err := admit(c.most + 1); c.most > 0 && api.CodeOf(err) != api.QuotaExceeded {
			t.Errorf("%s: %d: got %v, want quota_exceeded", c.name, c.most+1, err)
		}
		all, err := q.Usage(t.Context(), "w")
		for _, line := range all {
			if line.Kind == string(quota.Templates) && (line.Allowed != c.most || line.IsDefault != (c.own == nil)) {
				t.Errorf("%s: shown as %+v, %v", c.name, line, err)
			}
		}
	}
	if len(refusals) != 4 || refusals[0] != quota.Templates {
		t.Errorf("refusals %v, want 4 of templates", refusals)
	}
	if err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return q.Admit(ctx, tx, "w", quota.Amount{Kind: quota.EgressRate, N: 1})
	}); err == nil {
		t.Error("a rate was used up")
	}
}

// TestSuspension: a suspension holds at once, also for what is admitted in transactions, and for no other workspace.
func TestSuspension(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "c.db"))
	q := quota.New(quota.Config{}, db)
	ctx := t.Context()
	if _, err := q.SetSuspended(ctx, "w", true); err == nil || !strings.Contains(err.Error(), "no such row") {
		t.Errorf("a workspace that does not exist: %v", err)
	}
	admit := func(w api.Workspace) error {
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error { return q.Admit(ctx, tx, w) })
	}
	for _, w := range []api.Workspace{"w", "other"} { // this makes them
		if err := admit(w); err != nil {
			t.Fatal(err)
		}
	}
	for _, suspend := range []bool{true, false, true} {
		for _, first := range []bool{true, false} {
			if changed, err := q.SetSuspended(ctx, "w", suspend); err != nil || changed != first {
				t.Errorf("suspend %v: changed %v, %v", suspend, changed, err)
			}
		}
		for _, err := range []error{q.CheckActive(ctx, "w"), admit("w")} {
			if (api.CodeOf(err) == api.WorkspaceSuspended) != suspend || (err != nil) != suspend {
				t.Errorf("suspended %v: %v", suspend, err)
			}
		}
		for _, err := range []error{q.CheckActive(ctx, "other"), admit("other")} {
			if err != nil {
				t.Errorf("another workspace: %v", err)
			}
		}
	}
	again := quota.New(quota.Config{}, db)
	if list, err := again.Suspended(ctx); err != nil || len(list) != 1 || list[0] != "w" {
		t.Errorf("after a restart, %v are suspended, %v", list, err)
	}
}

// TestSuspensionByAnotherProcess: processes that share a store learn of each other's suspensions.
func TestSuspensionByAnotherProcess(t *testing.T) {
	address := storetest.Postgres(t)(t)
	one, two := open(t, address), open(t, address)
	here, there := quota.New(quota.Config{}, one), quota.New(quota.Config{}, two)
	err := one.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertWorkspace(ctx, &store.Workspace{ID: "w"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := there.CheckActive(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if _, err := here.SetSuspended(t.Context(), "w", true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for api.CodeOf(there.CheckActive(ctx, "w")) != api.WorkspaceSuspended {
		select {
		case <-ctx.Done():
			t.Fatal("the other process does not see the suspension")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
