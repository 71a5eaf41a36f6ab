package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func workspaces(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertWorkspace(ctx, &store.Workspace{ID: "a", Name: "A", Created: 1}),
			tx.InsertWorkspace(ctx, &store.Workspace{ID: "b", Created: 2}),
			tx.InsertWorkspace(ctx, &store.Workspace{ID: "c", Created: 3}),
			tx.SetSuspended(ctx, "b", 7),
		)
	})
	for name, tc := range map[string]struct {
		q    store.WorkspaceQuery
		want []string
	}{
		"all":       {store.WorkspaceQuery{}, []string{"a", "b", "c"}},
		"page":      {store.WorkspaceQuery{Limit: 2}, []string{"a", "b"}},
		"next":      {store.WorkspaceQuery{AfterID: "b", Limit: 2}, []string{"c"}},
		"suspended": {store.WorkspaceQuery{Suspended: true}, []string{"b"}},
	} {
		rows, err := db.Read().Workspaces(ctx, tc.q)
		ids := []string{}
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		if err != nil || !slices.Equal(ids, tc.want) {
			t.Errorf("%s: got %v, %v; want %v", name, ids, err, tc.want)
		}
	}
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertWorkspace(ctx, &store.Workspace{ID: "a"})
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("a workspace twice: got %v, want ErrExists", err)
	}
	err = db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error { return tx.SetSuspended(ctx, "x", 1) })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a missing workspace suspended: got %v, want ErrNotFound", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.SetSuspended(ctx, "b", 0),
			tx.PutQuota(ctx, &store.Quota{Workspace: "c", Kind: "x", Allowed: 1}),
			tx.DeleteWorkspace(ctx, "c"), tx.DeleteWorkspace(ctx, "c"))
	})
	if w, err := db.Read().Workspace(ctx, "b"); err != nil || w.Suspended != 0 {
		t.Errorf("resumed: %+v, %v", w, err)
	}
	if own, err := db.Read().Quotas(ctx, "c"); err != nil || len(own) != 0 {
		t.Errorf("quotas of a deleted workspace: %v, %v", own, err)
	}
}

func quotas(t *testing.T, db *store.DB) {
	ctx := t.Context()
	put := func(kind string, n int64) {
		t.Helper()
		write(t, db, func(ctx context.Context, tx *store.Tx) error {
			return tx.PutQuota(ctx, &store.Quota{Workspace: "w", Kind: kind, Allowed: n})
		})
	}
	put("sandboxes", 1)
	put("sandboxes", 2)
	put("vcpus", 1<<40)
	if own, err := db.Read().Quotas(ctx, "w"); err != nil ||
		!maps.Equal(own, map[string]int64{"sandboxes": 2, "vcpus": 1 << 40}) {
		t.Errorf("quotas %v, %v", own, err)
	}
	if own, err := db.Read().QuotasOf(ctx, "sandboxes"); err != nil || !maps.Equal(own, map[string]int64{"w": 2}) {
		t.Errorf("quotas of a kind %v, %v", own, err)
	}
	for range 2 {
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteQuota(ctx, "w", "sandboxes") })
	}
	if own, err := db.Read().Quotas(ctx, "w"); err != nil || !maps.Equal(own, map[string]int64{"vcpus": 1 << 40}) {
		t.Errorf("quotas after a removal %v, %v", own, err)
	}
}

// workspaceLock lets many transactions count and add, each under the lock of a workspace that does not exist yet.
func workspaceLock(t *testing.T, db *store.DB) {
	ctx := t.Context()
	const most, writers = 5, 20
	errFull := errors.New("full")
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
				if err := tx.LockWorkspace(ctx, &store.Workspace{ID: "w1", Name: "w1"}); err != nil {
					return err
				}
				sums, err := tx.SandboxSums(ctx, "w1")
				if err != nil {
					return err
				}
				if sums.Count == most {
					return errFull
				}
				return tx.InsertSandbox(ctx, sandbox(n))
			})
			if err != nil && !errors.Is(err, errFull) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if sums, err := db.Read().SandboxSums(ctx, "w1"); err != nil || sums.Count != most {
		t.Errorf("%d writers under a lock made %d rows, %v; want %d", writers, sums.Count, err, most)
	}
	locked := store.Workspace{ID: "w1", Name: "another"}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.LockWorkspace(ctx, &locked) })
	if locked.Name != "w1" {
		t.Errorf("a lock returned the name %q, want that of the row", locked.Name)
	}
}

