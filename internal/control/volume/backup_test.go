package volume_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/store"
)

// runJobs lets the queue run until the test ends.
func (w *fixture) runJobs() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.jobs.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		w.must(<-done)
	})
}

// backup waits until no backup is under way and returns those of alice.
func (w *fixture) backups() []api.VolumeBackup {
	w.t.Helper()
	for {
		all, err := w.Backups(w.t.Context(), alice, "", false)
		w.must(err)
		running := func(b api.VolumeBackup) bool { return b.Status == store.BackupRunning }
		if !slices.ContainsFunc(all, running) {
			return all
		}
		select {
		case <-w.t.Context().Done():
			w.t.Fatal("the backup does not end")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestBackupAndRestoreElsewhere(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	objects := hosttest.ShareObjects(w.host)
	w.runJobs()
	w.volume("data")
	w.putFile("data", "/f", "one")
	if now := w.get("data"); now.Backup != nil {
		t.Errorf("backup of a volume without: %+v", now.Backup)
	}
	first, err := w.Backup(ctx, alice, "data")
	w.must(err)
	all := w.backups()
	if len(all) != 1 || all[0].ID != first.ID || all[0].Status != "ready" || all[0].Reason != "manual" ||
		all[0].StoredBytes == 0 {
		t.Fatalf("got %+v", all)
	}
	w.must(w.helpers.Yield(ctx, "alice", hostapi.Owner{}, mounts("data")))
	now := w.get("data")
	if now.Backup == nil || now.Backup.LastBackupAt == nil || now.Backup.RPOSeconds == nil {
		t.Errorf("status %+v", now.Backup)
	}
	w.putFile("data", "/f", "two")
	w.must(w.helpers.Yield(ctx, "alice", hostapi.Owner{}, mounts("data")))
	_, err = w.Restore(ctx, alice, "data", api.VolumeRestoreRequest{Backup: first.ID})
	w.must(err)
	w.hasFile("data", "/f", "one")
	_, err = w.Create(ctx, bob, api.CreateVolumeRequest{Name: "stolen", FromBackup: first.ID})
	w.wants("a backup of another workspace", err, api.NotFound)
	w.wants("deleting one of another workspace", w.DeleteBackup(ctx, bob, first.ID), api.NotFound)
	w.must(w.helpers.Yield(ctx, "alice", hostapi.Owner{}, mounts("data")))
	w.must(w.Delete(ctx, alice, "data", false))

	// Another node with a store and a host of its own shares the object store.
	other := newFixture(t)
	objects.Share(other.host)
	elsewhere, err := other.Backups(ctx, alice, "", true)
	if err != nil || len(elsewhere) != 1 || elsewhere[0].ID != first.ID || !elsewhere[0].Elsewhere ||
		elsewhere[0].VolumeName != "data" || elsewhere[0].Reason != "manual" {
		t.Fatalf("got %+v, %v", elsewhere, err)
	}
	_, err = other.Create(ctx, alice, api.CreateVolumeRequest{Name: "data", FromBackup: first.ID})
	other.must(err)
	other.hasFile("data", "/f", "one")
	_, err = other.Create(ctx, bob, api.CreateVolumeRequest{Name: "stolen", FromBackup: first.ID})
	other.wants("a backup of another workspace", err, api.NotFound)
	other.must(other.DeleteBackup(ctx, alice, first.ID))
	if left := objects.VolumeBackups(); len(left) != 0 {
		t.Errorf("left in the object store: %v", left)
	}
}

func TestBackupThatFails(t *testing.T) {
	w := newFixture(t)
	w.runJobs()
	w.volume("data")
	w.host.Fail("backupvolume", errors.Join(hostapi.ErrUnsupported))
	_, err := w.Backup(t.Context(), alice, "data")
	w.must(err)
	all := w.backups()
	if len(all) != 1 || all[0].Status != "failed" || all[0].Error == "" {
		t.Errorf("got %+v", all)
	}
	if now := w.get("data"); now.Backup == nil || now.Backup.LastError == "" || now.Backup.LastBackupAt != nil {
		t.Errorf("status %+v", now.Backup)
	}
	_, err = w.Create(t.Context(), alice, api.CreateVolumeRequest{Name: "x", FromBackup: all[0].ID})
	w.wants("restoring it", err, api.Conflict)
	w.must(w.DeleteBackup(t.Context(), alice, all[0].ID))
	w.clean("at the end")
}

// TestScheduleAndRetention lets a week pass with a volume that is written, and looks at what is kept.
func TestScheduleAndRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, func(w *fixture) { w.cfg.Interval = 10 * time.Minute })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- w.jobs.Run(ctx) }()
		go func() { done <- w.Run(ctx) }()
		defer func() {
			cancel()
			w.must(<-done)
			w.must(<-done)
		}()
		v, err := w.Create(ctx, alice, api.CreateVolumeRequest{Name: "data", Backup: &api.BackupPolicy{
			Keep: api.Keep{Hourly: 3, Daily: 2, Weekly: 2}}})
		w.must(err)
		box := w.newBox("data")
		<-time.After(8 * 24 * time.Hour)
		synctest.Wait()
		all, err := w.Backups(ctx, alice, "data", false)
		w.must(err)
		if len(all) < 4 || len(all) > 7 { // some are kept twice
			t.Errorf("%d backups are kept: %+v", len(all), all)
		}
		if age := time.Since(all[0].Moment); age > 2*time.Hour {
			t.Errorf("the newest is %v old", age)
		}
		if age := time.Since(all[len(all)-1].Moment); age < 24*time.Hour {
			t.Errorf("the oldest is %v old", age)
		}
		before := len(all)
		w.end(box)
		<-time.After(20 * time.Minute)
		synctest.Wait()
		all, err = w.Backups(ctx, alice, "data", false)
		w.must(err)
		if all[0].Reason != "detach" || len(all) < before {
			t.Errorf("after the detachment: %+v", all)
		}
		newest := all[0].ID
		<-time.After(24 * time.Hour)
		synctest.Wait()
		if all, err = w.Backups(ctx, alice, "data", false); err != nil || all[0].ID != newest {
			t.Errorf("a volume without a writer was backed up: %+v, %v", all, err)
		}
		if now, err := w.Get(ctx, alice, string(v.ID)); err != nil || *now.Backup.RPOSeconds != 0 {
			t.Errorf("status %+v, %v", now.Backup, err)
		}
	})
}
