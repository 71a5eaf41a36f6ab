package snapshot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/snapshot"
)

var twoDisks = []snapshot.DataDisk{
	{Name: "data", Mount: "/data", Options: []string{"noatime"}},
	{Name: "more2", Mount: "/a/b"},
}

// withDisks makes a snapshot with data disks of one and two MiB.
func withDisks(t *testing.T, s *snapshot.Store) snapshot.Snapshot {
	t.Helper()
	d, err := s.Draft()
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range d.DiskPaths(twoDisks) {
		write(t, path, make([]byte, max(i, 1)<<20))
	}
	if list, err := d.Disks(); err != nil || len(list) != 3 {
		t.Errorf("Disks() = %v, %v; want 3", list, err)
	}
	snap, err := d.Commit(snapshot.Snapshot{Ref: "snapshots/x", Data: twoDisks})
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func TestDataDisksAreFilesOfTheSnapshot(t *testing.T) {
	dir := t.TempDir()
	made := withDisks(t, open(t, dir))
	if twoDisks[1].MiB != 0 {
		t.Error("Commit changed its argument")
	}
	s := open(t, dir)
	snap, err := s.Get(made.Ref)
	if err != nil || len(snap.Data) != 2 || snap.Data[0].MiB != 1 || snap.Data[1].MiB != 2 ||
		snap.Data[0].Options[0] != "noatime" {
		t.Fatalf("snapshot = %+v, %v; want the data disks with their sizes", snap, err)
	}
	list, err := snap.Files()
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	if err != nil || strings.Join(names, " ") != "disk.img disk-data.img disk-more2.img" {
		t.Errorf("Files() = %v, %v; want disk.img disk-data.img disk-more2.img", list, err)
	}
	if sizes := snap.DiskBytes(); len(sizes) != 3 || sizes[2] != 2<<20 {
		t.Errorf("DiskBytes() = %v, want 3 sizes, the last of 2 MiB", sizes)
	}
	if err := snapshot.Check(snap); err != nil {
		t.Error(err)
	}
	path := snap.DiskPaths()[2]
	var damaged *snapshot.DamagedError
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Check(snap); !errors.As(err, &damaged) || damaged.File != "disk-more2.img" {
		t.Errorf("Check with a short disk: got %v, want a DamagedError of disk-more2.img", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Check(snap); !errors.As(err, &damaged) {
		t.Errorf("Check with a missing disk: got %v, want a DamagedError", err)
	}
}

func TestDataDisksAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	good := snapshot.DataDisk{Name: "data", MiB: 1, Mount: "/data"}
	for name, list := range map[string][]snapshot.DataDisk{
		"empty-name":      {{MiB: 1, Mount: "/data"}},
		"name-with-path":  {{Name: "../x", MiB: 1, Mount: "/data"}},
		"upper-case-name": {{Name: "Data", MiB: 1, Mount: "/data"}},
		"name-of-digits":  {{Name: "1", MiB: 1, Mount: "/data"}},
		"size-missing":    {{Name: "data", Mount: "/data"}},
		"relative":        {{Name: "data", MiB: 1, Mount: "data"}},
		"mounted-at-root": {{Name: "data", MiB: 1, Mount: "/"}},
		"unclean":         {{Name: "data", MiB: 1, Mount: "/a/../b"}},
		"twice":           {good, good},
		"too-many": {
			good, {Name: "a", MiB: 1, Mount: "/1"}, {Name: "b", MiB: 1, Mount: "/2"},
			{Name: "c", MiB: 1, Mount: "/3"}, {Name: "d", MiB: 1, Mount: "/4"}, {Name: "e", MiB: 1, Mount: "/5"},
			{Name: "f", MiB: 1, Mount: "/6"}, {Name: "g", MiB: 1, Mount: "/7"}, {Name: "h", MiB: 1, Mount: "/8"},
		},
	} {
		if err := snapshot.CheckDataDisks(list); !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("CheckDataDisks, %s: got %v, want ErrInvalid", name, err)
		}
	}
	d, err := s.Draft()
	if err != nil {
		t.Fatal(err)
	}
	write(t, d.DiskPath(), make([]byte, 1<<20))
	missing := snapshot.Snapshot{Ref: "snapshots/y", Data: []snapshot.DataDisk{good}}
	if _, err := d.Commit(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Commit with a missing data disk: got %v, want os.ErrNotExist", err)
	}
	outside := snapshot.Snapshot{Ref: "snapshots/y", Data: []snapshot.DataDisk{{Name: "..", MiB: 1, Mount: "/data"}}}
	if _, err := d.Commit(outside); !errors.Is(err, snapshot.ErrInvalid) {
		t.Errorf("Commit with a name that leaves the directory: got %v, want ErrInvalid", err)
	}
	if _, err := os.Stat(filepath.Join(d.ImageDir(), "..", "snapshot.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("description after a failed commit: stat = %v, want os.ErrNotExist", err)
	}
	if err := d.Discard(); err != nil {
		t.Error(err)
	}
}
