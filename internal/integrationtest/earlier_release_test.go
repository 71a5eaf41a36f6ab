package integrationtest_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// The content of testdata/earlier-release.tar.gz: a data directory written by the program before its packages and
// settings were renamed, with fake machines. The key is of its default workspace.
const (
	earlierKey        = "pds_8427fb95dc277800d9e7e228079e5436"
	earlierHibernated = api.SandboxID("sbxbauupw7tip5oztvayux6") // persistent, hibernated by a request
	earlierStopped    = api.SandboxID("sbxnhawmkcvb246uoe6xlut") // persistent, hibernated by the stop of the node
	earlierSnapshot   = api.SnapshotID("snpjqcm7gynksqztqvt5mea")
)

// TestDataDirectoryOfEarlierRelease starts this program with a data directory that an earlier release wrote, and uses
// the template, sandboxes and snapshot in it.
func TestDataDirectoryOfEarlierRelease(t *testing.T) {
	dir := t.TempDir()
	unpackTar(t, "testdata/earlier-release.tar.gz", dir)
	w := integrationtest.Open(t, dir, earlierKey)

	list, err := w.Client.Sandboxes.List(t.Context(), api.SandboxFilter{})
	if err != nil || len(list) != 2 {
		t.Fatalf("List returned %d sandboxes, %v, want 2", len(list), err)
	}
	for id, want := range map[api.SandboxID]struct{ file, metadata, env string }{
		earlierHibernated: {"two", "hibernated", "hello"},
		earlierStopped:    {"three", "running", ""},
	} {
		if got := sh(t, w, id, "cat /tmp/file"); got != want.file {
			t.Errorf("sandbox %s, woken: got %q in its file, want %q", want.metadata, got, want.file)
		}
		if got := sh(t, w, id, "echo $WORD"); got != want.env {
			t.Errorf("sandbox %s: got WORD=%q, want %q", want.metadata, got, want.env)
		}
		sb, err := w.Client.Sandboxes.Get(t.Context(), id)
		if err != nil || sb.Metadata["name"] != want.metadata || !sb.Persistent || sb.Template != "base" {
			t.Errorf("Get(%s) = %+v, %v, want a persistent sandbox of base with name=%s", id, sb, err, want.metadata)
		}
	}
	n, err := w.Client.Sandboxes.Network(t.Context(), earlierHibernated)
	if err != nil || len(n.DenyOut) != 1 || n.DenyOut[0] != "198.51.100.0/24" {
		t.Errorf("Network = %+v, %v, want deny_out 198.51.100.0/24", n, err)
	}

	snap, err := w.Client.Snapshots.Get(t.Context(), earlierSnapshot)
	if err != nil || snap.Name != "before" || snap.Metadata["k"] != "v" || snap.SandboxID != earlierHibernated {
		t.Errorf("snapshot: got %+v, %v, want the one named before", snap, err)
	}
	restored := create(t, w, api.CreateRequest{FromSnapshot: earlierSnapshot})
	if got := sh(t, w, restored.ID, "cat /tmp/file"); got != "one" {
		t.Errorf("sandbox of the snapshot: got %q in its file, want %q", got, "one")
	}
	if sb := create(t, w, api.CreateRequest{}); sb.BootMode != "snapshot" {
		t.Errorf("create: got boot mode %q, want snapshot: the template is baked", sb.BootMode)
	}
	w.Restart()
	if got := sh(t, w, earlierStopped, "cat /tmp/file"); got != "three" {
		t.Errorf("after a restart: got %q in the file, want three", got)
	}
	for _, id := range []api.SandboxID{earlierHibernated, earlierStopped} {
		if err := w.Client.Sandboxes.Delete(t.Context(), id); err != nil {
			t.Errorf("Delete(%s) = %v, want nil", id, err)
		}
	}
}

// unpackTar unpacks a compressed tar file of directories and regular files.
func unpackTar(t *testing.T, name, dir string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && h.Typeflag == tar.TypeDir && h.Name != "./" {
			err = root.Mkdir(h.Name, h.FileInfo().Mode().Perm())
		}
		if err == nil && h.Typeflag == tar.TypeReg {
			err = writeFrom(root, h, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeFrom(root *os.Root, h *tar.Header, r io.Reader) error {
	f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
