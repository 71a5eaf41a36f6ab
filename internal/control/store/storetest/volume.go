package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func volume(id, name string) *store.Volume {
	return &store.Volume{ID: id, Workspace: "w1", Name: name, State: store.VolumeReady, Disk: "d" + id, SizeMiB: 10,
		Policy: "{}", Created: 1}
}

func volumes(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.InsertVolume(ctx, volume("v1", "a")), tx.InsertVolume(ctx, volume("v2", "b")))
	})
	write(t, db, func(ctx context.Context, tx *store.Tx) error { // the transaction stays usable
		if err := tx.InsertVolume(ctx, volume("v3", "a")); !errors.Is(err, store.ErrExists) {
			t.Errorf("a name that is taken: %v, want ErrExists", err)
		}
		return tx.InsertVolume(ctx, volume("v3", "c"))
	})
	if got, err := db.Read().VolumeByName(ctx, "w1", "a"); err != nil || got != *volume("v1", "a") {
		t.Errorf("read %+v, %v", got, err)
	}
	if got, err := db.Read().VolumeByDisk(ctx, "dv2"); err != nil || got.ID != "v2" {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := db.Read().VolumeByName(ctx, "w2", "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a volume of another workspace: %v, want ErrNotFound", err)
	}
	if n, mib, err := db.Read().VolumeSums(ctx, "w1"); err != nil || n != 3 || mib != 30 {
		t.Errorf("sums %d, %d, %v", n, mib, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteVolume(ctx, "v1"); err != nil { // it is ready: it stays
			return err
		}
		v, err := tx.Volume(ctx, "v1")
		if err != nil {
			return err
		}
		v.State = store.VolumeDeleting
		if err := tx.UpdateVolume(ctx, &v, store.VolumeReady, 7, "state"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("another fence: %v, want ErrNotFound", err)
		}
		if err := tx.UpdateVolume(ctx, &v, store.VolumeReady, 0, "state"); err != nil {
			return err
		}
		return tx.InsertVolume(ctx, volume("v4", "a")) // the name is free
	})
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteVolume(ctx, "v1") })
	if _, err := db.Read().Volume(ctx, "v1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v, want ErrNotFound", err)
	}
}

// volumeLeases lets many try to hold one volume.
func volumeLeases(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.InsertVolume(ctx, volume("v1", "a")) })
	var held atomic.Int32
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.AcquireVolume(ctx, "v1", fmt.Sprintf("sandbox/s%d", n), "", 5)
				return err
			})
			if err == nil {
				held.Add(1)
			} else if !errors.Is(err, store.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := db.Read().Volume(ctx, "v1")
	if held.Load() != 1 || err != nil || got.Fence != 1 || got.Held != 5 {
		t.Errorf("%d holders of %+v, %v", held.Load(), got, err)
	}
	for q, want := range map[store.VolumeQuery]int{
		{Held: true}: 1, {Holder: got.Holder}: 1, {Holder: "sandbox/none"}: 0, {Workspace: "w2"}: 0, {DueBy: 9}: 0,
	} {
		if rows, err := db.Read().Volumes(ctx, q); err != nil || len(rows) != want {
			t.Errorf("%+v: %d rows, %v; want %d", q, len(rows), err, want)
		}
	}
}

func volumeSnapshots(t *testing.T, db *store.DB) {
	ctx := t.Context()
	row := func(id string, created int64) *store.VolumeSnapshot {
		return &store.VolumeSnapshot{ID: id, Workspace: "w1", Volume: "v1", State: store.VolumeCreating,
			Created: created}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.InsertVolumeSnapshot(ctx, row("s1", 1)), tx.InsertVolumeSnapshot(ctx, row("s2", 2)),
			tx.SetVolumeSnapshotState(ctx, "s1", store.VolumeReady, store.VolumeCreating))
	})
	rows, err := db.Read().VolumeSnapshots(ctx, "v1")
	if err != nil || len(rows) != 2 || rows[0].ID != "s2" || rows[1].State != store.VolumeReady {
		t.Errorf("read %+v, %v", rows, err)
	}
	if n, err := db.Read().CountVolumeSnapshots(ctx, "w1"); err != nil || n != 2 {
		t.Errorf("count %d, %v", n, err)
	}
	err = db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.SetVolumeSnapshotState(ctx, "s1", store.VolumeDeleting, store.VolumeCreating)
	})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another state: %v, want ErrNotFound", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteVolumeSnapshot(ctx, "s1") })
	if _, err := db.Read().VolumeSnapshot(ctx, "s1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v, want ErrNotFound", err)
	}
}

func volumeBackups(t *testing.T, db *store.DB) {
	ctx := t.Context()
	row := func(id string, moment int64) *store.VolumeBackup {
		return &store.VolumeBackup{ID: id, Workspace: "w1", Volume: "v1", State: store.BackupRunning, Moment: moment}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		done := row("b1", 5)
		done.State = store.BackupReady
		return errors.Join(tx.InsertVolumeBackup(ctx, row("b1", 1)), tx.InsertVolumeBackup(ctx, row("b2", 2)),
			tx.UpdateVolumeBackup(ctx, done, store.BackupRunning))
	})
	for q, want := range map[store.VolumeBackupQuery]string{
		{Workspace: "w1"}: "b1 b2 ", {Volume: "v1", Limit: 1}: "b1 ",
		{State: store.BackupRunning}: "b2 ", {Volume: "v2"}: "",
	} {
		rows, err := db.Read().VolumeBackups(ctx, q)
		got := ""
		for _, b := range rows {
			got += b.ID + " "
		}
		if err != nil || got != want {
			t.Errorf("%+v: %q, %v; want %q", q, got, err, want)
		}
	}
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateVolumeBackup(ctx, row("b1", 9), store.BackupRunning)
	})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another state: %v, want ErrNotFound", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteVolumeBackup(ctx, "b1") })
	if _, err := db.Read().VolumeBackup(ctx, "b1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v, want ErrNotFound", err)
	}
}
