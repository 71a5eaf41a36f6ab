package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzMeta reads a snapshot's description, which may come from another host or a damaged disk. Nothing
// outside of its directory is read, and a description that does not fit is reported as damage.
func FuzzMeta(f *testing.F) {
	f.Add(
		[]byte(
			`{"version":1,"ref":"snapshots/a","vcpus":1,"memory_mib":64,"disk_mib":8,"disk":true,` +
				`"manifest":{"files":[{"name":"memory","bytes":4}]}}`,
		),
	)
	f.Add([]byte(`{"version":1,"ref":"snapshots/a","anonymous":true}`))
	f.Add([]byte(`{"version":1,"ref":"snapshots/a","manifest":{"files":[{"name":"../../secret","bytes":6}]}}`))
	dir := f.TempDir()
	place := filepath.Join(dir, "snapshots", "a")
	err := errors.Join(
		os.MkdirAll(filepath.Join(place, imageDir), 0o700),
		os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600),
	)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(place, metaFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		snap, err := read(place, "snapshots/a")
		var damaged *DamagedError
		if err != nil {
			if !errors.As(err, &damaged) {
				t.Errorf("read(%q): got %v, want a DamagedError", data, err)
			}
			return
		}
		if err := Check(snap); err == nil && len(snap.Manifest.Files) > 0 {
			t.Errorf("Check accepted missing files: %+v", snap.Manifest.Files)
		} else if err != nil && !errors.As(err, &damaged) {
			t.Errorf("read(%q): got %v, want nil or a DamagedError", data, err)
		}
	})
}