func sums(t *testing.T, db *store.DB) {
	ctx := t.Context()
	if got, err := db.Read().SandboxSums(ctx, "w1"); err != nil || got != (store.SandboxSums{}) {
		t.Errorf("sums of nothing: %+v, %v", got, err)
	}
	asleep, plain, other := sandbox(2), sandbox(3), sandbox(4)
	asleep.State, plain.DataDisks, other.Workspace, plain.DiskMiB = "hibernated", "", "w2", 1<<30
	insert(t, db, sandbox(1), asleep, plain, other)
	want := store.SandboxSums{Count: 3, VCPUs: 6, MemoryMiB: 768, DiskMiB: 1 << 30}
	if got, err := db.Read().SandboxSums(ctx, "w1"); err != nil || got != want {
		t.Errorf("sums %+v, %v; want %+v", got, err, want)
	}
	want = store.SandboxSums{Count: 1, VCPUs: 2, MemoryMiB: 256}
	if got, err := db.Read().SandboxSums(ctx, "w1", "hibernated", "failed"); err != nil || got != want {
		t.Errorf("sums of a state %+v, %v; want %+v", got, err, want)
	}
	if disks, err := db.Read().DataDisks(ctx, "w1"); err != nil || len(disks) != 2 || disks[0] != asleep.DataDisks {
		t.Errorf("data disks %v, %v; want two", disks, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.PutDiskBytes(ctx, map[string]int64{"sbx001": 5, "sbx003": 1 << 40, "sbx004": 9, "missing": 1})
	})
	if n, err := db.Read().SandboxDiskBytes(ctx, "w1"); err != nil || n != 1<<40+5 {
		t.Errorf("disk bytes of sandboxes: %d, %v; want %d", n, err, int64(1<<40+5))
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertSnapshot(ctx, &store.Snapshot{ID: "s1", Workspace: "w1", State: "creating", Bytes: 1 << 40}),
			tx.InsertSnapshot(ctx, &store.Snapshot{ID: "s2", Workspace: "w1", State: "ready", Bytes: 5}),
			tx.InsertSnapshot(ctx, &store.Snapshot{ID: "s3", Workspace: "w2", Bytes: 7}),
			tx.InsertTemplate(ctx, &store.Template{ID: "t1", Workspace: "w1", Name: "a"}),
			tx.InsertTemplate(ctx, &store.Template{ID: "t2", Workspace: "w2", Name: "a"}),
			tx.InsertVersion(ctx, &store.Version{ID: "v1", Template: "t1", Bytes: 3}),
			tx.InsertVersion(ctx, &store.Version{ID: "v2", Template: "t1", Bytes: 4}),
			tx.InsertVersion(ctx, &store.Version{ID: "v3", Template: "t2", Bytes: 9}),
			tx.InsertBuild(ctx, &store.Build{ID: "b1", Workspace: "w1", State: "waiting", Spec: "{}"}),
			tx.InsertBuild(ctx, &store.Build{ID: "b2", Workspace: "w1", State: "running", Spec: "{}"}),
			tx.InsertBuild(ctx, &store.Build{ID: "b3", Workspace: "w1", State: "done", Spec: "{}"}),
			tx.InsertBuild(ctx, &store.Build{ID: "b4", Workspace: "w2", State: "queued", Spec: "{}"}),
		)
	})
	if n, bytes, err := db.Read().SnapshotSums(ctx, "w1"); err != nil || n != 2 || bytes != 1<<40+5 {
		t.Errorf("snapshots: %d with %d bytes, %v", n, bytes, err)
	}
	if n, err := db.Read().CountTemplates(ctx, "w1"); err != nil || n != 1 {
		t.Errorf("templates: %d, %v; want 1", n, err)
	}
	if n, err := db.Read().VersionBytes(ctx, "w1"); err != nil || n != 7 {
		t.Errorf("bytes of versions: %d, %v; want 7", n, err)
	}
	if n, err := db.Read().CountBuilds(ctx, "w1", store.UnendedBuildStates); err != nil || n != 2 {
		t.Errorf("builds that have not ended: %d, %v; want 2", n, err)
	}
}

func uploads(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.PutUpload(ctx, &store.Upload{ID: "d/1", Dir: "d", Workspace: "w1", Bytes: 5, Changed: 1}),
			tx.PutUpload(ctx, &store.Upload{ID: "d/1", Dir: "d", Workspace: "w1", Bytes: 6, Changed: 2}),
			tx.PutUpload(ctx, &store.Upload{ID: "e/1", Dir: "e", Workspace: "w1", Bytes: 1 << 40}),
			tx.PutUpload(ctx, &store.Upload{ID: "d/2", Dir: "d", Workspace: "w2", Bytes: 9}),
			tx.DeleteUpload(ctx, "d/3"),
		)
	})
	rows, err := db.Read().Uploads(ctx, "d")
	if err != nil || len(rows) != 2 || rows[0].Bytes != 6 || rows[0].Changed != 2 || rows[1].Workspace != "w2" {
		t.Errorf("uploads %+v, %v", rows, err)
	}
	if n, err := db.Read().UploadBytes(ctx, "w1"); err != nil || n != 1<<40+6 {
		t.Errorf("bytes of w1: %d, %v", n, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteUpload(ctx, "e/1") })
	if n, err := db.Read().UploadBytes(ctx, "w1"); err != nil || n != 6 {
		t.Errorf("bytes of w1 after a removal: %d, %v; want 6", n, err)
	}
}
