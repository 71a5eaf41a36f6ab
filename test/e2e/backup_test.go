//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/test/nodelab"
)

// secondDataDir makes a data directory beside what a node has in dir, with its kernel and a baked template.
func secondDataDir(t *testing.T, dir, template string) string {
	t.Helper()
	second := filepath.Join(dir, "test-second")
	if err := errors.Join(os.RemoveAll(second), os.MkdirAll(second, 0o711)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(second); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(filepath.Join(dir, "kernel"), filepath.Join(second, "kernel")); err != nil {
		t.Fatal(err)
	}
	from, to := filepath.Join(dir, "templates", template), filepath.Join(second, "templates", template)
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, inside)
		if e.IsDir() {
			return errors.Join(os.MkdirAll(copied, 0o711), os.Chmod(copied, info.Mode().Perm()))
		}
		return errors.Join(disk.Clone(path, copied), os.Chmod(copied, info.Mode().Perm()))
	})
	if err != nil {
		t.Fatal(err)
	}
	return second
}

// awaitBackup waits until the newest backup of a volume is complete and has a reason.
func awaitBackup(t *testing.T, n *nodelab.Node, volume, reason string, count int) api.VolumeBackup {
	t.Helper()
	var all []api.VolumeBackup
	nodelab.Eventually(t, fmt.Sprintf("backup %d of volume %s", count, volume), func() error {
		n.JSON(&all, "volume", "backups", volume)
		if len(all) != count || all[0].Status != "ready" {
			return fmt.Errorf("backups are %+v", all)
		}
		return nil
	})
	if all[0].Reason != reason || all[0].UploadedBytes == 0 {
		t.Errorf("backup %d of volume %s = %+v, want one by %s", count, volume, all[0], reason)
	}
	return all[0]
}

// TestVolumeOfLostNode kills a node and restores its volume on another one that shares nothing but the object store.
func TestVolumeOfLostNode(t *testing.T) {
	dir := nodelab.DataDir(t)
	shared := t.TempDir()
	t.Setenv("PANDASTACK_OBJECT_STORE_URL", "file://"+filepath.Join(shared, "objects"))
	t.Setenv("PANDASTACK_OBJECT_STORE_KEY", filepath.Join(shared, "objects.key"))
	a := nodelab.Start(t, dir)
	a.Bake("mini")
	a.CLI("volume", "delete", "data") // of a run that failed
	a.OK("volume", "create", "data", "--size", "128", "--hourly", "2")
	writer := a.Create("--persistent", "--volume", "data:/data").ID
	a.Sh(writer, "head -c 20000000 /dev/urandom > /data/blob && echo first > /data/name")
	sum := a.Sh(writer, "sha256sum < /data/blob")
	a.OK("volume", "backup", "data") // what the guest has not synced is in it
	first := awaitBackup(t, a, "data", "manual", 1)
	a.Sh(writer, "echo second > /data/name")
	a.OK("volume", "detach", "data", writer)
	second := awaitBackup(t, a, "data", "detach", 2)
	if first.UploadedBytes < 20_000_000 || second.UploadedBytes > 1_000_000 {
		t.Errorf("backups uploaded %d bytes, then %d; want the blob once", first.UploadedBytes, second.UploadedBytes)
	}
	var v api.Volume
	a.JSON(&v, "volume", "get", "data")
	if v.Backup == nil || v.Backup.RPOSeconds == nil || *v.Backup.RPOSeconds != 0 || v.Backup.LastError != "" {
		t.Errorf("backups of the volume = %+v, want nothing that would be lost", v.Backup)
	}
	a.OK("volume", "attach", "data", writer, "--at", "/data")
	a.Sh(writer, "echo lost > /data/name && sync")
	a.Kill()

	other := secondDataDir(t, dir, "mini")
	b := nodelab.Start(t, other)
	var all []api.VolumeBackup
	b.JSON(&all, "volume", "backups", "--everywhere")
	if len(all) != 2 || all[0].ID != second.ID || !all[0].Elsewhere || all[0].VolumeName != "data" ||
		all[1].ID != first.ID || !all[1].Moment.Equal(first.Moment) {
		t.Fatalf("backups in the object store = %+v, want %+v and %+v", all, second, first)
	}
	b.OK("volume", "create", "data", "--from-backup", string(second.ID), "--hourly", "2")
	b.OK("volume", "create", "old", "--from-backup", string(first.ID))
	reader := b.Create("--volume", "data:/data", "--volume", "old:/old").ID
	for at, want := range map[string]string{"/data": "second\n" + sum, "/old": "first\n" + sum} {
		if got := b.Sh(reader, "cd "+at+" && cat name && sha256sum < blob"); got != want {
			t.Errorf("%s on the other node has %q, want %q", at, got, want)
		}
	}
	// It continues where the backup ended.
	b.OK("volume", "backup", "data")
	if next := awaitBackup(t, b, "data", "manual", 1); next.UploadedBytes > 1_000_000 {
		t.Errorf("the first backup on the other node uploaded %d bytes, want the difference", next.UploadedBytes)
	}
	b.JSON(nil, "sandbox", "delete", reader)
	b.OK("volume", "delete", "data")
	b.OK("volume", "delete", "old")
	b.JSON(&all, "volume", "backups", "--everywhere")
	for _, one := range all {
		b.OK("volume", "delete-backup", string(one.ID))
	}
	b.Stop()
	nodelab.NothingLeft(t, other)

	a = nodelab.Start(t, dir)
	if got := a.Sh(writer, "cat /data/name"); got != "lost" {
		t.Errorf("on the first node, which is back, the volume has %q", got)
	}
	a.JSON(nil, "sandbox", "delete", writer)
	a.OK("volume", "delete", "data")
	a.Stop()
	nodelab.NothingLeft(t, dir)
	for _, pattern := range []string{"volumes/*", "volume-bases/*"} {
		if left, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left of volumes: %v, %v", left, err)
		}
	}
}
