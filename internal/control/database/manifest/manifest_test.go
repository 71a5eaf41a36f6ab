package manifest_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// tarOf makes a tar archive of a data directory.
func tarOf(t testing.TB, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "base/", Mode: 0o700})
	for i := 0; i < len(files); i += 2 {
		err = errors.Join(err, w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: files[i], Size: int64(len(files[i+1])), Mode: 0o600,
		}))
		_, err2 := io.WriteString(w, files[i+1])
		err = errors.Join(err, err2)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// textOf returns the manifest of an archive.
func textOf(t testing.TB, archive []byte) []byte {
	t.Helper()
	m, names, err := manifest.Collect(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	m.Ranges = []manifest.Range{{Timeline: 1, Start: 0x2000028, End: 0x2000100}}
	text, err := m.Format(names, noon)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// verify reads an archive against a manifest.
func verify(m *manifest.Manifest, archive []byte) error {
	for check := m.Check(bytes.NewReader(archive)); ; {
		if _, err := check.Next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// A manifest that was formatted is parsed again, and accepts its archive and no other.
func TestRoundTrip(t *testing.T) {
	archive := tarOf(t, "PG_VERSION", "16\n", "base/1", "data", "base/na\xffme", "x",
		"pg_wal/000000010000000000000001", "l")
	m, err := manifest.Parse(textOf(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Ranges; len(got) != 1 || got[0].Start != wal.LSN(0x2000028) || len(m.Files) != 4 {
		t.Errorf("ranges %v, %d files", got, len(m.Files))
	}
	if err := verify(m, archive); err != nil {
		t.Errorf("its own archive: %v", err)
	}
	for name, other := range map[string][]byte{
		"missing": tarOf(t, "PG_VERSION", "16\n", "base/1", "data"),
		"content": tarOf(t, "PG_VERSION", "16\n", "base/1", "dat4", "base/na\xffme", "x"),
		"size":    tarOf(t, "PG_VERSION", "16\n", "base/1", "data1", "base/na\xffme", "x"),
		"more":    tarOf(t, "PG_VERSION", "16\n", "base/1", "data", "base/na\xffme", "x", "base/2", "y"),
		"twice":   tarOf(t, "PG_VERSION", "16\n", "base/1", "data", "base/na\xffme", "x", "base/1", "data"),
		"cut":     archive[:len(archive)/2],
	} {
		if err := verify(m, other); !errors.Is(err, manifest.ErrMismatch) {
			t.Errorf("%s: got %v, want ErrMismatch", name, err)
		}
		found, _, err := manifest.Collect(bytes.NewReader(other))
		if err == nil {
			err = m.Match(found)
		}
		if !errors.Is(err, manifest.ErrMismatch) {
			t.Errorf("%s, matched: got %v, want ErrMismatch", name, err)
		}
	}
}

// Archives with names or kinds of files that could leave the directory are refused.
func TestHostileArchives(t *testing.T) {
	for _, name := range []string{"../x", "/etc/passwd", "a/../../x", "a//b", ""} {
		if _, _, err := manifest.Collect(bytes.NewReader(tarOf(t, name, "x"))); !errors.Is(err, manifest.ErrMismatch) {
			t.Errorf("file %q: got %v, want ErrMismatch", name, err)
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "base", Linkname: "/etc"})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := manifest.Collect(&out); !errors.Is(err, manifest.ErrMismatch) {
		t.Errorf("a symbolic link: got %v, want ErrMismatch", err)
	}
}

// Every changed byte of a manifest is noticed.
func TestChangedManifest(t *testing.T) {
	text := textOf(t, tarOf(t, "PG_VERSION", "16\n"))
	for i := range bytes.TrimRight(text, "\n") {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		if _, err := manifest.Parse(changed); !errors.Is(err, manifest.ErrMismatch) {
			t.Errorf("byte %d changed: got %v, want ErrMismatch", i, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(textOf(f, tarOf(f, "PG_VERSION", "16\n")))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := manifest.Parse(text); err != nil && !errors.Is(err, manifest.ErrMismatch) {
			t.Errorf("Parse = %v, want ErrMismatch", err)
		}
	})
}

// Whatever the bytes are, only files with local names are read.
func FuzzCollect(f *testing.F) {
	f.Add(tarOf(f, "PG_VERSION", "16\n"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		m, names, err := manifest.Collect(bytes.NewReader(archive))
		if err != nil {
			return
		}
		text, err := m.Format(names, noon)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manifest.Parse(text); err != nil {
			t.Errorf("the manifest of an accepted archive: %v", err)
		}
	})
}
